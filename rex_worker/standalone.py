"""Workers that a launcher such as torchrun has started, without any operator: they bring their own planner along.

torchrun gives each process its rank and the address of a store, and leaves everything else to the script. Here rank 0
starts a planner beside itself (a process, because the worker never imports the operator) and tells the others through
the launcher's store where it is and by which token it knows them. From then on they are workers like any others: the
same channel, the same groups, plans that change while the training runs.

Where the operator's packages are not installed, nobody can plan: then the group keeps one even plan, and says so.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from rex_worker.channel import Introduction
from rex_worker.environment import Environment, is_loopback
from rex_worker.errors import ConfigurationError, first_line
from rex_worker.gang import EvenLink, LedLink
from rex_worker.lifetime import log_to_stderr
from rex_worker.link import Link, OperatorLink

log = logging.getLogger("rex.standalone")

PATIENCE = timedelta(minutes=15)
"""How long ranks wait for each other in the launcher's store."""
_LAST_READ_S = 10.0
_PLANNER = "rex_operator.local.standalone"
_READ = "rex/read"
_INSTALL = "pip install 'rex-training[operator]'"


@dataclass(frozen=True)
class Launch:
    """What a launcher told this process."""

    rank: int
    size: int
    local_rank: int
    attempt: str
    master: str
    one_host: bool

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Launch | None:
        """Read the launcher's variables; None when there was no launcher. Raises ``ConfigurationError``."""
        if not env.get("RANK") or not env.get("WORLD_SIZE"):
            return None
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
        if missing:
            raise ConfigurationError(
                f"RANK and WORLD_SIZE are set, as by torchrun, but {' and '.join(missing)} not; start the script with"
                " torchrun, or unset them to train in this process alone"
            )
        rank, size = _whole(env, "RANK"), _whole(env, "WORLD_SIZE")
        if not 0 <= rank < size:
            raise ConfigurationError(f"RANK is {rank} and WORLD_SIZE is {size}; ranks count from 0 to WORLD_SIZE - 1")
        master = env["MASTER_ADDR"]
        local_size = env.get("LOCAL_WORLD_SIZE")
        return cls(
            rank=rank,
            size=size,
            local_rank=_whole(env, "LOCAL_RANK") if env.get("LOCAL_RANK") else 0,
            attempt=env.get("TORCHELASTIC_RESTART_COUNT") or "0",
            master=master,
            one_host=local_size == str(size) if local_size else is_loopback(master),
        )


@dataclass(frozen=True)
class Standalone:
    """This process's place in a gang that was started by a launcher, agreed on with the other ranks."""

    launch: Launch
    environment: Environment
    store: Store
    """The launcher's; without torchrun's agent rank 0 serves it for the others, for as long as it holds it."""
    planner: subprocess.Popen[str] | None
    """On rank 0."""

    def link(self, introduction: Introduction) -> Link:
        """The connection to whoever plans."""
        if self.environment.channel_url is None:
            folder = PrefixStore(f"rex/{self.launch.attempt}/members", self.store)
            return EvenLink(self.environment, introduction, folder, self.launch.rank, self.launch.size)
        if self.planner is not None:
            return LedLink(self.environment, introduction, self.planner, self.store)
        return OperatorLink(self.environment, introduction)


def enter(environment: Environment, variables: Mapping[str, str] | None = None) -> Standalone | None:
    """Find the gang that this process belongs to; None when no launcher started it.

    Raises:
        ConfigurationError: What the launcher or the user has set cannot work.
    """
    env = os.environ if variables is None else variables
    launch = Launch.read(env) if environment.channel_url is None else None
    if launch is None:
        return None
    if not environment.emulate:
        _take_gpu(launch.local_rank)
    environment = replace(
        environment,
        worker_id=f"w{launch.rank}",
        device=_device_kind(env.get("REX_DEVICE", ""), launch),
        address=env.get("REX_ADDRESS") or _own_address(launch),
    )
    log_to_stderr(environment.worker_id)
    store = _launchers_store()
    key = f"rex/{launch.attempt}/planner"
    planner = None
    if launch.rank == 0:
        planner, news = _start_planner(environment.address, launch, env)
        store.set(key, json.dumps(news))
    else:
        news = _await_news(store, key)
        store.add(_READ, 1)
    if "error" in news:
        _let_all_read(launch, store)
        raise ConfigurationError(str(news["error"]))
    environment = replace(environment, job=news["job"], incarnation=news["life"])
    if "rex_worker.adapters" in sys.modules:
        _hide_launch()
    if "missing" in news:
        log.warning(
            "batches are not planned: %s is not installed, which the planner needs (%s); every worker keeps the even"
            " share that it starts with",
            news["missing"],
            _INSTALL,
        )
    else:
        environment = replace(
            environment,
            channel_url=news["url"],
            token=news["token"],
            ca=news["ca"],
            batch_initial=news["batch"] or environment.batch_initial,
        )
    return Standalone(launch, environment, store, planner)


# --- the planner ------------------------------------------------------------------------------------------------------


def _start_planner(
    host: str, launch: Launch, env: Mapping[str, str]
) -> tuple[subprocess.Popen[str] | None, dict[str, Any]]:
    """Start the planner; returns it and what all ranks must know."""
    life, token = secrets.token_hex(8), secrets.token_urlsafe(32)
    common = {"life": life, "job": "local/standalone"}
    if importlib.util.find_spec("rex_operator") is None:
        return None, common | {"missing": "rex_operator"}
    process = subprocess.Popen(  # noqa: S603 - the command is ours
        [sys.executable, "-P", "-m", _PLANNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_planner_environment(env),
        start_new_session=True,  # it must outlive signals meant for rank 0, to plan for those who are left
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101
    order = {
        "life": life,
        "size": launch.size,
        "token": token,
        "host": host,
        "encrypted": not is_loopback(host),
        "job_file": env.get("REX_JOB_FILE") or None,
        "run_dir": env.get("REX_RUN_DIR") or None,
    }
    try:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
    except (OSError, ValueError):
        return None, common | {"error": "the planner could not be started; what it said stands above"}
    if "url" not in answer:
        process.stdin.close()
        process.wait()
        return None, common | answer
    return process, common | {"token": token} | answer


def _planner_environment(env: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what is meant for workers; the planner imports what this process imports."""
    ours = str(Path(__file__).resolve().parent.parent)
    path = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != ours]
    rest = {name: value for name, value in env.items() if not name.startswith("REX_")}
    return rest | {"PYTHONPATH": os.pathsep.join([*path, ours])}


# --- the launcher's store ---------------------------------------------------------------------------------------------


def _launchers_store() -> Store:
    try:
        store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"the launcher's store at MASTER_ADDR:MASTER_PORT cannot be used: {first_line(error)}"
        ) from error
    kept: Store = store
    return kept


def _await_news(store: Store, key: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE.total_seconds()
    try:
        while not store.check([key]):  # not `get`, during which a signal would go unheard
            if time.monotonic() > deadline:
                raise ConfigurationError("rank 0 has not called rex.init(); every process must run the same script")
            time.sleep(0.05)
        news: dict[str, Any] = json.loads(store.get(key))
    except RuntimeError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"rank 0 has ended before the training began: {first_line(error)}") from error
    return news


def _let_all_read(launch: Launch, store: Store) -> None:
    """Before rank 0 ends, and the store with it, let the others learn why."""
    deadline = time.monotonic() + _LAST_READ_S
    while launch.rank == 0 and store.add(_READ, 0) < launch.size - 1 and time.monotonic() < deadline:
        time.sleep(0.05)


# --- this process -----------------------------------------------------------------------------------------------------


def _hide_launch() -> None:
    """The frameworks behind the adapters would form a process group of their own if they saw a launcher."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def _take_gpu(local_rank: int) -> None:
    """Make the local rank's GPU the current one, where the launcher shows all of them to every process."""
    count = torch.cuda.device_count()
    if count > 1:
        if local_rank >= count:
            raise ConfigurationError(
                f"LOCAL_RANK is {local_rank}, but there are {count} GPUs; start one process for each GPU"
            )
        torch.cuda.set_device(local_rank)


def _device_kind(wish: str, launch: Launch) -> str:
    """``REX_DEVICE`` names one kind, or one for each rank; else it is what the GPU calls itself."""
    kinds = [kind.strip() for kind in wish.split(",")]
    if len(kinds) not in (1, launch.size):
        raise ConfigurationError(
            f"REX_DEVICE is {wish!r}: give one kind of device, or one for each of the {launch.size} ranks"
        )
    kind = kinds[launch.rank % len(kinds)]
    if kind:
        return kind
    if not torch.cuda.is_available():
        return "cpu"
    name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower())
    return name.removeprefix("nvidia-").strip("-")[:63]


def _own_address(launch: Launch) -> str:
    """The address by which the other workers reach this one: on several hosts, the one that faces rank 0's host."""
    if launch.one_host:
        return "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(launch.master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(f"MASTER_ADDR is {launch.master!r}, which cannot be reached: {error}") from None
    if is_loopback(address):
        raise ConfigurationError(
            f"MASTER_ADDR is {launch.master!r}, which is {address} on this host, where other hosts cannot reach it;"
            " set REX_ADDRESS to this host's address, or MASTER_ADDR to one that all hosts know"
        )
    return address


def _whole(env: Mapping[str, str], name: str) -> int:
    text = env[name]
    if not text.isdecimal():
        raise ConfigurationError(f"{name} is {text!r}; it must be a whole number")
    return int(text)
