"""Sia's profiles: six models on five kinds of GPU.

S. Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023; data:
github.com/siasosp23/artifacts, folder sia-simulator (without a licence: test input only).
"""

from __future__ import annotations

from pathlib import Path

from rex_operator.simulation.published import placements
from rex_operator.simulation.published.reading import folder_with
from rex_operator.simulation.published.table import Table

DEVICES = {"aws": "t4", "rtx": "2080ti", "quad": "rtx6000", "azure": "v100", "dgx-ext": "a100"}
"""Suffix of a file: the device. ``dgx`` is an older A100 set of fewer batches, ``dgx-ext`` is read instead."""
_PIPELINES = "gpt_pmp"
"""Pipelines of several GPUs, whose step times are modelled and leave the communication out: no device's curve."""


def tables(folder: Path) -> list[Table]:
    """Return all tables of the folder that holds ``traces/MODEL/placements-*.csv``. Raises ``BadData``."""
    found = []
    for kind in ("placements", "scalability"):
        for path in folder_with(folder, f"traces/*/{kind}-*.csv", "Sia's traces"):
            suffix = path.stem.removeprefix(f"{kind}-")
            if suffix in DEVICES and path.parent.name != _PIPELINES:
                found += placements.read(path, f"sia/{path.stem}", path.parent.name, DEVICES[suffix])
    return found
