"""A training that was interrupted and resumed is the undisturbed one, bit for bit, random numbers included."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import rex_worker as rex
from rex_worker import randomness
from rex_worker.checkpoint import read_model_state
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import Position
from rex_worker.state import pack, unpack

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("alone")


def train(epochs: int, seed: int, kept: Path | None = None, power_cut_at: int = 0, every: int = 4) -> nn.Module:
    """Train with dropout, and with noise from numpy and Python on each batch."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(53, 4), torch.randn(53, 1))
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    with pytest.MonkeyPatch.context() as environment:
        if kept is not None:
            environment.setenv("REX_CHECKPOINT_DIR", str(kept))
            environment.setenv("REX_CHECKPOINT_EVERY", str(every))
        with rex.init() as session:
            model, optimizer = session.prepare(model, optimizer)
            loader = session.loader(data, batch_size=8)
            for _ in session.epochs(epochs):
                for x, y in loader:
                    noise = float(np.random.normal()) + random.gauss(0.0, 1.0)
                    optimizer.zero_grad()
                    session.backward(nn.functional.mse_loss(model(x + 0.1 * noise), y))
                    optimizer.step()
                    if session.step == power_cut_at:
                        raise KeyboardInterrupt
    return model


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("power_cut_at", [6, 13])  # in the first epoch, and in the second
def test_a_run_with_dropout_goes_on_as_if_nothing_had_been(tmp_path: Path, power_cut_at: int) -> None:
    undisturbed = train(3, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(3, seed=1, kept=tmp_path, power_cut_at=power_cut_at)
    resumed = train(3, seed=2, kept=tmp_path)
    assert same(resumed, undisturbed)
    assert not same(train(3, seed=2), undisturbed), "else the test would show nothing"


def test_taking_checkpoints_changes_nothing(tmp_path: Path) -> None:
    assert same(train(2, seed=1, kept=tmp_path, every=1), train(2, seed=1))


def test_a_finished_job_goes_on_from_its_final_checkpoint_when_it_is_given_more_epochs(tmp_path: Path) -> None:
    train(2, seed=1, kept=tmp_path, every=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000014-final"]
    longer = train(4, seed=2, kept=tmp_path, every=1000)
    assert same(longer, train(4, seed=1))
    kept = read_model_state(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in longer.state_dict().items())


def draws() -> list[float]:
    return [float(torch.rand(())), float(np.random.normal()), float(np.random.rand()), random.random(), random.gauss()]


def test_all_generators_go_on_where_they_were() -> None:
    np.random.normal(), random.gauss()  # each keeps a second normal number for the next call
    text, tensors = pack(randomness.capture(CPU))
    expected = draws()
    randomness.derive(1, 2, 3)
    assert draws() != expected
    randomness.restore(unpack(text, tensors), CPU)
    assert draws() == expected


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_devices_generator_goes_on_too() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    text, tensors = pack(randomness.capture(device))
    expected = torch.rand(5, device=device)
    randomness.derive(1, 2, 3)
    assert not torch.equal(torch.rand(5, device=device), expected)
    randomness.restore(unpack(text, tensors), device)
    assert torch.equal(torch.rand(5, device=device), expected)


def test_every_rank_and_step_draws_other_numbers_and_the_same_each_time() -> None:
    def drawn(seed: int, step: int, rank: int) -> tuple[float, ...]:
        randomness.derive(seed, step, rank)
        return tuple(draws())

    places = [(seed, step, rank) for seed in (0, 1) for step in (0, 10) for rank in (0, 1, 2)]
    assert len({drawn(*place) for place in places}) == len(places)
    assert [drawn(*place) for place in places] == [drawn(*place) for place in places]


@pytest.mark.parametrize("broken", [{}, {"torch": torch.ones(3)}, {"torch": 5}, {"numpy": [1, 2]}, {"python": []}])
def test_what_is_no_such_state_is_refused(broken: dict[str, object]) -> None:
    good = randomness.capture(CPU)
    with pytest.raises(ValueError, match="not the states of random generators"):
        randomness.restore({**good, **broken} if broken else broken, CPU)
    randomness.restore(good, CPU)


def replica(rank: int) -> Replica:
    model = nn.Linear(2, 2)
    made = Replica(model, torch.optim.SGD(model.parameters(), lr=0.1), None, Progress(Position(7)), 10)
    made.rank = rank
    return made


def test_only_rank_0_of_a_resumed_training_takes_the_random_states_over() -> None:
    torch.manual_seed(3)
    state = replica(0).state()
    expected = draws()

    def drawn_after_adopting(rank: int, resumed: bool) -> list[float]:
        replica(rank).adopt(state, resumed=resumed)
        return draws()

    assert drawn_after_adopting(0, True) == expected
    others = [drawn_after_adopting(*way) for way in ((1, True), (2, True), (3, False), (0, False))]
    assert expected not in others
    assert len({tuple(drawn) for drawn in others}) == 4
    assert others[0] == drawn_after_adopting(1, False), "on its rank and step it hangs, and on nothing else"
