"""The folder of one run: what makes it possible to look at it later, and to go on with it.

A run that was interrupted is continued by the same command, without the user having to name it; a run that ended is
never touched again. Nothing is deleted: starting over means another folder.

Inside: ``record.jsonl``, ``summary.json``, ``report.html``, ``state.json`` (what a continued run needs), ``logs/`` and
``checkpoints/``.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from rex_operator.jobs import SavedState
from rex_operator.local.errors import BadInput

RUNS = Path("runs")


class RunState(BaseModel):
    """What a continued run needs to know of its past."""

    model_config = ConfigDict(extra="ignore")

    job: str
    spec: str = ""
    """The manifest's spec as canonical JSON without ``template``, to notice that it was changed."""
    elapsed_s: float = 0.0
    charged: int = 0
    uncharged: int = 0
    ended: bool = False
    success: bool | None = None
    saved: SavedState = SavedState()


class RunDirectory:
    """A run's folder, held by this process alone while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def record(self) -> Path:
        """One JSON object a line; see ``Recorder``."""
        return self.path / "record.jsonl"

    @property
    def summary(self) -> Path:
        """The run in figures."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """Where workers keep the state of the training."""
        return self.path / "checkpoints"

    def log(self, worker_id: str) -> Path:
        """What a worker printed, in all of its lives."""
        return self.path / "logs" / f"{worker_id}.log"

    def open(self, *, checkpoints: bool) -> None:
        """Make the folder and lock it. Raises ``BadInput`` when it cannot be written or another run holds it."""
        folders = [self.path, self.path / "logs", *([self.checkpoints] if checkpoints else [])]
        for folder in folders:
            what = "checkpoint folder" if folder == self.checkpoints else "run folder"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise BadInput(
                    f"{what} {folder} is not writable: {error.strerror or error}; choose another with --run-dir"
                ) from None
        self._lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BadInput(f"{self.path} is in use by another rex run; choose another folder with --run-dir") from None

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> RunState | None:
        """What an earlier run left, None for a new folder. Raises ``BadInput`` when it cannot be read."""
        file = self.path / "state.json"
        try:
            return RunState.model_validate_json(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValidationError) as error:
            kind = "is damaged" if isinstance(error, ValidationError) else f"cannot be read ({error})"
            raise BadInput(f"{file} {kind}; start over with --fresh (nothing is deleted)") from None

    def save(self, state: RunState) -> None:
        """Keep ``state``, whole or not at all."""
        write_whole(self.path / "state.json", state.model_dump_json())


def write_whole(file: Path, text: str) -> None:
    """Replace ``file`` by ``text`` so that a reader, or a crash, sees the old or the new one."""
    part = file.with_name(file.name + ".part")
    with part.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)


def choose_directory(name: str, given: Path | None, *, fresh: bool) -> RunDirectory:
    """Return the folder to run in: the one to be continued, or a new one.

    Without ``given`` that is the newest ``runs/NAME-N`` if it has not ended, else the next number. With ``given`` and
    ``fresh`` what is in it is moved aside. Raises ``BadInput`` for a given folder whose run has ended.
    """
    if given is None:
        newest = max(_numbered(RUNS, name), default=0)
        last = RunDirectory(RUNS / f"{name}-{newest}")
        if newest and not fresh and _unfinished(last):
            return last
        return RunDirectory(RUNS / f"{name}-{newest + 1}")
    directory = RunDirectory(given)
    if fresh and given.is_dir() and any(given.iterdir()):
        aside = given.with_name(
            f"{given.name}-before-{max(_numbered(given.parent, given.name + '-before'), default=0) + 1}"
        )
        given.rename(aside)
        return directory
    state = directory.load()
    if state is not None and state.job != name:
        raise BadInput(f"{given} holds a run of job {state.job!r}, not {name!r}; choose another folder with --run-dir")
    if state is not None and state.ended:
        word = "succeeded" if state.success else "failed"
        raise BadInput(f"the run in {given} has ended (it {word}); give --fresh to move it aside and start over")
    return directory


def _unfinished(directory: RunDirectory) -> bool:
    state = directory.load()
    return state is not None and not state.ended


def _numbered(folder: Path, name: str) -> list[int]:
    pattern = re.compile(re.escape(name) + r"-([0-9]{1,9})")
    if not folder.is_dir():
        return []
    return [int(match[1]) for entry in folder.iterdir() if (match := pattern.fullmatch(entry.name))]
