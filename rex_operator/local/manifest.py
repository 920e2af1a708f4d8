"""Reads a RexJob from a file, with errors that name the file, the line and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rex_operator.api import InvalidJob, RexJob
from rex_operator.local.errors import BadInput

MAX_MANIFEST_BYTES = 1 << 20


def load_job(path: Path) -> RexJob:
    """Read the one RexJob in ``path``. Raises ``BadInput`` that says what is wrong and where."""
    document = _document(path, _text(path))
    if not isinstance(document, dict):
        raise BadInput(f"{path}: not a RexJob; a manifest is a mapping with apiVersion, kind, metadata and spec")
    try:
        return RexJob.from_manifest(document)
    except InvalidJob as error:
        faults = "\n".join(f"  {problem}" for problem in error.problems)
        raise BadInput(f"{path}: not a valid RexJob:\n{faults}") from None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BadInput(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes; is this a manifest?")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def _document(path: Path, text: str) -> Any:
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"
        raise BadInput(f"{path}: not valid YAML at {where}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not valid YAML: {error}") from None
    if not documents:
        raise BadInput(f"{path}: empty; write a RexJob into it")
    if len(documents) > 1:
        raise BadInput(f"{path}: {len(documents)} documents; give one RexJob in one file")
    return documents[0]
