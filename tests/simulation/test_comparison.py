"""The figures of the comparison say what they are said to say."""

from __future__ import annotations

from pathlib import Path

from benchmarks._cells import MIXES, Cell, Outcome, Task
from benchmarks._figures import by_cell, figures, mean_times
from rex_operator.simulation.run import Result


def outcome(cell: Cell, policy: str, seconds: float | None, seed: int = 0) -> Outcome:
    task = Task(cell, policy, seed, 100, Path("data"))
    if seconds is None:
        return Outcome(task, None, "BrokenPromise: shares sum to 63, not to 64")
    return Outcome(task, Result(seconds, True, 100, 6400, 6400.0, 64, {"membership": 1}, 300, 0))


STILL, MOVING = (Cell("net", next(iter(MIXES)), scenario) for scenario in ("static", "straggler"))
CELLS = by_cell(
    [
        *(outcome(STILL, "rex", seconds, seed) for seed, seconds in enumerate((90.0, 110.0))),
        *(outcome(STILL, "even", 180.0, seed) for seed in range(2)),
        *(outcome(STILL, "lbb", 80.0, seed) for seed in range(2)),
        *(outcome(MOVING, "rex", 100.0, seed) for seed in range(2)),
        *(outcome(MOVING, "even", 300.0, seed) for seed in range(2)),
        *(outcome(MOVING, "lbb", 120.0, seed) for seed in range(2)),
        outcome(MOVING, "boa", 50.0),
        outcome(MOVING, "boa", None, seed=1),
    ]
)


IDEALS = {STILL: 50.0, MOVING: 80.0}


def test_rex_is_held_against_the_best_even_and_the_best_rival() -> None:
    found = figures(CELLS, IDEALS)
    assert found["rex_worst_vs_best"] == 1.25
    assert found["rex_vs_even_mixed"] == found["rex_vs_even_mixed_min"] == 1.8
    assert found["rex_vs_best_rival_changing"] == 1.2
    assert found["rex_first_or_within_1pct"] == 0.5


def test_what_is_left_to_win_is_told_for_still_and_changing_cells_apart() -> None:
    found = figures(CELLS, IDEALS)
    assert found["rex_vs_ideal"] == found["rex_vs_ideal_max"] == 2.0
    assert found["best_rival_vs_ideal"] == 1.6
    assert found["rex_vs_ideal_changing"] == 1.25 and found["best_rival_vs_ideal_changing"] == 1.5
    assert {cell["ideal"] for cell in found["cells"]} == {50.0, 80.0}


def test_a_policy_that_failed_once_has_no_time_in_that_cell() -> None:
    assert mean_times(CELLS[MOVING]) == {"rex": 100.0, "lbb": 120.0, "even": 300.0}


def test_without_rex_or_rivals_there_are_no_ratios() -> None:
    alone = figures(by_cell([outcome(STILL, "rex", 100.0)]), IDEALS)
    assert alone["rex_worst_vs_best"] is None and alone["rex_vs_even_mixed"] is None
    assert [cell["seconds"] for cell in alone["cells"]] == [100.0]
