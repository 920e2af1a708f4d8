"""The learning rate follows the global batch from the initial one, never from what ran before (C-110)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.planning.noise import Scaling, learning_rate_factor

RULES: tuple[Scaling, ...] = ("adascale", "linear", "sqrt", "none")


@pytest.mark.parametrize("rule", RULES)
def test_c_110_any_path_of_batches_ends_at_the_rate_of_its_end(rule: Scaling) -> None:
    path = [256, 512, 256, 1024, 256]
    factors = [learning_rate_factor(rule, batch, 256, 300.0) for batch in path]
    assert factors[0] == factors[2] == factors[4] == 1.0


@pytest.mark.parametrize(
    ("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0), ("adascale", 4 * (300 + 64) / (300 + 256))]
)
def test_each_rule(rule: Scaling, factor: float) -> None:
    assert learning_rate_factor(rule, 256, 64, 300.0) == pytest.approx(factor)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1e9))
def test_adascale_lies_between_no_and_linear_scaling(batch: int, initial: int, noise_scale: float) -> None:
    factor = learning_rate_factor("adascale", batch, initial, noise_scale)
    low, high = sorted((1.0, batch / initial))
    assert low * (1 - 1e-9) <= factor <= high * (1 + 1e-9)


def test_an_unknown_noise_scale_takes_the_cautious_end() -> None:
    assert learning_rate_factor("adascale", 256, 64, None) == 1.0
    assert learning_rate_factor("adascale", 32, 64, None) == 0.5
