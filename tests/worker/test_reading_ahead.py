"""Processes that read ahead: same batches, one life, errors with their origin, and nothing left behind."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import rex_worker as rex
from rex_worker.loader import MapSource
from rex_worker.prefetch import Processes
from rex_worker.recipe import recipe
from rex_worker.sampler import Outlook, Position
from tests.worker.readable import Broken, BrokenStream, Drawn, DrawnStream, Opened, children, open_file, runs, train

pytestmark = [
    pytest.mark.component,
    # Python 3.12 warns of what torch's DataLoader does everywhere.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

CPU = torch.device("cpu")


_others: set[int] = set()
"""Children of this process before the test: those of other tests' fixtures."""


def readers() -> set[int]:
    return children() - _others


@pytest.fixture(autouse=True)
def nothing_left(alone: None) -> Iterator[None]:
    _others.clear()
    _others.update(children())
    yield
    assert not readers(), "a reading process was left behind"


def batches(dataset: Any, **options: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    train(dataset, lambda session, batch: seen.append(batch), **options)
    return seen


def orders(seen: list[dict[str, Any]]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in seen]


def draws(seen: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[float, ...]]:
    """What each sample drew, by its occurrence."""
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    for batch in seen:
        for index, *values in zip(
            batch["index"].tolist(), *(column.tolist() for column in batch["drawn"]), strict=True
        ):
            epoch = sum(1 for key in found if key[0] == index)
            found[index, epoch] = tuple(values)
    return found


@pytest.mark.parametrize("dataset", [Drawn(), DrawnStream()], ids=["map", "stream"])
def test_the_batches_are_those_that_one_process_reads(dataset: Any) -> None:
    alone = batches(dataset, batch_size=16)
    for processes in (1, 2):
        ahead = batches(dataset, batch_size=16, num_workers=processes)
        assert orders(ahead) == orders(alone)
        assert all(torch.equal(one["x"], other["x"]) for one, other in zip(alone, ahead, strict=True))


def test_what_a_sample_draws_hangs_on_the_sample_and_the_epoch_alone() -> None:
    first = draws(batches(Drawn(), batch_size=16, num_workers=1))
    assert len(first) == 120 and len(set(first.values())) == 120, "all different, in both epochs"
    assert draws(batches(Drawn(), batch_size=7, num_workers=2, prefetch=3)) == first
    part = Subset(Drawn(), range(59, -1, -1))
    other = draws(batches(part, batch_size=16, num_workers=1))
    assert draws(batches(part, batch_size=9, num_workers=1)) == other
    stream = draws(batches(DrawnStream(), batch_size=16))
    assert draws(batches(DrawnStream(), batch_size=7, num_workers=1)) == stream


# Samples that the training process reads by index draw from its generators, as with torch's DataLoader.
@pytest.mark.parametrize(
    ("dataset", "options"),
    [(Drawn(), {"num_workers": 1}), (DrawnStream(), {"num_workers": 1}), (DrawnStream(), {})],
    ids=["map ahead", "stream ahead", "stream"],
)
def test_reading_leaves_the_scripts_own_generators_alone(dataset: Any, options: dict[str, Any]) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    batches(dataset, batch_size=16, **options)
    found = random.random(), float(np.random.rand()), float(torch.rand(()))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.nn.Linear(3, 1)
    assert found == (random.random(), float(np.random.rand()), float(torch.rand(())))


def test_started_by_spawn_it_is_the_same() -> None:
    spawned = batches(Drawn(), batch_size=16, num_workers=1, multiprocessing_context="spawn", epochs=1)
    assert orders(spawned) == orders(batches(Drawn(), batch_size=16, epochs=1))


@pytest.mark.parametrize("dataset", [Broken(), BrokenStream()], ids=["map", "stream"])
def test_an_error_in_the_dataset_reaches_the_script_with_its_traceback(dataset: Any) -> None:
    seen: list[Any] = []
    with pytest.raises(LookupError, match="sample 17 cannot be read") as error:
        train(dataset, lambda session, batch: seen.append(batch), batch_size=4, num_workers=2, shuffle=None)
    assert "Original Traceback" in str(error.value) and "readable.py" in str(error.value)
    assert 17 not in [index for batch in orders(seen) for index in batch]


def test_a_script_that_raises_leaves_no_process_behind() -> None:
    def give_up(session: rex.Session, batch: Any) -> None:
        assert len(readers()) >= 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Drawn(), give_up, batch_size=4, num_workers=2)


def test_a_process_that_is_killed_ends_the_script_instead_of_being_waited_for() -> None:
    def kill(session: rex.Session, batch: Any) -> None:
        for pid in readers():
            os.kill(pid, 9)

    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed by signal|exited unexpectedly)"):
        train(Drawn(), kill, batch_size=4, num_workers=2)


def test_each_process_is_initialised_once_with_the_scripts_own_dataset() -> None:
    seen = batches(Opened(), batch_size=4, num_workers=2, worker_init_fn=open_file)
    assert {number for batch in seen for number in batch["number"].tolist()} == {0, 1}


def test_a_dataloader_is_taken_as_a_template() -> None:
    template = DataLoader(Opened(), batch_size=8, num_workers=2, worker_init_fn=open_file, collate_fn=lambda rows: {
        "index": torch.tensor([row["index"] for row in rows]), "x": torch.stack([row["x"] for row in rows]),
    })  # fmt: skip
    seen = batches(template)
    assert orders(seen) == [list(range(start, min(start + 8, 60))) for start in range(0, 60, 8)] * 2
    assert orders(batches(DataLoader(Drawn(), batch_size=8, shuffle=True))) == orders(batches(Drawn(), batch_size=8))


def test_fetching_goes_on_while_the_script_computes_and_across_epochs(tmp_path: Path) -> None:
    """The script does not ask for its next batch before that was read: it would wait for ever if nobody read ahead."""
    marks = Marked(tmp_path)

    def wait_for_the_next(session: rex.Session, batch: dict[str, Any]) -> None:
        done = 4 * (session.step + 1)
        while len(list(tmp_path.iterdir())) < min(done + 4, 2 * marks.size):
            time.sleep(0.001)

    train(marks, wait_for_the_next, batch_size=4, num_workers=2, prefetch=2)


class Marked(Drawn):
    """Leaves a file for each sample that was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(20)
        self.folder = folder

    def __getitem__(self, index: int) -> dict[str, Any]:
        first = self.folder / f"{index}-0"
        (self.folder / f"{index}-1" if first.exists() else first).touch()
        return super().__getitem__(index)


def test_what_is_read_ahead_is_bounded(tmp_path: Path) -> None:
    source = MapSource(recipe(Marked(tmp_path), batch_size=1, num_workers=2, prefetch=3), CPU, epochs=1)
    source.lay_out(Outlook(Position(5), (1,), rank=0))
    source.fetch(0)
    while len(list(tmp_path.iterdir())) < 7:  # the one taken, and three for each process
        time.sleep(0.001)
    source.lay_out(Outlook(Position(5, 0, 5), (1,), rank=0))
    source.fetch(0)  # another future: what was read ahead is thrown away
    assert source._processes is not None and len(source._processes._sent) == 6
    source.close()
    assert len(list(tmp_path.iterdir())) <= 7 + 7


def test_a_change_gives_up_what_is_being_read() -> None:
    """A process that is in the middle of a batch nobody wants any more stops at its next sample."""
    reader = Endless()
    processes = Processes(reader, recipe(Drawn(), num_workers=1, prefetch=2), 1, CPU)
    assert processes.take("a", lambda: iter([("a", "quick"), ("b", "endless")])) == "quick"
    assert processes.take("c", lambda: iter([("c", "quick")])) == "quick"
    processes.close()


class Faults:
    """In place of torch's iterator: raises."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def __next__(self) -> Any:
        raise self._error

    def _shutdown_workers(self) -> None:
        """There are none."""


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "DataLoader worker process exited unexpectedly"),
        (ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0."), "^Caught"),
    ],
    ids=["a process that is gone with what it read", "the dataset's own error"],
)
def test_a_lost_process_is_told_from_an_error_of_the_dataset(error: OSError, raised: str) -> None:
    processes = Processes(Endless(), recipe(Drawn(), num_workers=1, prefetch=2), 1, CPU)
    assert processes.take("a", lambda: iter([("a", "quick"), ("b", "quick")])) == "quick"
    real, processes._iterator = processes._iterator, Faults(error)
    with pytest.raises((RuntimeError, ConnectionError), match=raised):
        processes.take("b", lambda: iter(()))
    processes._iterator = real
    processes.close()


class Endless:
    dataset = None

    def read(self, task: str, wanted: Any) -> str | None:
        while task == "endless" and wanted():
            time.sleep(0.001)
        return task


def test_a_forked_process_holds_none_of_the_workers_connections() -> None:
    """Else the peers of a group would not notice that this worker is gone."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        peer, _ = server.accept()
        with peer:

            def hang_up(session: rex.Session, batch: Any) -> None:
                mine.close()
                peer.settimeout(30)
                assert peer.recv(1) == b"", "the end of the connection arrives while the processes live"
                assert readers()

            train(Drawn(), hang_up, batch_size=60, epochs=1, num_workers=1)


def test_a_signal_to_the_process_group_leaves_them_alone() -> None:
    """A worker that is told to go needs them until it has left."""

    def check(session: rex.Session, batch: Any) -> None:
        assert readers() and os.getpgrp() not in {os.getpgid(pid) for pid in readers()}

    train(Drawn(), check, batch_size=60, epochs=1, num_workers=2)


def test_the_processes_die_with_the_worker(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            train(Drawn(), lambda session, batch: _tell(tmp_path / "pids"), batch_size=4, num_workers=2, epochs=10**6)
        finally:
            os._exit(1)
    while not (tmp_path / "pids").exists():
        time.sleep(0.005)
    orphans = [int(number) for number in (tmp_path / "pids").read_text().split()]
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert len(orphans) == 2
    while any(runs(orphan) for orphan in orphans):
        time.sleep(0.005)


def _tell(file: Path) -> None:
    aside = file.with_suffix(".aside")
    aside.write_text(" ".join(map(str, children())))
    aside.rename(file)
