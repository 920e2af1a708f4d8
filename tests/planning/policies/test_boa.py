"""BOA's programme is solved exactly, and its models follow static and dynamic stragglers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import pytest

from rex_operator.planning.policies.boa import Boa
from tests.planning.policies.balancing import Bench, line

DEVICES = {"w0": line(0.02, 0.010), "w1": line(0.05, 0.017), "w2": line(0.01, 0.031)}


def best(devices: Mapping[str, Callable[[float], float]], batch: int) -> float:
    """Return the shortest longest time over all whole shares."""
    names = list(devices)
    return min(
        max(devices[n](b) for n, b in zip(names, (*pair, batch - sum(pair)), strict=True))
        for pair in product(range(1, batch), repeat=2)
        if sum(pair) < batch
    )


@pytest.mark.parametrize("batch", [9, 30, 61])
def test_the_whole_shares_are_the_best_there_are(batch: int) -> None:
    run = Bench(Boa(), DEVICES, batch)
    run.rounds(6)
    assert run.times().max() <= 1.02 * best(DEVICES, batch), "2 % are not worth a move"


def test_a_dynamic_straggler_changes_its_model() -> None:
    run = Bench(Boa(), DEVICES, 60)
    run.rounds(6)
    run.devices["w0"] = line(0.04, 0.020)
    run.rounds(4)
    assert run.times().max() <= 1.05 * best(run.devices, 60)
