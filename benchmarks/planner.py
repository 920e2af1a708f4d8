"""What does a decision cost, and does a planner grow? CPU time of one decision, and memory over ten thousand.

A decision is one look of the planner at its window, the search that it asks for, and taking the answer: `Planner.poll`,
`run_search` and `Planner.complete`, on one core (BLAS held to one thread). The planner is a real one with policy
``rex``: 256 workers of five kinds, each of which has reported 60 steps, devices known at 16 sizes each, and 40 plans in
its history. Each is timed in CPU seconds of the process on a planner of its own, since an answered search is not asked
again; ``decision_ms`` is the median. The same for other numbers of workers and of plans in the history.

Memory: one planner of 2 workers is driven in virtual time, with short windows, speeds that keep changing and a new
group now and then, so that it goes on deciding. ``rss_growth_mb`` is how much the process grew between a tenth of the
decisions and the last, ``state_bytes`` the largest state (JSON) that it would have kept. A decision is a record of the
planner or an answered search. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from rex_operator.api.spec import RexJobSpec
from rex_operator.planning import PlanDraft, Planner, PlannerState, SearchRequest, WorkerInfo, run_search
from rex_operator.planning.devices import DevicesState, KeptPoint, KindState
from rex_operator.planning.history import KeptMeasure, team_of
from rex_worker.protocol import StepReport

GOAL_MS = 200.0
KINDS = {
    "a100": (0.006, 2e-4),
    "v100": (0.010, 4.5e-4),
    "t4": (0.018, 1.1e-3),
    "rtx": (0.012, 7e-4),
    "k80": (0.03, 3e-3),
}
"""Fixed seconds per micro-batch, and seconds per sample."""
SIZES = np.geomspace(4, 128, 16)
STEPS = 60
TEAM = 2


@dataclass(frozen=True)
class Cost:
    """Medians over repetitions, in milliseconds of CPU."""

    workers: int
    history: int
    poll_ms: float
    search_ms: float
    complete_ms: float

    @property
    def decision_ms(self) -> float:
        """All of it."""
        return self.poll_ms + self.search_ms + self.complete_ms


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, a tenth of the decisions")
    parser.add_argument("--decisions", type=int, default=10_000, help="of the run that watches memory (some minutes)")
    options = parser.parse_args()
    quick = options.quick
    console = Console()
    one_core: Any = threadpool_limits  # it has no types
    with one_core(1):
        measure(8, 5, repeat=1)  # imports and caches
        console.print("decisions, in CPU milliseconds of one core")
        costs = [measure(n, h, repeat=3 if quick else 7) for n, h in cases(quick)]
        console.print(_table(costs))
        growth = soak(500 if quick else options.decisions, console)
    wanted = next(c for c in costs if (c.workers, c.history) == (256, 40))
    console.file.flush()
    print(
        json.dumps(
            {
                "benchmark": "planner",
                "quick": quick,
                "decision_ms": round(wanted.decision_ms, 1),
                "goal_ms": GOAL_MS,
                "by_workers": {c.workers: round(c.decision_ms, 1) for c in costs if c.history == 40},
                "by_history": {c.history: round(c.decision_ms, 1) for c in costs if c.workers == 256},
                **growth,
            }
        )
    )
    return 0


def cases(quick: bool) -> list[tuple[int, int]]:
    """Return numbers of workers and of plans in the history."""
    if quick:
        return [(16, 40), (256, 40), (256, 120)]
    return [(16, 40), (64, 40), (256, 5), (256, 40), (256, 120), (1024, 40)]


def measure(workers: int, history: int, repeat: int) -> Cost:
    """Measure one decision, ``repeat`` times."""
    parts: list[tuple[float, float, float]] = []
    for seed in range(repeat):
        planner, now = ready(workers, history, seed)
        gc.collect()
        begun = time.process_time()
        request = planner.poll(now)
        polled = time.process_time()
        if not isinstance(request, SearchRequest):
            raise RuntimeError(f"the planner asked for no search: {planner.decisions[-1].reason}")
        result = run_search(request)
        searched = time.process_time()
        planner.complete(request, result, now)
        parts.append((polled - begun, searched - polled, time.process_time() - searched))
    poll, search, complete = (1e3 * statistics.median(column) for column in zip(*parts, strict=True))
    return Cost(workers, history, poll, search, complete)


def ready(workers: int, history: int, seed: int) -> tuple[Planner, float]:
    """Return a planner about to decide, and its time: it has learned all that it is going to from its window."""
    rng = np.random.default_rng(seed)
    infos = [WorkerInfo(f"w{i}", "life", list(KINDS)[i % len(KINDS)]) for i in range(workers)]
    batch = 16 * workers
    spec = _spec(batch, workers, 64 * workers)
    planner = Planner(spec, rng, _state(batch, history, infos, rng))
    draft = planner.set_workers(infos, 0.0)
    now = 1.0
    for step in range(1, STEPS + 1):
        if step == 1:
            planner.plan_running(1, 1, draft, 1, now)
        now += _report(planner, infos, draft, step, 1, now, rng, {})
        answer = planner.poll(now) if step == 20 else None
        if isinstance(answer, PlanDraft):
            raise RuntimeError("the shares were not right from the start")
    return planner, now


def _state(batch: int, history: int, infos: list[WorkerInfo], rng: np.random.Generator) -> PlannerState:
    """Return what a planner of long experience would have kept."""
    kinds = {
        name: KindState(
            points=tuple(
                KeptPoint(
                    micro_batch=x, log_seconds=float(np.log(a + c * x) + 0.002 * rng.normal()), variance=1e-5, at=0.0
                )
                for x in SIZES.tolist()
            ),
            ran=128,
        )
        for name, (a, c) in KINDS.items()
    }
    workers, team = len(infos), team_of(infos)
    sizes = np.rint(np.geomspace(4 * workers, 64 * workers, history)).astype(int).tolist()
    kept = tuple(
        KeptMeasure(
            global_batch=size,
            accumulation=1 + i % 2,
            seconds=float((0.02 + 3e-4 * size / workers) * np.exp(0.02 * rng.normal())),
            variance=1e-5,
            at=0.0,
            team=team,
        )
        for i, size in enumerate(sizes)
    )
    return PlannerState(
        elapsed_s=0.0, global_batch=batch, accumulation=1, devices=DevicesState(kinds=kinds), history=kept
    )


def _spec(initial: int, low: int, high: int, validation: dict[str, Any] | None = None) -> RexJobSpec:
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": 1024},
            "pools": [{"name": "any", "maxWorkers": 1024}],
            "template": {},
            "batch": {"initial": initial, "min": low, "max": high},
            "planner": {
                "objective": "throughput",
                "validation": validation or {},
                "search": {"cooldownSeconds": 0, "maxTrials": 10_000},
            },
        }
    )


def _report(
    planner: Planner,
    infos: list[WorkerInfo],
    draft: PlanDraft,
    step: int,
    version: int,
    now: float,
    rng: np.random.Generator,
    slow: dict[str, float],
) -> float:
    """Let all workers report a step; return its seconds."""
    noise = np.exp(0.01 * rng.normal(size=len(infos))).tolist()
    compute = []
    for info, factor in zip(infos, noise, strict=True):
        fixed, each = KINDS[info.device]
        passes = draft.passes_of(info.worker_id)
        share = draft.local_batches[info.worker_id] / passes
        compute.append((fixed + each * share) * passes * factor * slow.get(info.worker_id, 1.0))
    took = max(compute) + 0.004
    for info, seconds in zip(infos, compute, strict=True):
        report = StepReport.model_construct(
            step=step,
            plan_version=version,
            samples=step * draft.global_batch,
            epoch=0,
            local_batch=draft.local_batches[info.worker_id],
            compute_s=seconds,
            wait_s=took - seconds,
            comm_s=None,
            data_s=0.0,
            step_s=took,
            loss=1.0,
            diverged=False,
            local_grad_sq=1.0,
            global_grad_sq=1.0,
            peak_bytes=0,
            marks=[],
        )
        planner.observe(info.worker_id, info.incarnation, 1, report, now + took)
    return float(took)


def soak(decisions: int, console: Console) -> dict[str, object]:
    """Drive a planner until it has decided so often; return how the process and the kept state grew."""
    rng = np.random.default_rng(0)
    infos = [WorkerInfo(f"w{i}", "life", list(KINDS)[i % len(KINDS)]) for i in range(TEAM)]
    planner = Planner(_spec(16 * TEAM, TEAM, 64 * TEAM, {"minSteps": 4, "warmupSteps": 0}), rng)
    draft, version, step, now = planner.set_workers(infos, 0.0), 1, 0, 0.0
    planner.plan_running(version, 1, draft, 1, now)
    done, seen, base, state_bytes, slow = 0, None, 0.0, 0, dict[str, float]()
    while done < decisions:
        step += 1
        now += _report(planner, infos, draft, step, version, now, rng, slow)
        if step % 4:
            continue
        answer = planner.poll(now)
        if isinstance(answer, SearchRequest):
            done += 1
            answer = planner.complete(answer, run_search(answer), now)
        if answer is not None:
            draft, version = answer, version + 1
            planner.plan_running(version, 1, draft, step + 1, now)
        if planner.decisions[-1] is not seen:
            done, seen = done + 1, planner.decisions[-1]
            state_bytes = max(state_bytes, len(planner.state().model_dump_json())) if done % 50 == 0 else state_bytes
        if step % 24 == 0:
            slow[f"w{step // 24 % TEAM}"] = float(rng.uniform(0.7, 1.5))
        if step % 120 == 0:
            draft = planner.set_workers(infos, now)  # a new group: cool-downs and conviction begin anew
            version += 1
            planner.plan_running(version, 1, draft, step + 1, now)
        if base == 0.0 and done >= decisions // 10:
            base = rss_mb()
    console.print(f"{done} decisions over {step} steps of {TEAM} workers", highlight=False)
    return {
        "rss_growth_mb": round(rss_mb() - base, 2),
        "rss_mb": round(rss_mb(), 1),
        "soak_decisions": done,
        "soak_steps": step,
        "state_bytes": state_bytes,
    }


def rss_mb() -> float:
    """Return the resident memory of this process, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _table(costs: list[Cost]) -> Table:
    table = Table()
    for name in ("workers", "plans tried", "poll", "search", "complete", "decision"):
        table.add_column(name, justify="right")
    for c in costs:
        parts = (c.poll_ms, c.search_ms, c.complete_ms, c.decision_ms)
        table.add_row(str(c.workers), str(c.history), *(f"{ms:.1f}" for ms in parts))
    return table


if __name__ == "__main__":
    sys.exit(main())
