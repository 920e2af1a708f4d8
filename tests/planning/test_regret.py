"""On published tables, cliffs and all, the batch that the search ends with is next to the best that was measured."""

from __future__ import annotations

from rex_operator.simulation.published import Row, Table, pollux, sia
from rex_operator.simulation.replay import replay
from tests.published import needs_data, published

GROUPS = 12


def tables() -> list[Table]:
    """Some of all, evenly; Sia's T4 tables repeat Pollux's."""
    folder = published()
    found = pollux.tables(folder / "pollux") + [t for t in sia.tables(folder / "sia") if t.device != "t4"]
    kept = [t for t in found if "scalability" in t.source and len(t.rows) >= 3]
    kept.sort(key=lambda t: (t.model, t.source, t.nodes, t.replicas))
    return kept[7 :: len(kept) // GROUPS][:GROUPS]


@needs_data
def test_c_168_the_best_measured_batch_is_found_or_one_nearly_as_good() -> None:
    outcomes = [replay(table, seed) for seed, table in enumerate(tables())]
    assert all(o.converged for o in outcomes)
    assert sum(o.regret <= 0.05 for o in outcomes) >= 0.9 * len(outcomes), [round(o.regret, 3) for o in outcomes]


def test_c_168_a_dip_of_throughput_on_the_way_is_no_end() -> None:
    rows = tuple(Row(b, t, 0.002) for b, t in ((8, 0.040), (11, 0.066), (16, 0.062), (23, 0.074), (32, 0.085)))
    outcome = replay(Table("made up", "dip", "any", 1, 2, "2", rows), seed=1)
    assert outcome.regret <= 0.05
    assert outcome.best == 32
