"""The operator as a process of its own, so that it can be killed like one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class OperatorProcess:
    """``python -m rex_operator.controller`` against a kubeconfig; its log is kept over restarts."""

    def __init__(self, kubeconfig: Path, folder: Path, channel_port: int, health_port: int) -> None:
        self._kubeconfig, self.channel_port, self.health_port = kubeconfig, channel_port, health_port
        self.log = folder / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._lines_before = 0
        """Lines of the log that are of earlier lives."""

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and return at once."""
        self._lives += 1
        self._lines_before = len(self.lines())
        command = [
            sys.executable,
            "-m",
            "rex_operator.controller",
            f"--kubeconfig={self._kubeconfig}",
            f"--channel-port={self.channel_port}",
            f"--channel-url=wss://127.0.0.1:{self.channel_port}/v1/channel",
            "--channel-host=127.0.0.1",
            f"--health-port={self.health_port}",
            "--log-level=debug",
        ]
        env = {**os.environ, "POD_NAME": f"operator-{self._lives}", "POD_NAMESPACE": "rex-system"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL: nothing is tidied up."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as a kubelet does; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)

    def lines(self) -> list[dict[str, str]]:
        """The whole lines of the log so far."""
        found = []
        for line in self.log.read_text().split("\n")[:-1] if self.log.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"level": "error", "message": line})
        return found

    async def leads(self) -> None:
        """Wait until this life leads and serves the channel."""
        await until(self._leads, "the operator leads", self.log)

    def _leads(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the operator has ended:\n{self.log.read_text()[-4000:]}"
        return any("Worker channel on port" in line["message"] for line in self.lines()[self._lines_before :])


async def until(what: object, name: str, log: Path | None = None, seconds: float = 90) -> None:
    """Wait until ``what()`` is true; awaits it when it is asynchronous."""
    end = time.monotonic() + seconds
    while True:
        answer = what()  # type: ignore[operator]
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > end:
            told = "\n" + log.read_text()[-4000:] if log is not None else ""
            raise AssertionError(f"not within {seconds:.0f} s: {name}{told}")
        await asyncio.sleep(0.1)
