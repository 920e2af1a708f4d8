"""A state that is cut into shards is kept by all workers together: all of it, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rex_worker.checkpoint import CheckpointFolder
from rex_worker.environment import Environment
from rex_worker.errors import GroupLost
from rex_worker.group import Group
from rex_worker.keeping import Keeper
from rex_worker.link import AloneLink
from rex_worker.protocol import Checkpointed, CheckpointFailed, Message
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import Position
from rex_worker.staging import Snapshot

RANKS = 3


class Table:
    """Where the ranks of one generation meet: threads, here."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.barrier = threading.Barrier(RANKS)
        self.rows: list[Tensor] = [torch.empty(0)] * RANKS
        self.gates: list[list[str]] = [[] for _ in range(RANKS)]


class Seat(Group):
    """A rank's place at the table; the rest of a group is not used."""

    def __init__(self, table: Table, rank: int) -> None:
        super().__init__(table.generation, rank, 1, torch.device("cpu"), None, 60.0, lambda: False)
        self.size = RANKS
        self._table = table

    def gathered(self, vector: Tensor) -> Tensor:
        self.check()
        self._table.rows[self.rank] = vector.clone()
        self._meet()
        rows = torch.stack(self._table.rows)
        self._meet()
        return rows

    def gate(self, name: str) -> None:
        self._table.gates[self.rank].append(name)
        self._meet()

    def _meet(self) -> None:
        try:
            self._table.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise GroupLost("the table is gone") from None


class Shards(Replica):
    """Its ranks call each other; that its tensors are whole makes no difference to who keeps them when."""

    together = True


class Ear(AloneLink):
    """A link that listens."""

    def __init__(self) -> None:
        super().__init__(Environment.read({}))
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)


class OwnFolder(CheckpointFolder):
    """One rank's view of the common folder; its disk may be slow or full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, keep=10)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.full = False

    def write_part(self, taken: Snapshot) -> str:
        assert self.may_go_on.wait(60)
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write_part(taken)


class Run:
    """All ranks of a training, which go from boundary to boundary together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folders = [OwnFolder(path) for _ in range(RANKS)]
        self.links = [Ear() for _ in range(RANKS)]
        self.keepers = [Keeper(folder, 10, link) for folder, link in zip(self.folders, self.links, strict=True)]
        self.replicas = [self._replica(rank) for rank in range(RANKS)]
        self.form(1)

    def _replica(self, rank: int) -> Shards:
        model = torch.nn.Linear(3, 3)
        made = Shards(model, torch.optim.SGD(model.parameters(), lr=0.1), None, Progress(Position(7)), 10)
        made.rank = rank
        return made

    def form(self, generation: int) -> None:
        self.table = Table(generation)
        self.seats = [Seat(self.table, rank) for rank in range(RANKS)]

    def all(self, act: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(act, range(RANKS)))

    def reach(self, *steps: int) -> None:
        for step in steps:
            for replica in self.replicas:
                replica.progress = replace(replica.progress, step=step, samples=step * 10)
            self.all(lambda rank: self.keepers[rank].keep_if_due(self.replicas[rank], self.seats[rank]))

    def flush(self) -> None:
        for keeper in self.keepers:
            keeper.flush()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def heard(self, kind: type[Checkpointed] | type[CheckpointFailed], rank: int = 0) -> list[int]:
        return [message.step for message in self.links[rank].heard if isinstance(message, kind)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_it_is_put_in_place_at_a_boundary_after_all_have_written(run: Run) -> None:
    run.reach(9, 10)
    run.flush()
    assert not run.heard(Checkpointed)
    run.reach(11)
    run.flush()
    assert run.heard(Checkpointed) == [10] and run.names() == ["step-000000000010"]
    assert not any(run.links[rank].heard for rank in (1, 2)), "rank 0 speaks for all"
    assert sorted(path.name for path in (run.path / "step-000000000010").glob("part-*")) == [
        f"part-{rank:05d}.safetensors" for rank in range(RANKS)
    ]
    run.reach(19, 20)
    run.flush()
    run.reach(21)
    run.flush()
    assert run.heard(Checkpointed) == [10, 20]


def test_while_one_disk_is_slow_nobody_waits_and_the_next_one_is_taken_later(run: Run) -> None:
    run.folders[2].may_go_on.clear()
    run.reach(*range(10, 25))
    assert not run.heard(Checkpointed)
    run.folders[2].may_go_on.set()
    run.flush()
    run.reach(25)  # the one of step 20 is overdue
    run.flush()
    assert run.heard(Checkpointed) == [10]
    run.reach(26)
    run.flush()
    assert run.heard(Checkpointed) == [10, 25]


def test_a_rank_that_cannot_write_costs_the_checkpoint_and_nothing_else(run: Run) -> None:
    run.folders[1].full = True
    run.reach(10)
    run.flush()
    run.reach(11)
    run.flush()
    assert run.heard(CheckpointFailed) == [10] and run.names() == []
    (failed,) = run.links[0].heard
    assert isinstance(failed, CheckpointFailed) and "rank 1: OSError: [Errno 28] No space left" in failed.message
    run.all(lambda rank: run.keepers[rank].keep_now(run.replicas[rank], run.seats[rank]))
    assert run.heard(CheckpointFailed) == [10, 11]

    def finish(rank: int) -> None:
        with pytest.raises(OSError, match="No space left"):
            run.keepers[rank].keep_final(run.replicas[rank], run.seats[rank])

    run.all(finish)
    assert run.names() == []
    run.folders[1].full = False
    run.reach(20)
    run.flush()
    run.reach(21)
    run.flush()
    assert run.heard(Checkpointed) == [20] and run.names() == ["step-000000000020"]


def test_one_whose_group_is_lost_is_given_up_by_all(run: Run) -> None:
    run.folders[1].may_go_on.clear()
    run.reach(10, 11)
    run.form(2)
    run.reach(12)
    run.folders[1].may_go_on.set()
    run.flush()
    assert run.names() == [] and not run.heard(Checkpointed)
    run.reach(20)
    run.flush()
    run.reach(21)
    run.flush()
    assert run.heard(Checkpointed) == [20]


def test_a_loss_in_the_midst_of_it_shows_at_the_groups_next_call(run: Run) -> None:
    run.table.barrier.abort()
    run.reach(10)
    for seat in run.seats:
        with pytest.raises(GroupLost):
            seat.check()
    run.all(lambda rank: run.keepers[rank].keep_now(run.replicas[rank], run.seats[rank]))
    assert run.names() == []


def test_before_an_end_all_wait_until_all_have_written(run: Run) -> None:
    run.reach(10)  # still under way when the order to stop comes
    for replica in run.replicas:
        replica.progress = replace(replica.progress, step=13, samples=130)
    run.all(lambda rank: run.keepers[rank].keep_now(run.replicas[rank], run.seats[rank]))
    run.all(lambda rank: run.keepers[rank].keep_final(run.replicas[rank], run.seats[rank]))
    assert run.heard(Checkpointed) == [13, 13]
    assert run.names() == ["step-000000000013", "step-000000000013-final"]
    assert run.table.gates == [["kept-13", "kept-13-final"]] * RANKS


@pytest.mark.filterwarnings("ignore:checkpoint step-000000000020 cannot be used")
def test_c_113_all_go_on_from_the_one_before_a_damaged_one_and_rank_0_tells_it(run: Run) -> None:
    for step in (10, 20):
        run.reach(step)
        run.flush()
        run.reach(step + 1)
        run.flush()
    (run.path / "step-000000000020" / "part-00002.safetensors").write_bytes(b"torn")
    again = Run(run.path)
    again.all(lambda rank: again.keepers[rank].load(again.replicas[rank], again.seats[rank]))
    assert [(replica.step, replica.passed_over) for replica in again.replicas] == [(10, 20)] * RANKS
    (told,) = again.links[0].heard
    assert isinstance(told, CheckpointFailed) and (told.step, told.resumed) == (20, 10)
    assert not again.links[1].heard and not again.links[2].heard


def test_all_load_it_together(run: Run) -> None:
    with torch.no_grad():
        for replica in run.replicas:
            next(replica._model.parameters()).fill_(0.5)
    run.reach(10)
    run.flush()
    run.reach(11)
    run.flush()
    again = Run(run.path)
    assert again.all(lambda rank: again.keepers[rank].load(again.replicas[rank], again.seats[rank])) == [True] * RANKS
    for replica in again.replicas:
        assert replica.step == 10
        assert float(next(replica._model.parameters()).detach()[0, 0]) == 0.5
