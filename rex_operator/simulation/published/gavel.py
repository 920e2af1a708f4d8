"""Gavel's throughputs: steps per second of jobs on K80, P100 and V100.

D. Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020; data:
github.com/stanford-futuredata/gavel, folder scheduler.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from rex_operator.simulation.published.reading import BadData
from rex_operator.simulation.published.table import Row, Table

_JOB = re.compile(r"\('(?P<model>[^']+?)(?: \(batch size (?P<batch>\d+)\))?', (?P<replicas>\d+)\)")
_SPREAD = "_unconsolidated"


def tables(folder: Path, file: str = "simulation_throughputs.json") -> list[Table]:
    """Return a table per model family, device, number of GPUs and placement. Raises ``BadData``.

    The batch in a job's name is taken for that of one GPU. Jobs without one have no curve and are left out, and so are
    rates beside another job on the same GPU. A rate of 0 means that the batch does not fit. Communication is not told.
    Workers of an "unconsolidated" placement are spread over servers, one each.
    """
    path = folder / file
    if not path.is_file():
        raise BadData(f"{folder}: no {file} there; name the folder with Gavel's throughputs")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadData(f"{path}: not an object by kind of worker")
    found = []
    for kind, jobs in content.items():
        found += _tables_of(path, kind, jobs)
    return found


def _tables_of(path: Path, kind: str, jobs: object) -> list[Table]:
    if not isinstance(jobs, dict):
        raise BadData(f"{path}, {kind}: not an object by job")
    rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
    too_large: dict[tuple[str, int], list[int]] = defaultdict(list)
    for job, rates in jobs.items():
        match = _JOB.fullmatch(job)
        if match is None:
            raise BadData(f"{path}, {kind}: job {job!r} is not ('MODEL (batch size N)', GPUS)")
        rate = rates.get("null") if isinstance(rates, dict) else None
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < float("inf"):
            raise BadData(f"{path}, {kind}, {job}: null is {rate!r}, not a number of steps per second")
        if match["batch"] is None:
            continue
        key, batch = (match["model"], int(match["replicas"])), int(match["batch"])
        if rate == 0:
            too_large[key].append(batch)
        else:
            rows[key].append(Row(batch, 1 / rate, 0.0))
    device, spread = kind.removesuffix(_SPREAD), kind.endswith(_SPREAD)
    return [
        Table(
            source=f"gavel/{path.stem}",
            model=model,
            device=device,
            nodes=replicas if spread else 1,
            replicas=replicas,
            placement="unconsolidated" if spread else "consolidated",
            rows=tuple(sorted(found, key=lambda row: row.local_batch)),
            too_large=tuple(sorted(too_large[model, replicas])),
        )
        for (model, replicas), found in rows.items()
    ]
