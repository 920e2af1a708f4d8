"""A plan is judged by the micro-batch that this worker's own passes make of it; sharded models take equally many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rex_worker.directives import Directives
from rex_worker.headroom import Headroom
from rex_worker.memory import meter_of
from rex_worker.probe import Unlimited
from rex_worker.protocol import OutOfMemory, Plan
from rex_worker.rewind import Rewind
from tests.worker.together import plan_of

CPU = torch.device("cpu")


class Asked(Unlimited):
    """A judge that notes what it was asked about."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def verdict(self, samples: int) -> str | None:
        self.sizes.append(samples)
        return "" if samples < 48 else "too much"


class QuietLink:
    """Carries nothing, and remembers what was said."""

    alone = False

    def __init__(self) -> None:
        self.directives = Directives()
        self.standing: Any = type("Standing", (), {})()
        self.said: list[OutOfMemory] = []

    def send(self, message: OutOfMemory) -> None:
        self.said.append(message)


def headroom(worker_id: str, *, together: bool = False) -> tuple[Headroom, QuietLink, Asked]:
    link: Any = QuietLink()
    judge, model = Asked(), nn.Linear(2, 1)
    return (
        Headroom(worker_id, link, CPU, judge, meter_of(CPU), Rewind(model, CPU), together=together),
        link,
        judge,
    )


class Running:
    """A term of generation 1 under plan 1."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.group: Any = type("Group", (), {"generation": 1})()


@pytest.mark.parametrize(
    ("worker_id", "samples", "together"), [("w0", 40, False), ("w1", 10, False), ("w2", 20, False), ("w0", 10, True)]
)
def test_memory_is_judged_by_the_micro_batch_of_the_workers_own_passes(
    worker_id: str, samples: int, together: bool
) -> None:
    room, link, judge = headroom(worker_id, together=together)
    shares = [40, 40, 40]
    link.directives.receive(plan_of(2, shares, [1, 4, 2]))
    running: Any = Running(plan_of(1, shares, [8, 8, 8]))
    assert room.held_version(running) == 2
    assert judge.sizes == [samples] and not link.said


def test_fewer_passes_than_memory_allows_are_refused_with_the_size_that_they_have() -> None:
    room, link, _ = headroom("w0")
    link.directives.receive(plan_of(2, [96, 96], [2, 4]))
    running: Any = Running(plan_of(1, [96, 96], [4, 4]))
    assert room.held_version(running) == 1
    assert [(said.plan_version, said.local_batch) for said in link.said] == [(2, 48)]


def test_a_size_that_failed_is_avoided_only_where_the_own_passes_have_it() -> None:
    room, _, _ = headroom("w0")
    room.ran_out(plan_of(1, [40, 40], [1, 4]), 40, "full")
    assert room.pass_limit(plan_of(2, [40, 40], [1, 4])) == 20
    assert room.pass_limit(plan_of(3, [40, 40], [2, 4])) is None
    whole, _, _ = headroom("w0", together=True)
    whole.ran_out(plan_of(1, [40, 40], [1, 1]), 40, "full")
    assert whole.pass_limit(plan_of(2, [40, 40], [1, 4])) is None, "all of a sharded model take 4 passes"
