"""DLB's rule: at an epoch's end shares are proportional to samples per second."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rex_operator.planning.policies.dlb import Dlb
from tests.planning.policies.balancing import Bench, line


def test_one_epoch_suffices_where_time_has_no_fixed_part() -> None:
    run = Bench(Dlb(), {"w0": line(0, 0.001), "w1": line(0, 0.002), "w2": line(0, 0.004)}, 70, steps_per_epoch=12)
    assert run.rounds(2)[-1] == {"w0": 40, "w1": 20, "w2": 10}


def test_it_waits_for_the_epochs_end() -> None:
    run = Bench(Dlb(), {"w0": line(0, 0.001), "w1": line(0, 0.003)}, 64, steps_per_epoch=50)
    seen = run.rounds(6, steps=10)
    assert [s["w0"] for s in seen] == [32, 32, 32, 32, 48, 48]


def test_a_fixed_part_is_converged_on_geometrically() -> None:
    """Proportional shares are a fixed-point iteration; its proof of convergence is the paper's."""
    run = Bench(Dlb(), {"w0": line(0.1, 0.001), "w1": line(0.1, 0.002)}, 1000, steps_per_epoch=12)
    effects = []
    for _ in range(7):
        run.run()
        effects.append(run.effect)
    assert all(later <= 0.6 * earlier + 0.003 for earlier, later in pairwise(effects[1:]))
    assert run.shares["w0"] == pytest.approx(2000 / 3, abs=3)
