"""The launcher of a pod with several devices, with real processes: who sees what, who goes on, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.worker.operator_double import ROOT

pytestmark = pytest.mark.component

SCRIPT = str(Path(__file__).with_name("pod_script.py"))


class Pod:
    """A launcher and its processes, which do what files in ``folder`` tell them."""

    def __init__(self, folder: Path, *words: str, devices: int = 2, **variables: str) -> None:
        self.folder = folder
        hidden = ("REX_", "CUDA_", "HIP_", "ROCR_", "OMP_")
        environment = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "REX_WORKER_ID": "w3",
            "REX_INCARNATION": "uid",
            "REX_DEVICES_PER_POD": str(devices),
            "REX_GRACE_SECONDS": "20",
            **variables,
        }
        command = [sys.executable, "-m", "rex_worker.launch", "--", sys.executable, SCRIPT, str(folder), *words]
        self.log = folder / "log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def told(self, life: str) -> dict[str, Any]:
        """What a life says of itself, as soon as it is there."""
        self.wait(lambda: (self.folder / f"{life}.json").exists(), life)
        found: dict[str, Any] = json.loads((self.folder / f"{life}.json").read_text())
        return found

    def end(self, worker: str, code: int) -> None:
        """Have a worker exit."""
        part = self.folder / f"{worker}.part"
        part.write_text(str(code))
        part.rename(self.folder / f"{worker}.exit")

    def code(self) -> int:
        """The launcher's exit code, once it ends."""
        return self.process.wait(60)

    def wait(self, what: Callable[[], bool], told: str) -> None:
        until = time.monotonic() + 60
        while not what():
            assert time.monotonic() < until, f"{told} never came:\n{self.log.read_text()}"
            time.sleep(0.02)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    pods: list[Pod] = []

    def start(*words: str, **settings: Any) -> Pod:
        pods.append(Pod(tmp_path, *words, **settings))
        return pods[-1]

    yield start
    for pod in pods:
        pod.process.kill()
        pod.process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_each_process_is_a_worker_of_its_own_with_a_device_of_its_own(launch: Callable[..., Pod]) -> None:
    pod = launch(devices=3)
    told = [pod.told(f"uid-d{device}") for device in range(3)]
    assert [one["REX_WORKER_ID"] for one in told] == ["w3-0", "w3-1", "w3-2"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in told] == ["0", "1", "2"]
    assert all(one["REX_DEVICES_PER_POD"] is None and one["REX_EXITS"] == "" for one in told)
    assert all(int(one["OMP_NUM_THREADS"]) >= 1 for one in told)
    for worker in ("w3-0", "w3-1", "w3-2"):
        pod.end(worker, 0)
    assert pod.code() == 0


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,GPU-c"}, [("GPU-a", None, None), ("GPU-b", None, None)]),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, [(None, "4", None), (None, "5", None)]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [(None, None, "2"), (None, None, "3")]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [("", None, None), ("", None, None)]),
    ],
)
def test_a_list_of_devices_that_is_already_set_is_shared_out(
    launch: Callable[..., Pod], given: Mapping[str, str], seen: list[tuple[str | None, ...]]
) -> None:
    pod = launch(**given)
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    assert [tuple(pod.told(f"uid-d{i}")[name] for name in names) for i in range(2)] == seen


def test_one_that_dies_is_started_again_as_another_life_and_its_siblings_go_on(launch: Callable[..., Pod]) -> None:
    pod = launch()
    first, sibling = pod.told("uid-d1"), pod.told("uid-d0")
    os.kill(first["pid"], signal.SIGKILL)
    again = pod.told("uid-d1-r1")
    assert (again["REX_WORKER_ID"], again["REX_EXITS"]) == ("w3-1", "137")
    pod.end("w3-1", 3)
    assert pod.told("uid-d1-r2")["REX_EXITS"] == "137,3"
    assert alive(sibling["pid"]) and not (pod.folder / "uid-d0.left").exists()
    pod.end("w3-0", 0)
    pod.end("w3-1", 0)
    assert pod.code() == 0, "what counts is how each worker's last life ended"


def test_c_094_the_fourth_end_of_one_process_ends_the_pod_and_the_siblings_leave_first(
    launch: Callable[..., Pod],
) -> None:
    pod = launch()
    pod.told("uid-d0")
    for life in ("uid-d1", "uid-d1-r1", "uid-d1-r2", "uid-d1-r3"):
        pod.told(life)
        pod.end("w3-1", 7)
    assert pod.code() == 7
    assert (pod.folder / "uid-d0.left").exists()
    assert not (pod.folder / "uid-d1-r4.json").exists()


def test_one_that_never_reached_the_operator_ends_the_pod_at_once(launch: Callable[..., Pod]) -> None:
    pod = launch("unreached")
    pod.told("uid-d0")
    pod.told("uid-d1")
    pod.end("w3-0", 2)
    assert pod.code() == 2
    assert (pod.folder / "uid-d1.left").exists()
    assert "does the script call rex.init()?" in pod.log.read_text()


def test_after_one_has_ended_well_a_failure_is_the_pods_own(launch: Callable[..., Pod]) -> None:
    pod = launch(devices=3)
    for device in range(3):
        pod.told(f"uid-d{device}")
    pod.end("w3-0", 0)
    pod.wait(lambda: not (pod.folder / "w3-0.exit").exists(), "the end of w3-0")
    pod.wait(lambda: not alive(pod.told("uid-d0")["pid"]), "the end of w3-0")
    pod.end("w3-1", 5)
    pod.end("w3-2", 0)
    assert pod.code() == 5


def test_a_signal_to_leave_reaches_all_and_their_leaving_is_success(launch: Callable[..., Pod]) -> None:
    pod = launch()
    for device in range(2):
        pod.told(f"uid-d{device}")
    pod.process.send_signal(signal.SIGTERM)
    assert pod.code() == 0
    assert (pod.folder / "uid-d0.left").exists() and (pod.folder / "uid-d1.left").exists()


def test_one_that_will_not_leave_is_killed_at_its_deadline(launch: Callable[..., Pod]) -> None:
    pod = launch("stubborn", REX_GRACE_SECONDS="0")
    pids = [pod.told(f"uid-d{device}")["pid"] for device in range(2)]
    pod.process.send_signal(signal.SIGTERM)
    assert pod.code() == 137
    assert not any(alive(pid) for pid in pids)


def test_no_process_outlives_a_launcher_that_is_killed(launch: Callable[..., Pod]) -> None:
    pod = launch("stubborn")
    pids = [pod.told(f"uid-d{device}")["pid"] for device in range(2)]
    pod.process.kill()
    pod.process.wait()
    pod.wait(lambda: not any(alive(pid) for pid in pids), "the end of the orphans")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "rex_worker.launch", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_with_one_device_the_command_takes_the_launchers_place() -> None:
    code = "import os, sys; print(os.environ.get('REX_EXITS')); sys.exit(9)"
    done = run("--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (9, "None\n")


@pytest.mark.parametrize(
    ("words", "variables", "told", "code"),
    [
        ((), {}, "usage: python -m rex_worker.launch", 2),
        (("--", "no-such-command"), {}, "cannot run no-such-command: No such file", 127),
        (("--", "no-such-command"), {"REX_DEVICES_PER_POD": "2"}, "cannot run no-such-command: No such file", 127),
        (("--", "true"), {"REX_DEVICES_PER_POD": "two"}, "it must be a whole number from 1 to 16", 2),
        (
            ("--", "true"),
            {"REX_DEVICES_PER_POD": "4", "CUDA_VISIBLE_DEVICES": "0,1"},
            "CUDA_VISIBLE_DEVICES is '0,1', 2 of the 4 devices",
            2,
        ),
    ],
)
def test_what_cannot_be_launched_is_told(
    words: tuple[str, ...], variables: dict[str, str], told: str, code: int
) -> None:
    done = run(*words, **variables)
    assert told in done.stderr
    assert done.returncode == code


def test_the_launcher_itself_is_small() -> None:
    code = "import sys, rex_worker.launch; print({'torch', 'aiohttp', 'pydantic', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
