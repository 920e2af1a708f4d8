"""One life of a worker as a process of this machine, which never outlives the run.

Each worker is the leader of a session of its own: the terminal's Ctrl-C does not reach it (the run decides what it
means), and whatever it started itself can be ended with it. Should the run be killed, the kernel ends the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
TAIL_BYTES = 4096
TAIL_LINES = 15


class WorkerProcess:
    """A running worker."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> WorkerProcess:
        """Start ``command``; its output is added to ``log``. Raises ``OSError`` when it cannot be started."""
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent if _LIBC is not None else None,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id, also of its group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end, end what it left behind, and return the exit code (128 + signal for signals)."""
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Ask it to leave."""
        if self.running:
            self._process.terminate()

    def kill(self) -> None:
        """End it and all that it started, at once."""
        self._signal_group(signal.SIGKILL)

    def log_tail(self) -> str:
        """The last lines that it printed."""
        return log_tail(self._log)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def log_tail(log: Path) -> str:
    """Return the last lines of a log file, or nothing."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
