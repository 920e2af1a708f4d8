"""Worker processes that need not import torch first: forked from a process that has, and real in everything else.

Reads one JSON request per line: {"script", "env", "log", "exit"}; forks; answers with the child's pid. The child
runs the script as ``__main__`` with its own environment, session and output, and ends as any Python process ends;
its exit code (negative: the signal) is written to the file ``exit``.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path

import numpy  # noqa: F401
import torch
import torch._dynamo

import rex_worker.session  # noqa: F401

_children: dict[int, str] = {}


def _reap(number: int, frame: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        path = Path(_children.pop(pid))
        aside = path.with_suffix(".aside")
        aside.write_text(str(os.waitstatus_to_exitcode(status)))
        aside.rename(path)


def _become(request: dict[str, str | dict[str, str]]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setsid()
    out = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    environment = request["env"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = [str(request["script"])]
    runpy.run_path(str(request["script"]), run_name="__main__")


def main() -> None:
    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            _become(request)
            return
        _children[pid] = request["exit"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
