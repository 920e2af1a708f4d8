"""The settings that a worker is started with.

Both shells of the operator hand a worker its place in the job through environment variables. They are read once,
checked together, and refused in one sentence each; without ``REX_CHANNEL_URL`` there is no operator, and the script
trains alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from rex_worker.errors import ConfigurationError

_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Environment:
    """What the process was told; all times in seconds, sizes in bytes."""

    job: str
    worker_id: str
    incarnation: str
    device: str
    """Kind of the device, such as ``a100``; workers of one kind share a throughput curve."""
    pool: str = ""
    channel_url: str | None = None
    """None: no operator; the session is a single process."""
    token_file: Path | None = None
    ca_file: Path | None = None
    address: str = "127.0.0.1"
    emulate: bool = False
    emulate_scale: float = 1.0
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 200
    checkpoint_keep: int = 3
    seed: int = 0
    batch_initial: int = 0
    """The global batch that rates and schedules are meant for; 0: not told, as without an operator."""
    grace_s: float = 30.0
    """How long the process may go on after SIGTERM."""
    exits: tuple[int, ...] = ()
    """How this worker's earlier processes in the same pod ended."""
    reached_file: Path | None = None
    """Made once the operator has been reached: tells the pod's launcher that a new process can be accounted for."""
    token: str = field(default="", repr=False)
    """A standalone gang's own; in a job it is read from ``token_file``."""
    ca: str = ""
    """Certificate (PEM) of a standalone gang's CA."""

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Read ``os.environ`` (or ``variables``). Raises ``ConfigurationError`` naming the variable at fault."""
        env = os.environ if variables is None else variables
        url = env.get("REX_CHANNEL_URL") or None
        if url is not None:
            _check_url(url)
            for name in ("REX_JOB", "REX_WORKER_ID", "REX_INCARNATION"):
                if not env.get(name):
                    raise ConfigurationError(f"{name} is not set; a worker with REX_CHANNEL_URL needs it")
            _check_launched(env)
        return cls(
            job=env.get("REX_JOB") or "local/script",
            worker_id=env.get("REX_WORKER_ID") or "w0",
            incarnation=env.get("REX_INCARNATION") or "single",
            device=env.get("REX_DEVICE") or "cpu",
            pool=env.get("REX_POOL", ""),
            channel_url=url,
            token_file=_path(env, "REX_TOKEN_FILE"),
            ca_file=_path(env, "REX_CA_FILE"),
            address=env.get("REX_ADDRESS") or "127.0.0.1",
            emulate=env.get("REX_EMULATE") == "1",
            emulate_scale=_number(env, "REX_EMULATE_SCALE", 1.0, low=1e-6, high=1e6),
            checkpoint_dir=_path(env, "REX_CHECKPOINT_DIR"),
            checkpoint_every=int(_number(env, "REX_CHECKPOINT_EVERY", 200, low=1, high=1e9, whole=True)),
            checkpoint_keep=int(_number(env, "REX_CHECKPOINT_KEEP", 3, low=1, high=1e6, whole=True)),
            seed=int(_number(env, "REX_JOB_SEED", 0, low=0, high=_MAX_SEED, whole=True)),
            batch_initial=int(_number(env, "REX_BATCH_INITIAL", 0, low=0, high=1e9, whole=True)) if url else 0,
            grace_s=_number(env, "REX_GRACE_SECONDS", 30.0, low=0.0, high=1e6),
            exits=_exits(env),
            reached_file=_path(env, "REX_REACHED_FILE"),
        )


def is_loopback(host: str | None) -> bool:
    """Whether ``host`` is this machine itself, where a connection needs no encryption."""
    if host == "localhost":
        return True
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigurationError(f"REX_CHANNEL_URL is {url!r}; it must look like wss://host:port/v1/channel")
    if parts.scheme == "ws" and not is_loopback(parts.hostname):
        raise ConfigurationError(
            f"REX_CHANNEL_URL is {url!r}: the channel carries a token, so plain ws is only for this machine itself;"
            " use wss with REX_CA_FILE"
        )


def _check_launched(env: Mapping[str, str]) -> None:
    """The launcher keeps this variable to itself: who sees it was started in the launcher's place."""
    devices = env.get("REX_DEVICES_PER_POD") or "1"
    if devices != "1":
        raise ConfigurationError(
            f"REX_DEVICES_PER_POD is {devices}, so this pod needs a process for each device: let the trainer's command"
            " be `python -m rex_worker.launch -- python train.py`"
        )


def _exits(env: Mapping[str, str]) -> tuple[int, ...]:
    text = env.get("REX_EXITS") or ""
    codes = text.split(",") if text else []
    if not all(code.isdecimal() and 1 <= int(code) <= 255 for code in codes):
        raise ConfigurationError(f"REX_EXITS is {text!r}; it must be a list of exit codes from 1 to 255, such as 1,137")
    return tuple(int(code) for code in codes)


def _path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name)
    if not text:
        return None
    if "\0" in text or len(text) > 4095:
        raise ConfigurationError(f"{name} is not a path: it is too long or has a NUL character")
    return Path(text)


def _number(
    env: Mapping[str, str], name: str, default: float, *, low: float, high: float, whole: bool = False
) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise ConfigurationError(f"{name} is {text!r}; it must be a {kind} from {low:g} to {high:g}")
    return value
