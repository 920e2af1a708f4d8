"""A schedule stands where it would after as many samples in batches of the initial size, whatever the plans ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import IterableDataset, TensorDataset

import rex_worker as rex
from rex_worker.environment import Environment
from rex_worker.errors import UsageError
from rex_worker.optimizer import ElasticScheduler
from rex_worker.protocol import Plan
from rex_worker.rates import schedule_steps
from rex_worker.sampler import Position
from tests.worker.operator_double import make_plan

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

KINDS: dict[str, Callable[[torch.optim.Optimizer, int], Any]] = {
    "cosine": lambda made, updates: lr_scheduler.CosineAnnealingLR(made, T_max=updates),
    "one cycle": lambda made, updates: lr_scheduler.OneCycleLR(made, max_lr=1.0, total_steps=updates + 2),
    "steps": lambda made, updates: lr_scheduler.StepLR(made, step_size=3, gamma=0.7),
    "lambda": lambda made, updates: lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step)),
}


def made() -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9)


def rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


class Steps:
    """A loop that applies updates of the batches that a test says."""

    def __init__(self, size: int, initial: int) -> None:
        self.size, self.initial = size, initial
        self.position = Position(0)
        self.due = 0
        self.learning_rate_factor = 1.0

    def update(self, batch: int) -> None:
        total = min(batch, self.size - self.position.offset)
        ends = self.position.offset + total == self.size
        plan = make_plan(1, 1, {"w0": batch}, initial_batch=self.initial)
        self.due = schedule_steps(plan, self.position, total, ends_epoch=ends)
        self.position = self.position.advance(total, ends_epoch=ends)

    def may_clear(self) -> bool:
        return True

    def take_update(self) -> bool:
        return True

    def updated(self) -> None: ...

    def may_schedule(self) -> bool:
        return True

    def schedule_steps(self) -> int:
        return self.due


@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.integers(1, 60),
    initial=st.integers(1, 20),
    epochs=st.integers(1, 3),
    batches=st.lists(st.integers(1, 70), min_size=1, max_size=200),
)
@settings(deadline=None, max_examples=60)
def test_the_rate_depends_on_the_samples_and_not_on_the_batches(
    kind: str, size: int, initial: int, epochs: int, batches: list[int]
) -> None:
    per_epoch = math.ceil(size / initial)
    reference = made()
    schedule = KINDS[kind](reference, epochs * per_epoch)
    rates = [rate(reference)]
    for _ in range(epochs * per_epoch):
        schedule.step()
        rates.append(rate(reference))

    loop, optimizer = Steps(size, initial), made()
    elastic = ElasticScheduler(KINDS[kind](optimizer, epochs * per_epoch), loop)
    for batch in (batches * (size * epochs))[: size * epochs]:
        if loop.position.epoch == epochs:
            break
        loop.update(batch)
        elastic.step()
        done = loop.position.epoch * per_epoch + loop.position.offset // initial
        assert rate(optimizer) == pytest.approx(rates[done], rel=1e-9, abs=1e-12)


def test_with_the_initial_batch_each_update_is_one_step_the_short_one_too() -> None:
    loop = Steps(size=103, initial=16)
    steps = []
    while loop.position.epoch == 0:
        loop.update(16)
        steps.append(loop.due)
    assert steps == [1] * 7


def test_a_call_with_arguments_and_a_clock_of_updates_count_once() -> None:
    loop = Steps(size=1000, initial=10)
    loop.update(40)
    for by_updates, arguments, steps in ((False, (), 4), (True, (), 1)):
        schedule = lr_scheduler.LambdaLR(made(), lambda step: 1.0)
        ElasticScheduler(schedule, loop, by_updates=by_updates).step(*arguments)
        assert schedule.last_epoch == steps
    plateau = lr_scheduler.ReduceLROnPlateau(made(), patience=100)
    ElasticScheduler(plateau, loop).step(0.5)
    assert plateau.last_epoch == 1


def test_a_plan_that_names_no_initial_batch_counts_updates() -> None:
    plan = make_plan(1, 1, {"w0": 40})
    assert schedule_steps(plan, Position(0), 40, ends_epoch=False) == 1


# --- the whole way, in one process ----------------------------------------------------------------------------------

DATA = TensorDataset(torch.arange(96.0).reshape(96, 1))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REX_CHANNEL_URL", "REX_CHECKPOINT_DIR", "REX_EMULATE"):
        monkeypatch.delenv(name, raising=False)
    yield


def train(plans: dict[int, Plan], clock: Any = "samples", per_epoch: bool = False) -> list[tuple[int, float, float]]:
    """Train two epochs of 96 samples, with plans that arrive after the steps named; returns samples, rate, move."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 12)
    seen = []
    with rex.init() as session:
        model, prepared, scheduler = session.prepare(model, optimizer, scheduler, schedule_clock=clock)
        loader = session.loader(DATA, batch_size=16)
        for _ in session.epochs(2):
            for (_x,) in loader:
                prepared.zero_grad()
                session.backward(model.weight.sum())  # a gradient of 1: the weight moves by the rate in force
                before = float(model.weight.detach())
                prepared.step()
                move = before - float(model.weight.detach())
                assert move == pytest.approx(session.learning_rate_factor * rate(prepared), rel=1e-4)
                if not per_epoch:
                    scheduler.step()
                seen.append((session.samples, rate(prepared), move))
                if session.step in plans:
                    session._link.directives.receive(plans[session.step])
            if per_epoch:
                scheduler.step()
        assert session.progress == 1.0 and session.initial_batch == 16
    return seen


def replan(version: int, batch: int, factor: float, **fields: int) -> Plan:
    more = {"initial_batch": 16, **fields}
    return make_plan(1, version, {"w0": batch}, learning_rate_factor=factor, **more)


@pytest.mark.usefixtures("alone")
def test_c_110_over_real_steps_the_base_rate_is_a_function_of_the_samples() -> None:
    plans = {1: replan(2, 32, 2.0), 3: replan(3, 8, 0.5), 6: replan(4, 16, 1.0)}
    seen = train(plans)
    assert [samples for samples, *_ in seen[:6]] == [16, 32, 64, 96, 104, 112]
    for samples, base, _ in seen:
        assert base == pytest.approx(0.5 * (1 - samples // 16 / 12)), samples
    assert train({1: replan(2, 32, 2.0)}, clock="updates")[-1][1] > seen[-1][1] == 0.0


@pytest.mark.usefixtures("alone")
def test_c_110_over_real_steps_the_factor_climbs_falls_and_comes_back() -> None:
    seen = train({1: replan(2, 16, 1.5), 8: replan(3, 16, 1.0)})
    base = [0.5 * (1 - n / 12) for n in range(12)]
    factors = [move / rate for (_, _, move), rate in zip(seen, base, strict=True)]
    climb = [1.0, 1.0, *(0.9**-n for n in range(1, 4)), 1.5, 1.5, 1.5, 1.5, 1.0, 1.0, 1.0]
    assert factors == pytest.approx(climb, rel=1e-4)


@pytest.mark.usefixtures("alone")
def test_over_real_steps_the_rate_warms_up() -> None:
    seen = train({1: replan(2, 16, 1.0, warmup_samples=128)})
    base = [0.5 * (1 - n / 12) for n in range(12)]
    factors = [move / rate for (_, _, move), rate in zip(seen[2:], base[2:], strict=True)]
    assert factors == pytest.approx([min(1.0, 16 * n / 128) for n in range(3, 13)], rel=1e-4)


@pytest.mark.usefixtures("alone")
def test_a_schedule_can_be_made_for_the_length_of_the_run() -> None:
    with pytest.raises(UsageError, match="ended without training"), rex.init() as session:
        with pytest.raises(UsageError, match=r"call session\.loader"):
            session.initial_batch  # noqa: B018
        assert (len(session.loader(DATA, batch_size=10)), session.initial_batch) == (10, 10)
    job = {"REX_CHANNEL_URL": "ws://127.0.0.1:1", "REX_JOB": "a/b", "REX_WORKER_ID": "w0", "REX_INCARNATION": "x"}
    assert Environment.read({**job, "REX_BATCH_INITIAL": "48"}).batch_initial == 48
    assert Environment.read({"REX_BATCH_INITIAL": "48"}).batch_initial == 0, "without an operator nobody sees to it"


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


@pytest.mark.usefixtures("alone")
def test_a_stream_that_tells_no_length_has_none() -> None:
    with pytest.raises(TypeError, match="does not tell how long it is"), rex.init() as session:
        len(session.loader(Stream()))


@pytest.mark.usefixtures("alone")
def test_a_clock_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="schedule_clock is 'epochs'; it is 'samples' or 'updates'"):
        train({}, clock="epochs")


@pytest.mark.usefixtures("alone")
def test_a_scheduler_that_is_stepped_per_epoch_goes_by_epochs() -> None:
    seen = train({1: replan(2, 32, 1.0)}, per_epoch=True)
    assert {base for samples, base, _ in seen if samples <= 96} == {0.5}
    assert {base for samples, base, _ in seen if samples > 96} == {0.5 * (1 - 1 / 12)}
