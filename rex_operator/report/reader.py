"""What a run wrote down, read back without trusting it.

The record of a run is one JSON object a line, written while processes are killed, disks fill and days pass. So the last
line may be torn, a line may be of a newer REX, a number may be missing or not finite, and the file may be larger than
memory. The reader streams it, sets aside what it cannot use (and says how much), and keeps a bounded picture: evenly
spread steps, every plan, every decision up to a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rex_operator.report.decided import read_decision
from rex_operator.report.record import (
    MAX_ROWS,
    MAX_STRETCHES,
    MAX_WORKERS,
    Happening,
    Measured,
    Record,
    Step,
    Stretch,
)
from rex_operator.report.values import number, numbers, text, whole

MAX_LINE = 1 << 20
MAX_AWAITED = 64
"""Newest plans that are remembered until their steps come."""


def read_record(path: Path) -> Record:
    """Read ``record.jsonl``. Raises ``OSError`` when the file cannot be opened; never on what is in it."""
    reader = _Reader()
    for line in _objects(path, reader.record):
        reader.take(line)
    return reader.record


def _objects(path: Path, record: Record) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        while raw := file.readline(MAX_LINE):
            record.lines += 1
            if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                    pass
                record.set_aside += 1
                continue
            if not raw.strip():
                continue
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError):
                record.set_aside += 1
                continue
            if isinstance(line, dict):
                yield line
            else:
                record.set_aside += 1


class _Reader:
    """Sorts the lines of a record by kind."""

    def __init__(self) -> None:
        self.record = Record()
        self._counted = -1
        self._issued: dict[int, tuple[float, Mapping[str, float]]] = {}
        self._takers = {
            "decision": self._take_decision,
            "end": self._take_end,
            "event": self._take_event,
            "membership": self._take_membership,
            "metrics": self._take_metrics,
            "plan": self._take_plan,
            "start": self._take_start,
            "step": self._take_step,
        }

    def take(self, line: dict[str, Any]) -> None:
        t = number(line.get("t"))
        if t is None or t < 0:
            self.record.set_aside += 1
            return
        self.record.duration_s = max(self.record.duration_s, t)
        taker = self._takers.get(str(line.get("kind")))
        if taker is not None:
            taker(t, line)

    def _take_step(self, t: float, line: dict[str, Any]) -> None:
        keys = ("compute_s", "wait_s", "comm_s", "local_batches")
        compute, wait, comm, local = (numbers(line.get(key)) for key in keys)
        step, batch = whole(line.get("step")), number(line.get("global_batch"))
        if step is None or batch is None:
            self.record.set_aside += 1
            return
        took = number(line.get("step_s"))
        rate = number(line.get("samples_per_s"))
        busy = [value for value in compute.values() if value > 0]
        point = Step(
            t=t,
            step=step,
            samples=whole(line.get("samples")) or 0,
            global_batch=batch,
            step_s=took,
            loss=number(line.get("loss")),
            samples_per_s=batch / took if rate is None and took else rate,
            goodput=number(line.get("goodput")),
            noise_scale=number(line.get("noise_scale")),
            local_batches=self._drawn(local),
            compute_s=self._drawn(compute),
            wait_s=self._drawn(wait),
            comm_s=self._drawn(comm),
            spread=max(busy) / min(busy) if len(busy) > 1 else None,
        )
        self.record.steps.append(point)
        self._stretch(whole(line.get("version")) or 0, point)

    def _stretch(self, version: int, point: Step) -> None:
        stretches = self.record.stretches
        if not stretches or stretches[-1].version != version:
            if len(stretches) == MAX_STRETCHES:
                del stretches[1]
                self.record.left_out += 1
            batch, local = self._issued.get(version, (point.global_batch, point.local_batches))
            stretches.append(Stretch(version, point, point, batch, local))
            self._count_plan(version)
        current = stretches[-1]
        current.last = point
        if point.global_batch > current.global_batch:
            # The last step of an epoch is cut short: without its message a plan is known by its full steps.
            current.global_batch, current.local_batches = point.global_batch, point.local_batches
        current.steps.append(point)

    def _count_plan(self, version: int) -> None:
        if version > self._counted:
            self._counted = version
            self.record.plans += 1

    def _drawn(self, values: Mapping[str, float]) -> dict[str, float]:
        known = self.record.workers
        for worker in values:
            if worker not in known and len(known) < 4096:
                known[worker] = None
        return dict(sorted(values.items(), key=lambda item: (len(item[0]), item[0]))[:MAX_WORKERS])

    def _take_metrics(self, t: float, line: dict[str, Any]) -> None:
        values = dict(list(numbers(line.get("values")).items())[:16])
        if values:
            self.record.metrics.append(Measured(t, whole(line.get("samples")) or 0, values))
            for name, value in values.items():
                self.record.best[name] = max(value, self.record.best.get(name, value))

    def _take_decision(self, t: float, line: dict[str, Any]) -> None:
        self._keep(self.record.decisions, read_decision(t, line))

    def _take_membership(self, t: float, line: dict[str, Any]) -> None:
        members = line.get("members")
        ids = [text(m.get("worker_id")) for m in members if isinstance(m, dict)] if isinstance(members, list) else []
        shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
        generation = whole(line.get("generation"))
        noun = "worker" if len(ids) == 1 else "workers"
        self._keep(
            self.record.happenings,
            Happening(t, "membership", f"Generation {generation}: {len(ids)} {noun} ({shown})"),
        )

    def _take_plan(self, t: float, line: dict[str, Any]) -> None:
        version, batch = whole(line.get("version")), number(line.get("global_batch"))
        if version is not None and batch is not None:
            self._issued[version] = batch, self._drawn(numbers(line.get("local_batches")))
            while len(self._issued) > MAX_AWAITED:
                del self._issued[next(iter(self._issued))]
            self._count_plan(version)

    def _take_start(self, t: float, line: dict[str, Any]) -> None:
        devices = line.get("devices")
        if isinstance(devices, dict):
            for worker, device in list(devices.items())[:4096]:
                self.record.devices[text(worker)[:63]] = text(device)[:63]
        self.record.name = text(line.get("job")) or self.record.name
        # A run that goes on has an end of its earlier part in its record.
        self.record.success, self.record.reason, self.record.message = None, "", ""
        if line.get("resumed") is True:
            self._keep(self.record.happenings, Happening(t, "resumed", "The run goes on from where it was interrupted"))

    def _take_event(self, t: float, line: dict[str, Any]) -> None:
        said = text(line.get("message") or line.get("text") or line.get("reason"))
        if said:
            self._keep(self.record.happenings, Happening(t, text(line.get("event") or "event")[:32], said))

    def _take_end(self, t: float, line: dict[str, Any]) -> None:
        success = line.get("success")
        self.record.success = success if isinstance(success, bool) else None
        self.record.reason, self.record.message = text(line.get("reason")), text(line.get("message"))

    def _keep(self, rows: list[Any], row: Any) -> None:
        rows.append(row)
        if len(rows) > MAX_ROWS:
            # The first rows explain how the run began, the newest how it ended; the middle goes.
            del rows[MAX_ROWS // 4]
            self.record.left_out += 1
