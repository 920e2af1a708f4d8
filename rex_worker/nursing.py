"""What a reading process must do first, so that it neither outlives the training process nor holds its connections.

A forked process has copies of all sockets of its parent. As long as it lives, the death of the parent closes none of
them, and the peers of a group would wait for a dead worker. And a signal to the process group, which tells the worker
to go, must not end the processes that it still needs to read the data of its last steps.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info

_PR_SET_PDEATHSIG = 1
_DESCRIPTORS = Path("/proc/self/fd")


class Birth:
    """The ``worker_init_fn`` of the reading processes: REX's part, then the script's own."""

    def __init__(self, then: Callable[[int], None] | None, context: Any) -> None:
        method = context if isinstance(context, str) else getattr(context, "get_start_method", lambda: None)()
        self._forked = (method or multiprocessing.get_start_method()) == "fork"
        self._then = then

    def __call__(self, number: int) -> None:
        """Prepare reading process ``number``."""
        with suppress(PermissionError):  # it leads a process group already
            os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if self._forked:
                let_go_of_connections()
        info = get_worker_info()
        # The script's own dataset, which its worker_init_fn expects to find there.
        object.__setattr__(info, "dataset", info.dataset.reader.dataset)  # type: ignore[union-attr]
        if self._then is not None:
            self._then(number)


def let_go_of_connections() -> None:
    """Close the inherited network sockets. Their numbers stay taken, so that nobody mistakes another file for one."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for entry in list(_DESCRIPTORS.iterdir()):
        number = int(entry.name)
        with suppress(OSError):
            if not os.readlink(entry).startswith("socket:"):
                continue
            inherited = socket.socket(fileno=os.dup(number))
            family = inherited.family
            inherited.close()
            if family in (socket.AF_INET, socket.AF_INET6):
                os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)
