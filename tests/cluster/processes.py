"""Long-running processes that are known by pid *and* start time, on disk, so that a later run can end them.

A crashed test run leaves its cluster behind. The next one must end exactly those processes: a pid alone may have been
given to a stranger meanwhile, a name would hit other people's kubelets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.shell import ClusterError, tail

_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Process:
    """One life of one process."""

    name: str
    pid: int
    started: int
    """Clock ticks since boot, field 22 of ``/proc/PID/stat``."""
    log: Path

    def alive(self) -> bool:
        """Whether this very process still runs."""
        child = _children.get(self.pid)
        if child is not None:
            child.poll()
        return _start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def spawn(name: str, argv: Iterable[str | Path], folder: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a process in its own session; its log and pid file lie in ``folder`` under its name."""
    log = folder / f"{name}.log"
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    started = _start_time(child.pid)
    if started is None:
        child.wait()
        raise ClusterError(f"{name} ended at once\n{tail(log)}")
    _children[child.pid] = child
    process = Process(name, child.pid, started, log)
    pid_file = folder / f"{name}.pid"
    partial = pid_file.with_suffix(".pid-partial")
    partial.write_text(json.dumps({"pid": process.pid, "started": process.started}))
    partial.rename(pid_file)
    return process


def recorded(folder: Path) -> list[Process]:
    """The processes that an earlier or this run started in ``folder``, running or not."""
    found = []
    for path in sorted(folder.glob("*.pid")):
        try:
            data = json.loads(path.read_text())
            found.append(Process(path.stem, int(data["pid"]), int(data["started"]), path.with_suffix(".log")))
        except (OSError, ValueError, KeyError):
            continue
    return found


def stop(processes: Iterable[Process], grace: float) -> None:
    """End processes: SIGTERM, after ``grace`` seconds SIGKILL. Returns when all are gone."""
    processes = list(processes)
    if grace > 0:
        for process in processes:
            process.signal(signal.SIGTERM)
        _wait_gone(processes, grace)
    for process in processes:
        process.signal(signal.SIGKILL)
    _wait_gone(processes, 10)
    for process in processes:
        child = _children.pop(process.pid, None)
        if child is not None:
            child.wait(10)


def _wait_gone(processes: list[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)


def await_healthy(process: Process, probe: Callable[[], str | None], seconds: float) -> None:
    """Wait until ``probe`` returns None; what it returns else is the reason of the wait.

    Raises:
        ClusterError: the process ended or the deadline passed; with the reason and the end of the process's log.
    """
    deadline = time.monotonic() + seconds
    while (reason := probe()) is not None:
        if not process.alive():
            raise ClusterError(f"{process.name} ended\n{tail(process.log)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{process.name} is not healthy after {seconds:.0f} s: {reason}\n{tail(process.log)}")
        time.sleep(0.1)


def inhabitants(network_namespace: Path) -> list[Process]:
    """All processes whose network namespace is the given one: nobody else enters a namespace that is ours."""
    try:
        inode = network_namespace.stat().st_ino
    except FileNotFoundError:
        return []
    return [process for process in _all() if _namespace_of(process.pid) == inode]


def descendants(of: Iterable[Process]) -> list[Process]:
    """All processes below the given ones, without them."""
    roots = {process.pid for process in of}
    everyone = list(_all())
    parents = {process.pid: _parent(process.pid) for process in everyone}

    def below(pid: int) -> bool:
        seen = pid
        while (seen := parents.get(seen) or 0) > 1:
            if seen in roots:
                return True
        return False

    return [process for process in everyone if process.pid not in roots and below(process.pid)]


def _all() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (started := _start_time(int(entry))) is not None:
            yield Process(f"pid {entry}", int(entry), started, Path(os.devnull))


def _namespace_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[1])
