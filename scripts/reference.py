"""Print docs/reference/rexjob.md: every field of a RexJob, from the same schema that the API server checks with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rex_operator.api.crd import crd, structural
from rex_operator.api.job import API_VERSION, KIND
from rex_operator.api.spec import RexJobSpec
from rex_operator.api.status import JobStatus

RULES = "x-kubernetes-validations"

HEAD = f"""# RexJob

Every field of a `{KIND}` (`{API_VERSION}`, short name `rj`). Made by `make crd` from the models in `rex_operator/api`;
do not edit. On a cluster `kubectl explain rexjob.spec` says the same.

An unknown field, a wrong type or a value out of bounds is refused by `kubectl apply` and by `rex run` alike.
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for name, model, opening in (
        ("spec", RexJobSpec, "## spec: what you ask for\n"),
        ("status", JobStatus, "## status: what REX says\n\nWritten by the operator only.\n"),
    ):
        parts.append(opening)
        parts += sections(name, structural(model))
    parts.append(columns())
    return "\n".join(parts)


def sections(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield a section per object, outermost first."""
    inner: list[tuple[str, dict[str, Any]]] = []
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        where = f"{path}.{name}"
        item = field.get("items", {})
        if "properties" in field and name != "template":
            inner.append((where, field))
        elif "properties" in item:
            inner.append((f"{where}[]", item))
        needed = "**required**" if name in schema.get("required", []) else default(field)
        lines.append(f"| `{name}` | {kind(field)} | {needed} | {meaning(field)} |")
    title = f"### {path}\n"
    said = plain(schema.get("description", ""))
    rules = [f"- {plain(rule['message'])}" for rule in schema.get(RULES, [])]
    refused = ["\nRefused when:\n", *rules] if rules else []
    yield "\n".join([title, said, "", *lines, *refused, ""])
    for where, field in inner:
        yield from sections(where, field)


def kind(field: dict[str, Any]) -> str:
    """Tell a field's type and bounds."""
    if "enum" in field:
        return " \\| ".join(f"`{value}`" if value != "" else '`""`' for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "amount"
    name: str = field.get("type", "any")
    if name == "array":
        return f"list of {kind(field['items'])}{up_to(field.get('maxItems'))}"
    if name == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {kind(field['additionalProperties'])}{up_to(field.get('maxProperties'))}"
    if name in {"integer", "number"}:
        low, high = field.get("minimum"), field.get("maximum")
        sign = "above " if field.get("exclusiveMinimum") else ""
        return f"{name}, {sign}{figure(low)} to {figure(high)}" if low is not None and high is not None else name
    if name == "string" and field.get("format") == "date-time":
        return "time"
    return name


def up_to(limit: int | None) -> str:
    """Tell the largest number of entries."""
    return f", up to {limit}" if limit else ""


def figure(value: float) -> str:
    """Write a bound so that it can be read at a glance."""
    if value == 2**53:
        return "2⁵³"
    if value == 2**24:
        return "2²⁴"
    if abs(value) >= 1e9:
        return f"{value:.0e}".replace("e+", "e")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def default(field: dict[str, Any]) -> str:
    """Tell what holds when the field is absent."""
    value = field.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def meaning(field: dict[str, Any]) -> str:
    """Tell what a field is for."""
    said = field.get("description") or field.get("items", {}).get("description", "")
    return plain(said).replace("|", "\\|").replace("\n", " ")


def plain(text: str) -> str:
    """Turn the docstrings' markup into Markdown's."""
    return text.replace("``", "`")


def columns() -> str:
    """Tell the columns of ``kubectl get``."""
    lines = ["## kubectl get rexjobs\n", "| column | from | only with `-o wide` |", "|---|---|---|"]
    for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]:
        wide = "yes" if column.get("priority") else ""
        lines.append(f"| {column['name'].upper()} | `{column['jsonPath']}` | {wide} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
