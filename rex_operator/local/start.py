"""From a manifest to a run that is ready to start: what can be refused is refused here, before any process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rex_operator.api import RexJob
from rex_operator.local.environment import Program, read_program
from rex_operator.local.manifest import load_job
from rex_operator.local.rundir import RunDirectory, RunState, choose_directory


@dataclass(frozen=True)
class Prepared:
    """A run that can start. ``directory`` is locked until it is closed."""

    job: RexJob
    program: Program
    directory: RunDirectory
    state: RunState | None
    """What an interrupted run left; None: a new run."""


def prepare(manifest: Path, run_dir: Path | None = None, *, fresh: bool = False) -> Prepared:
    """Check ``manifest`` and take hold of the run's folder. Raises ``BadInput``; then nothing was changed."""
    job = load_job(manifest)
    program = read_program(job, manifest)
    directory = choose_directory(job.metadata.name, run_dir, fresh=fresh)
    state = directory.load()
    directory.open(checkpoints=job.spec.checkpoint is not None)
    return Prepared(job, program, directory, state)
