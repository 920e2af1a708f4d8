"""Run a program and, when it fails, say which, why and with what last words.

A test cluster is a hundred calls of other programs; an error that shows only an exit code costs its reader an hour.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Say = Callable[[str], None]
"""Takes one line that tells the user what is going on and how long it will take."""


class ClusterError(RuntimeError):
    """The test cluster cannot be had, or broke; the message says what to do or shows the failing log's end."""


def quiet(_: str) -> None:
    """A ``Say`` for callers that nobody watches."""


def run(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 120,
    log: Path | None = None,
) -> str:
    """Run a program to its end and return its standard output, or nothing when that goes to ``log``.

    Raises:
        ClusterError: it is missing, failed or did not end within ``timeout`` seconds; with the end of what it said.
    """
    command = [str(part) for part in argv]
    environment = {**os.environ, **(env or {})}
    try:
        if log is None:
            done = subprocess.run(
                command, env=environment, cwd=cwd, input=stdin, timeout=timeout, text=True, capture_output=True
            )
        else:
            with log.open("a") as sink:
                done = subprocess.run(
                    command, env=environment, cwd=cwd, input=stdin, timeout=timeout, text=True, stdout=sink, stderr=sink
                )
    except FileNotFoundError:
        raise ClusterError(f"{command[0]}: no such program") from None
    except subprocess.TimeoutExpired as error:
        words = tail(log) if log else _text(error.stderr)
        raise ClusterError(f"{_show(command)}: no end after {timeout:.0f} s\n{words}") from None
    if done.returncode != 0:
        words = tail(log) if log else f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        raise ClusterError(f"{_show(command)}: exit code {done.returncode}\n{words.strip()}")
    return done.stdout or ""


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log, indented, under its name; says so when there is no log."""
    try:
        with path.open("rb") as source:
            source.seek(max(0, path.stat().st_size - 16_384))
            text = source.read().decode(errors="replace")
    except OSError:
        return f"  (no log at {path})"
    return "\n".join([f"  end of {path}:", *(f"  | {line}" for line in text.splitlines()[-lines:])])


def _show(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) < 400 else f"{text[:400]}..."


def _text(raw: bytes | str | None) -> str:
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
    return text[-4000:]
