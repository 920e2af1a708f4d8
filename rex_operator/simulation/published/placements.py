"""The step-time tables that Pollux published and Sia extended: one format, two folders.

``placements*.csv`` has a row per placement and local batch; a placement is written as the GPUs on each node, a digit a
node (44: two nodes with four each). ``scalability*.csv`` has the same by numbers of nodes and replicas.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from rex_operator.simulation.published.reading import Line, lines
from rex_operator.simulation.published.table import Row, Table

_Place = tuple[int, int, str]


def read(path: Path, source: str, model: str, device: str) -> list[Table]:
    """Return a table per placement, in the file's order. A batch measured more than once has the mean.

    Raises ``BadData``.
    """
    scaled = path.name.startswith("scalability")
    columns = ["num_nodes", "num_replicas"] if scaled else ["placement"]
    found: dict[_Place, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines(path, [*columns, "local_bsz", "step_time", "sync_time"]):
        step = line.number_of("step_time", above=0.0)
        sync = line.number_of("sync_time", least=0.0)
        if sync > step:
            raise line.wrong(f"sync_time {sync:g} is more than step_time {step:g}, of which it is a part")
        place = _counted(line) if scaled else _placed(line)
        found[place][line.count_of("local_bsz")].append((step, sync))
    return [
        Table(source, model, device, nodes, replicas, placement, _rows(batches))
        for (nodes, replicas, placement), batches in found.items()
    ]


def _rows(batches: dict[int, list[tuple[float, float]]]) -> tuple[Row, ...]:
    return tuple(
        Row(batch, fmean(step for step, _ in times), fmean(sync for _, sync in times))
        for batch, times in sorted(batches.items())
    )


def _counted(line: Line) -> _Place:
    nodes, replicas = line.count_of("num_nodes"), line.count_of("num_replicas")
    if nodes > replicas:
        raise line.wrong(f"{nodes} nodes for {replicas} replicas")
    return nodes, replicas, f"{nodes}x{replicas}"


def _placed(line: Line) -> _Place:
    text = line.cells["placement"]
    if not text.isascii() or not text.isdigit() or "0" in text:
        raise line.wrong(f"placement is {text!r}, not a digit of GPUs for each node")
    return len(text), sum(int(digit) for digit in text), text
