"""A RexJob as a whole, read from a manifest with errors that say what, where and what to do."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rex_operator.api.spec import DnsLabel, RexJobSpec

GROUP = "rex.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RexJob"
PLURAL = "rexjobs"


class InvalidJob(ValueError):
    """A manifest that cannot run. ``problems`` has one line per fault, each opening with the field's path."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class Metadata(BaseModel):
    """What REX needs of an object's metadata; the rest is kept, not read."""

    model_config = ConfigDict(extra="allow")

    name: DnsLabel
    namespace: DnsLabel | None = None
    uid: str = ""
    generation: int = 0


class RexJob(BaseModel):
    """One job: a manifest as the user wrote it, checked. ``status`` belongs to the controller and is ignored here."""

    model_config = ConfigDict(extra="ignore")

    apiVersion: Literal["rex.dev/v1alpha1"]
    kind: Literal["RexJob"]
    metadata: Metadata
    spec: RexJobSpec

    @classmethod
    def from_manifest(cls, manifest: Any) -> RexJob:
        """Read a parsed manifest. Raises ``InvalidJob`` with a line per fault."""
        try:
            job = cls.model_validate(manifest)
            job.spec.trainer()
        except ValidationError as error:
            raise InvalidJob([_line(fault) for fault in error.errors(include_url=False, include_input=False)]) from None
        except ValueError as error:
            raise InvalidJob([str(error)]) from None
        return job


def _line(fault: Any) -> str:
    path = ""
    for part in fault["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if fault["type"] == "extra_forbidden":
        return f"{path}: unknown field; check the spelling"
    return f"{path or 'manifest'}: {fault['msg'].removeprefix('Value error, ')}"
