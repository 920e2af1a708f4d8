"""Print docs/reference/worker.md: the worker library's public API, from its own docstrings and signatures."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

HEAD = """# The worker library's API

Every public name of `rex_worker`. Made by `make reference` from the docstrings; do not edit. How it fits
together is told in [the worker library](../worker.md).
"""

PAGES: list[tuple[str, list[str]]] = [
    ("rex_worker", []),
    ("rex_worker.checkpoint", ["read_model_state"]),
    ("rex_worker.errors", ["RexError", "ConfigurationError", "UsageError", "CheckpointMissing", "Desynchronised"]),
    ("rex_worker.adapters.accelerate", []),
    ("rex_worker.adapters.lightning", []),
    ("rex_worker.adapters.transformers", []),
]
"""Modules, and what of them is public; nothing named: their ``__all__``, or all that they define."""

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
_ENTRY = re.compile(r"^    (\*{0,2}\w[\w.]*):\s*(.*)$")


def render() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for name, chosen in PAGES:
        module = importlib.import_module(name)
        parts.append(f"## {name}\n")
        for public in chosen or _public(module):
            parts += _described(public, getattr(module, public))
    return "\n".join(parts)


def _public(module: Any) -> list[str]:
    named = getattr(module, "__all__", None)
    if named is not None:
        return sorted(named, key=str.lower)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and callable(value)
    ]


def _described(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield _entry("###", f"{name}{_signature(value)}", value)
        return
    own = "__init__" in vars(value) and not issubclass(value, BaseException)
    arguments = _signature(value).removesuffix(" -> None") if own else ""
    yield _entry("###", f"class {name}{arguments}", value)
    ours = [base for base in value.__mro__ if base.__module__.startswith("rex_worker")]
    for member, what in {name: what for base in reversed(ours) for name, what in vars(base).items()}.items():
        if member.startswith("_") or not inspect.getdoc(what):
            continue
        if isinstance(what, property):
            yield _entry("####", f"{name}.{member}{_returned(what.fget)}", what)
        elif inspect.isfunction(what):
            yield _entry("####", f"{name}.{member}{_signature(what)}", what)


def _entry(level: str, title: str, value: Any) -> str:
    name = title.removeprefix("class ").partition("(")[0].partition(" ->")[0]
    return f"{level} {name}\n\n```python\n{title}\n```\n\n{_markdown(inspect.getdoc(value) or '')}\n"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=kept)).replace("'", "")


def _returned(getter: Any) -> str:
    said = inspect.signature(getter).return_annotation
    return "" if said is inspect.Signature.empty else f" -> {said}".replace("'", "")


def _markdown(text: str) -> str:
    """Turn the sections of a docstring into lists, and what is quoted in it into code."""
    lines: list[str] = []
    in_section = False
    for line in text.replace("``", "`").splitlines():
        if section := _SECTION.match(line):
            lines += [f"**{section[1]}**", ""]
            in_section = True
        elif in_section and (entry := _ENTRY.match(line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if lines[-1] else line.strip())
        else:
            in_section = in_section and not line.strip()
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render())
