"""Where the decisions of a job are told: in the record of a run, or in a cluster.

A run's folder has all of them. In a cluster the planner keeps the newest in the job's state, a ConfigMap in the job's
namespace; who may read RexJobs but not that ConfigMap still gets what the status says, and is told so.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rex_operator.api.status import Decision, JobStatus
from rex_operator.cli.app import NO_RECORD
from rex_operator.planning import DecisionRecord
from rex_operator.planning.types import KEPT_DECISIONS

if TYPE_CHECKING:
    from rex_operator.controller.kube import Kube


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class CannotTell(Exception):
    """The decisions cannot be read; ``bad_input``: because of what was asked, not of who asks or of the network."""

    def __init__(self, problem: str, *, bad_input: bool) -> None:
        self.bad_input = bad_input
        super().__init__(problem)


@dataclass(frozen=True)
class Told:
    """What is known of a job's decisions, the oldest first."""

    job: str
    source: str
    decisions: tuple[tuple[float, DecisionRecord], ...] = ()
    """Each with its seconds of training."""
    short: tuple[Decision, ...] = ()
    """As the status tells them, where nothing better can be read."""
    note: str = ""
    """What a reader should know about the source."""


def find(job: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> Told:
    """Read the decisions of a run's folder or, if there is none of that name, of a RexJob. Raises ``CannotTell``.

    Who names a namespace, kubeconfig or context means a RexJob.
    """
    folder = Path(job)
    elsewhere = any(option is not None for option in (namespace, kubeconfig, context))
    if not elsewhere and (folder / "record.jsonl").is_file():
        return read_run(folder)
    if not elsewhere and (folder.exists() or "/" in job):
        raise CannotTell(f"{job}: {NO_RECORD}", bad_input=True)
    if not _NAME.fullmatch(job):
        raise CannotTell(f"{job!r} is neither a run's folder nor the name of a RexJob", bad_input=True)
    return asyncio.run(read_job(job, namespace, kubeconfig, context))


def read_run(run_dir: Path) -> Told:
    """Read the record of a run. Raises ``CannotTell``."""
    try:
        return Told(run_dir.resolve().name, str(run_dir), tuple(_recorded(run_dir / "record.jsonl")))
    except OSError as error:
        raise CannotTell(f"{run_dir}: {error.strerror or error}", bad_input=True) from None


def _recorded(file: Path) -> Iterator[tuple[float, DecisionRecord]]:
    """Yield (seconds of training, decision) in order; lines that are torn or of another build are left out."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
                if entry["kind"] == "decision":
                    yield float(entry["t"]), DecisionRecord.model_validate_json(json.dumps(entry["decision"]))
            except (ValueError, KeyError, TypeError, ValidationError):
                continue


async def read_job(name: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> Told:
    """Read the decisions of a RexJob in a cluster. Raises ``CannotTell``."""
    from rex_operator.controller.kube import REXJOBS, Kube, KubeError

    try:
        kube, usual = await Kube.connect_as_user(kubeconfig, context)
    except KubeError as error:
        raise CannotTell(f"{name!r} is no run's folder; for a RexJob: {error.message}", bad_input=True) from None
    where = namespace or usual
    try:
        item = await kube.get(REXJOBS, where, name)
        if item is None:
            problem = f"no RexJob {name!r} in namespace {where!r}; kubectl get rexjobs -A lists those that there are"
            raise CannotTell(problem, bad_input=True)
        return await _kept(kube, where, name, item)
    except KubeError as error:
        raise CannotTell(f"RexJob {where}/{name} cannot be read: {error.message}", bad_input=False) from None
    finally:
        await kube.close()


async def _kept(kube: Kube, namespace: str, name: str, item: dict[str, Any]) -> Told:
    """Read what the planner keeps, or the status where that cannot be had."""
    from rex_operator.controller.kube import CONFIG_MAPS, KubeError
    from rex_operator.controller.memory import FIELD, unpack
    from rex_operator.controller.names import Owner

    owner = Owner(namespace, name, item["metadata"]["uid"])
    job, status = f"RexJob {owner}", JobStatus.read(item.get("status"))
    try:
        held = await kube.get(CONFIG_MAPS, namespace, owner.state)
        if held is None or not owner.owns(held):
            return Told(job, "its status", short=tuple(status.decisions))
        planner = unpack(held.get("binaryData", {}).get(FIELD, "")).planner
    except KubeError as error:
        if error.status != 403:
            raise
        note = f"You may not read ConfigMap {owner.state}, which has more: {error.message}"
    except ValueError:
        note = f"ConfigMap {owner.state} cannot be read by this version of rex."
    else:
        records = planner.decisions if planner is not None else ()
        full = len(records) == KEPT_DECISIONS
        note = f"At most {KEPT_DECISIONS} are kept; older moves of shares went first." if full else ""
        return Told(job, f"ConfigMap {owner.state}", tuple((record.time_s, record) for record in records), note=note)
    return Told(job, "its status", short=tuple(status.decisions), note=note)
