"""What a worker on this machine is started with: the trainer container's command, as if it were in a pod.

The manifest is written for a cluster. Here its image is not run; its command, arguments and literal environment values
are, with this machine's Python, and the pools' devices are played by emulation. What has no meaning here (values from
secrets, volumes) is left out and said.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rex_worker
from rex_operator.api import RexJob
from rex_operator.local.errors import BadInput
from rex_operator.local.filling import Seat

PYTHONS = {"python", "python3"}
LAUNCHER = "rex_worker.launch"
OURS = "REX_"
USERS_OWN = {"REX_EMULATE", "REX_EMULATE_SCALE"}
"""The REX variables that a manifest may set."""


@dataclass(frozen=True)
class Program:
    """The trainer's command on this machine."""

    command: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    """The manifest's literal values."""
    warnings: tuple[str, ...]


def read_program(job: RexJob, manifest: Path) -> Program:
    """Read what to run. Raises ``BadInput`` when there is no command or its script is not found."""
    container = job.spec.trainer()
    words = _launched([*_words(container, "command"), *_words(container, "args")])
    if not words:
        raise BadInput(
            f"{manifest}: the trainer container has no command; rex run starts the command itself and runs no image"
        )
    warnings = [] if container.get("image") else ["the trainer container has no image; a cluster needs one"]
    env, left_out = _literals(container.get("env"))
    warnings += left_out
    cwd = _working_directory(words, manifest, container.get("workingDir"))
    if words[0] in PYTHONS:
        words[0] = sys.executable
    elif shutil.which(words[0], path=env.get("PATH")) is None:
        raise BadInput(f"{manifest}: the trainer's command {words[0]!r} is not found on this machine")
    return Program(tuple(words), cwd, env, tuple(warnings))


@dataclass(frozen=True)
class Place:
    """Where the workers of a run meet it."""

    job: str
    channel_url: str
    checkpoint_dir: Path | None
    seed: int
    emulate: bool


def worker_environment(
    program: Program, job: RexJob, place: Place, seat: Seat, incarnation: str, token_file: Path
) -> dict[str, str]:
    """Return the whole environment of one life of a worker: this process's own, the manifest's values, then REX's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env.setdefault("OMP_NUM_THREADS", "1")
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(_import_path(env.get("PYTHONPATH", "")))
    if place.emulate:
        env["REX_EMULATE"] = "1"
    env |= program.env
    env |= {
        "REX_JOB": place.job,
        "REX_WORKER_ID": seat.worker_id,
        "REX_INCARNATION": incarnation,
        "REX_CHANNEL_URL": place.channel_url,
        "REX_TOKEN_FILE": str(token_file),
        "REX_POOL": seat.pool.name,
        "REX_DEVICE": seat.pool.device,
        "REX_ADDRESS": "127.0.0.1",
        "REX_JOB_SEED": str(place.seed),
        "REX_BATCH_INITIAL": str(job.spec.batch.initial),
    }
    if place.checkpoint_dir is not None and job.spec.checkpoint is not None:
        env |= {
            "REX_CHECKPOINT_DIR": str(place.checkpoint_dir),
            "REX_CHECKPOINT_EVERY": str(job.spec.checkpoint.every_steps),
            "REX_CHECKPOINT_KEEP": str(job.spec.checkpoint.keep),
        }
    return env


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA device; without one, devices are emulated."""
    return Path("/dev/nvidiactl").exists()


def _words(container: Mapping[str, Any], key: str) -> list[str]:
    words = container.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadInput(f"spec.template.spec.containers[trainer].{key}: must be a list of strings; quote numbers")
    return list(words)


def _literals(entries: Any) -> tuple[dict[str, str], list[str]]:
    if entries is not None and not isinstance(entries, list):
        raise BadInput("spec.template.spec.containers[trainer].env: must be a list of name and value")
    env: dict[str, str] = {}
    warnings: list[str] = []
    for entry in entries or ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadInput("spec.template.spec.containers[trainer].env: each entry needs a name")
        name = entry["name"]
        if "valueFrom" in entry:
            warnings.append(f"env {name}: values from elsewhere (valueFrom) are not set in a local run")
        elif name.startswith(OURS) and name not in USERS_OWN:
            warnings.append(f"env {name}: names that open with {OURS} belong to REX; ignored")
        else:
            env[name] = str(entry.get("value", ""))
    return env, warnings


def _launched(words: list[str]) -> list[str]:
    """The command without the launcher of pods with several devices: here each worker is started by itself."""
    if words[1:3] != ["-m", LAUNCHER]:
        return words
    return words[4:] if words[3:4] == ["--"] else words[3:]


def _working_directory(words: Iterable[str], manifest: Path, container_dir: Any) -> Path:
    """Relative paths of the command are looked up from here, then from the manifest's own folder."""
    script = next((word for word in words if word.endswith(".py")), None)
    here, beside = Path.cwd(), manifest.resolve().parent
    if script is None:
        return here
    folders = [here, beside]
    if isinstance(container_dir, str):
        folders += [here / container_dir.lstrip("/"), Path(container_dir)]
    for folder in folders:
        if (folder / script).is_file():
            return folder
    looked = ", ".join(str(folder) for folder in folders[:2])
    raise BadInput(f"{manifest}: the trainer's script {script!r} is not found; looked in {looked}")


def _import_path(before: str) -> list[str]:
    """The script imports the same rex_worker that this process has, also where it is not installed."""
    ours = str(Path(rex_worker.__file__).resolve().parent.parent)
    rest = [entry for entry in before.split(os.pathsep) if entry]
    return rest if ours in rest else [*rest, ours]
