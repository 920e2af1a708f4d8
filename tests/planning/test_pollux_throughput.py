"""Pollux's model of step times: its formulas, what it assumes of the unknown, its fit to published data."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from rex_operator.planning.pollux_throughput import Configuration, Throughput, _Design, _loss, fit
from rex_operator.simulation.published import sia
from tests.published import needs_data, published

TRUE = Throughput(0.03, 0.002, 0.02, 0.003, 0.01, 0.001, 2.0)


def seen(*places: tuple[int, int, int]) -> list[Configuration]:
    rows = []
    for nodes, replicas, size in places:
        sizes = np.array([float(size)])
        rows.append(
            Configuration(
                nodes,
                replicas,
                size,
                TRUE.alpha_c + TRUE.beta_c * size,
                float(TRUE.iteration_s(nodes, replicas, sizes, np.array([1.0]))[0]),
            )
        )
    return rows


def seconds(model: Throughput, nodes: int, replicas: int, size: float, passes: float = 1.0) -> float:
    return float(model.iteration_s(nodes, replicas, np.array([size]), np.array([passes]))[0])


def test_a_step_by_hand() -> None:
    accum, within, across = 0.03 + 0.002 * 10, 0.01 + 0.001 * 2, 0.02 + 0.003 * 2
    assert seconds(TRUE, 1, 1, 10) == pytest.approx(accum)
    assert seconds(TRUE, 1, 4, 10) == pytest.approx(math.hypot(accum, within))
    assert seconds(TRUE, 2, 4, 10) == pytest.approx(math.hypot(accum, across))
    assert seconds(TRUE, 2, 4, 10, passes=3) == pytest.approx(2 * accum + math.hypot(accum, across))


def test_what_made_the_data_is_found_again() -> None:
    grid = [(n, k, m) for n, k in ((1, 1), (1, 2), (1, 4), (2, 4), (4, 8), (4, 16)) for m in (8, 32, 128)]
    model = fit(seen(*grid))
    for nodes, replicas, size in ((1, 2, 16), (2, 8, 64), (4, 16, 200)):
        assert seconds(model, nodes, replicas, size) == pytest.approx(seconds(TRUE, nodes, replicas, size), rel=0.03)


def test_the_gradient_is_the_objectives() -> None:
    nodes, replicas = np.array([1.0, 1, 1, 2, 2]), np.array([1.0, 2, 4, 4, 8])
    design = _Design(nodes, replicas, np.array([8.0, 16, 8, 32, 16]))
    times = np.log([0.2, 0.3, 0.21, 0.5, 0.3]), np.log([0.3, 0.4, 0.5, 0.9, 0.8])
    theta = np.array([0.1, 0.01, 0.2, 0.03, 0.05, 0.02, 2.3])
    for place in range(7):
        move = np.zeros(7)
        move[place] = 1e-6
        slope = (_loss(theta + move, design, *times)[0] - _loss(theta - move, design, *times)[0]) / 2e-6
        assert _loss(theta, design, *times)[1][place] == pytest.approx(slope, abs=1e-6)


def test_one_size_makes_half_of_a_pass_fixed_cost() -> None:
    model = fit(seen((2, 2, 32)))
    assert model.alpha_c == pytest.approx((0.03 + 0.002 * 32) / 2)


def test_what_was_never_tried_is_free() -> None:
    alone = fit(seen((1, 1, 8), (1, 1, 32)))
    assert max(alone.alpha_n, alone.alpha_r, alone.beta_n, alone.beta_r) <= 1.2e-8
    two = fit(seen((2, 2, 8), (2, 2, 32)))
    assert two.alpha_n > 1e-3 and two.beta_n <= 1e-8 and two.alpha_r <= 1e-8


def test_nodes_never_tried_are_a_tenth_dearer_than_what_is_within_one() -> None:
    model = fit(seen((1, 2, 8), (1, 4, 32), (1, 8, 32), (1, 4, 8)))
    assert model.alpha_n >= 1.1 * model.alpha_r > 1e-4
    assert model.beta_n >= 1.1 * model.beta_r > 1e-8


def test_the_same_data_give_the_same_numbers() -> None:
    rows = seen((1, 2, 8), (2, 4, 32), (2, 8, 16))
    assert fit(rows) == fit(rows)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit([])
    with pytest.raises(ValueError, match="finite positive"):
        fit([Configuration(1, 1, 8, 0.0, 0.1)])
    with pytest.raises(ValueError, match="finite positive"):
        fit([Configuration(1, 1, 8, 0.1, math.nan)])


@needs_data
def test_published_error_on_sias_placements() -> None:
    """Half of each table's rows to fit, half to test. An independent fit of the same data found 8.9 % on average."""
    folder = published()
    with (folder / "pollux_model_fit_errors_sia.csv").open(newline="") as lines:
        reference = {(row["model"], row["gpu"]): float(row["mape"]) for row in csv.DictReader(lines)}
    found: dict[tuple[str, str], list[Configuration]] = {}
    suffix = {device: name for name, device in sia.DEVICES.items()}
    for table in sia.tables(folder / "sia"):
        if "placements" in table.source:
            found.setdefault((table.model, suffix[table.device]), []).extend(
                Configuration(table.nodes, table.replicas, r.local_batch, r.step_s - r.sync_s, r.step_s)
                for r in table.rows
                if r.sync_s < r.step_s
            )
    assert set(found) == set(reference)
    errors, rng = {}, np.random.default_rng(0)
    for key, rows in found.items():
        order = rng.permutation(len(rows))
        train, test = ([rows[i] for i in part] for part in (order[::2], order[1::2]))
        model = fit(train)
        misses = [abs(seconds(model, c.nodes, c.replicas, c.micro_batch) / c.optim_s - 1) for c in test]
        errors[key] = 100 * float(np.mean(misses))
    assert 7.5 <= float(np.mean(list(errors.values()))) <= 10.0
    for key, error in errors.items():
        assert error <= 1.5 * reference[key] + 2
