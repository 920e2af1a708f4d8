"""The search is about as sure as it may be: what it was not shown lies within two of its deviations nearly always."""

from __future__ import annotations

import numpy as np

from rex_operator.simulation.devices import Bent
from rex_operator.simulation.foresight import standardised_errors
from rex_operator.simulation.published import Row, Table, pollux
from tests.published import needs_data, published


def made_up(seed: int) -> Table:
    """Seven sizes of a bent device, each with an error of its own."""
    rng = np.random.default_rng(seed)
    device = Bent("any", float(rng.uniform(0.005, 0.05)), float(rng.uniform(1e-4, 2e-3)), float(rng.choice([0, 8, 24])))
    sizes = np.rint(np.geomspace(8, 256, 7)).astype(int).tolist()
    seconds = [device.seconds(size) * float(np.exp(0.02 * rng.normal())) for size in sizes]
    rows = tuple(Row(size, time + 0.004, 0.004) for size, time in zip(sizes, seconds, strict=True))
    return Table("made up", "any", "any", 1, 1, "1", rows)


def test_smooth_devices_are_foreseen_within_two_deviations() -> None:
    errors = np.abs(np.concatenate([standardised_errors(made_up(seed)) for seed in range(12)]))
    assert (errors < 2).mean() >= 0.95
    assert np.median(errors) > 0.1, "and it is not merely timid"


@needs_data
def test_published_tables_are_foreseen_but_for_their_cliffs() -> None:
    tables = [t for t in pollux.tables(published() / "pollux") if len(t.rows) >= 5 and "scalability" in t.source]
    smooth = [t for t in tables if t.model in ("bert", "cifar10", "deepspeech2", "ncf")][::16]
    errors = np.abs(np.concatenate([standardised_errors(t) for t in smooth]))
    assert (errors < 2).mean() >= 0.9
