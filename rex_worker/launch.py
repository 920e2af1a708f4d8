"""Runs one worker process per device of a pod: ``python -m rex_worker.launch -- python train.py``.

A node has four or eight devices that talk to each other fast, so people ask for a pod with all of them; a worker has
one device. This is the first process of such a pod: it starts the command once per device, each time as another worker
that sees its own device only, passes signals on, and ends when all have ended.

A process that dies alone is a lost worker: its siblings go on, and it is started again in the pod, whose devices and
image are at hand. The new process tells the operator how the one before ended, so each end is charged like that of a
pod. What cannot be accounted for in that way ends the pod, which the operator then replaces as a whole: a process that
ended before it had reached the operator (the script fails before ``rex.init``), or for the fourth time (the device may
be broken). The siblings are asked to leave first, which costs them no step. Without ``REX_DEVICES_PER_POD``, or with 1,
the command simply takes this process's place.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rex_worker.errors import ConfigurationError
from rex_worker.pod import MAX_DEVICES, life_name, worker_names

log = logging.getLogger("rex.launch")

MAX_RESTARTS = 3
"""How often the process of one device is started again within the life of a pod."""
LAST_GRACE_S = 2.0
"""How long after its own deadline a worker may take to end before it is killed."""
NOT_FOUND = 127
USAGE = 2

_WATCHED = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
_SELECTORS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""What narrows the devices that a process sees; of several, the first is the last to act."""
_PR_SET_PDEATHSIG = 1


@dataclass
class Seat:
    """One device and the process that has it."""

    index: int
    worker_id: str
    pid: int = 0
    """0: none runs."""
    exits: list[int] = field(default_factory=list)
    """How the processes before this one ended."""
    due: float | None = None
    """When the next is started, on the monotonic clock."""

    @property
    def open(self) -> bool:
        """Whether a process runs or will be started."""
        return self.pid != 0 or self.due is not None


class Launcher:
    """The processes of one pod. Runs in the main thread of a process that has nothing else to do.

    Args:
        command: what each worker runs.
        variables: the pod's environment.

    Raises:
        ConfigurationError: The environment is not that of a pod with several devices.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command, self._variables = list(command), dict(variables)
        self._devices = devices_per_pod(variables)
        pod = variables.get("REX_WORKER_ID") or "w0"
        self._seats = [Seat(i, name) for i, name in enumerate(worker_names(pod, self._devices))]
        self._uid = variables.get("REX_INCARNATION") or "pod"
        self._visible = visible_devices(variables, self._devices)
        self._grace_s = float(variables.get("REX_GRACE_SECONDS") or 30.0)
        self._leaving = False
        self._deadline: float | None = None
        """When those that were asked to leave are killed."""
        self._finished = False
        """Some process has ended well: the training is over, or this pod's part in it."""
        self._failed_with = 0
        """Exit code of the first process that failed for good."""
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def run(self) -> int:
        """Run all workers to their end; the pod's exit code, 0 only when each has ended with 0 in its last life."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._folder = Path(tempfile.mkdtemp(prefix="rex-launch-"))
        try:
            for seat in self._seats:
                self._start(seat, before)
            while any(seat.open for seat in self._seats):
                self._wait(before)
            return self._failed_with
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait(self, mask: set[signal.Signals | int]) -> None:
        """Wait for the next signal or appointment, and answer it."""
        now = time.monotonic()
        times = [time for time in (self._deadline, *(seat.due for seat in self._seats)) if time is not None]
        # An hour stands for ever: the call takes no infinity.
        told = signal.sigtimedwait(_WATCHED, max(0.0, min(times) - now) if times else 3600.0)
        if told is not None and told.si_signo != signal.SIGCHLD:
            log.info("%s: asking the workers to leave", signal.Signals(told.si_signo).name)
            self._leave()
        self._reap()
        now = time.monotonic()
        for seat in self._seats:
            if seat.due is not None and now >= seat.due:
                seat.due = None
                self._start(seat, mask)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            for seat in self._seats:
                if seat.pid:
                    log.warning("%s did not leave in time: killed", seat.worker_id)
                    _signal_group(seat.pid, signal.SIGKILL)

    def _start(self, seat: Seat, mask: set[signal.Signals | int]) -> None:
        """Start the next process of a seat, with the signal mask that this process was started with."""
        environment = self._environment(seat)
        parent = os.getpid()
        seat.pid = os.fork()
        if seat.pid:
            return
        try:  # the child: nothing here may return into the launcher's own loop
            os.setsid()
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                os.execvpe(self._command[0], self._command, environment)  # noqa: S606 - the user's own command
        except OSError as error:
            os.write(2, f"rex_worker.launch: cannot run {self._command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(NOT_FOUND)

    def _environment(self, seat: Seat) -> dict[str, str]:
        environment = {name: text for name, text in self._variables.items() if name != "REX_DEVICES_PER_POD"}
        share = max(1, len(os.sched_getaffinity(0)) // self._devices)
        environment.setdefault("OMP_NUM_THREADS", str(share))
        environment |= {
            "REX_WORKER_ID": seat.worker_id,
            "REX_INCARNATION": life_name(self._uid, seat.index, self._devices, len(seat.exits)),
            "REX_EXITS": ",".join(str(code) for code in seat.exits),
            "REX_REACHED_FILE": str(self._mark(seat)),
            **self._visible[seat.index],
        }
        return environment

    def _mark(self, seat: Seat) -> Path:
        """The file that says that the present process of the seat has reached the operator."""
        return self._folder / f"{seat.index}-{len(seat.exits)}"

    def _reap(self) -> None:
        """Take note of the processes that have ended; as a pod's first process, of other people's orphans, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            seat = next((seat for seat in self._seats if seat.pid == pid), None)
            if seat is not None:
                _signal_group(pid, signal.SIGKILL)  # what it has left behind
                seat.pid = 0
                code = os.waitstatus_to_exitcode(status)
                self._ended(seat, code if code >= 0 else 128 - code)

    def _ended(self, seat: Seat, code: int) -> None:
        if code == 0:
            self._finished = True
            for other in self._seats:
                if other.due is not None:  # too late to begin again
                    other.due = None
                    self._failed_with = self._failed_with or other.exits[-1]
            return
        why = self._why_not_again(seat)
        if not why:
            seat.exits.append(code)
            again = len(seat.exits)
            seat.due = time.monotonic() + (0.0 if again == 1 else 2.0 ** (again - 1))
            log.warning(
                "%s ended with exit code %d and is started again (%d of %d)", seat.worker_id, code, again, MAX_RESTARTS
            )
            return
        log.error("%s ended with exit code %d; %s", seat.worker_id, code, why)
        self._failed_with = self._failed_with or code
        if not self._finished:
            self._leave()

    def _why_not_again(self, seat: Seat) -> str:
        """Why a process that failed is not started again in this pod; empty when it is."""
        if self._leaving or self._failed_with:
            return "this pod is on its way out"
        if self._finished:
            return "others have ended well, so it is not started again"
        if not self._mark(seat).exists():
            return "it had not reached the operator (does the script call rex.init()?), so this pod ends"
        if len(seat.exits) >= MAX_RESTARTS:
            return f"it was started again {MAX_RESTARTS} times, so this pod ends"
        return ""

    def _leave(self) -> None:
        """Ask all workers to leave; what is not gone in time is killed. Asked again, nothing changes."""
        if self._leaving:
            return
        self._leaving = True
        self._deadline = time.monotonic() + self._grace_s + LAST_GRACE_S
        for seat in self._seats:
            if seat.due is not None:
                seat.due = None
                self._failed_with = self._failed_with or seat.exits[-1]
            if seat.pid:
                with suppress(ProcessLookupError):
                    os.kill(seat.pid, signal.SIGTERM)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def devices_per_pod(variables: Mapping[str, str]) -> int:
    """How many devices this pod has. Raises ``ConfigurationError``."""
    text = variables.get("REX_DEVICES_PER_POD") or "1"
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DEVICES:
        raise ConfigurationError(f"REX_DEVICES_PER_POD is {text!r}; it must be a whole number from 1 to {MAX_DEVICES}")
    return int(text)


def visible_devices(variables: Mapping[str, str], devices: int) -> list[dict[str, str]]:
    """What each process must be told to see its own device only.

    A list that is already set is shared out in its order; an empty one hides all devices and stays. Without a list the
    devices are counted, by a variable that ROCm reads as well. Raises ``ConfigurationError`` when a list is too short.
    """
    name = next((name for name in _SELECTORS if name in variables), None)
    if name is None:
        return [{"CUDA_VISIBLE_DEVICES": str(index)} for index in range(devices)]
    listed = [entry.strip() for entry in variables[name].split(",") if entry.strip()]
    if not listed:
        return [{} for _ in range(devices)]
    if len(listed) < devices:
        raise ConfigurationError(
            f"{name} is {variables[name]!r}, {len(listed)} of the {devices} devices that REX_DEVICES_PER_POD promises"
        )
    return [{name: listed[index]} for index in range(devices)]


def main(words: Sequence[str]) -> int:
    """Launch ``words``, with or without a leading ``--``; returns the exit code."""
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        sys.stderr.write("usage: python -m rex_worker.launch -- COMMAND [ARGUMENT ...]\n")
        return USAGE
    logging.basicConfig(level=logging.INFO, format="%(asctime)s launch %(levelname)s: %(message)s", stream=sys.stderr)
    try:
        if devices_per_pod(os.environ) > 1:
            return Launcher(command, os.environ).run()
        os.execvp(command[0], command)  # noqa: S606 - the user's own command takes this process's place
    except ConfigurationError as error:
        sys.stderr.write(f"rex_worker.launch: {error}\n")
        return USAGE
    except OSError as error:
        sys.stderr.write(f"rex_worker.launch: cannot run {command[0]}: {error.strerror}\n")
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
