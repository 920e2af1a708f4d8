"""What the comparison of policies comes to: times by cell, the figures over all cells, a table to read."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks._cells import Cell, Outcome

ARMS = ("raw-mwu", "always-accept")
"""REX with other verdicts."""

Times = Mapping[Cell, Mapping[str, Sequence[Outcome]]]


def by_cell(outcomes: Sequence[Outcome]) -> Times:
    """Return the outcomes by cell and policy."""
    cells: dict[Cell, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        cells.setdefault(outcome.task.cell, {}).setdefault(outcome.task.policy, []).append(outcome)
    return cells


def mean_times(policies: Mapping[str, Sequence[Outcome]]) -> dict[str, float]:
    """Return the mean seconds to the target by policy, best first; without those that failed."""
    times = {
        policy: statistics.fmean(o.result.seconds for o in group if o.result is not None)
        for policy, group in policies.items()
        if all(o.result is not None for o in group)
    }
    return dict(sorted(times.items(), key=lambda item: item[1]))


def figures(cells: Times, ideals: Mapping[Cell, float]) -> dict[str, Any]:
    """Return the figures of the comparison; those that need a policy that was left out are None.

    ``ideals`` are the seconds of the bound by cell.
    """
    worst, published, mixed, rivals, arms = [], [], [], [], []
    for cell, policies in cells.items():
        times = mean_times(policies)
        others = [seconds for policy, seconds in times.items() if policy not in ("rex", *ARMS)]
        own = [seconds for policy, seconds in times.items() if policy in ARMS]
        if "rex" not in times or not others:
            continue
        worst.append(times["rex"] / min(times.values()))
        published.append(times["rex"] / min(*others, times["rex"]))
        if cell.scenario == "static" and "even" in times:
            mixed.append(times["even"] / times["rex"])
        if cell.scenario != "static":
            rivals.append(min(others) / times["rex"])
            arms += [min(own) / times["rex"]] if own else []
    return {
        "rex_worst_vs_best": _rounded(max(worst, default=None)),
        "rex_first_or_within_1pct": _rounded(statistics.fmean(w <= 1.01 for w in worst) if worst else None),
        "rex_worst_vs_published": _rounded(max(published, default=None)),
        "rex_vs_even_mixed": _rounded(statistics.fmean(mixed) if mixed else None),
        "rex_vs_even_mixed_min": _rounded(min(mixed, default=None)),
        "rex_vs_best_rival_changing": _rounded(statistics.fmean(rivals) if rivals else None),
        "rex_vs_best_rival_changing_min": _rounded(min(rivals, default=None)),
        "rex_vs_best_arm_changing": _rounded(statistics.fmean(arms) if arms else None),
        **_left_to_win(cells, ideals),
        "cells": list(_rows(cells, ideals)),
    }


def _left_to_win(cells: Times, ideals: Mapping[Cell, float]) -> dict[str, float | None]:
    """How much longer than the bound REX and, in each cell, the best published rival take."""
    found: dict[str, float | None] = {}
    for suffix, still in (("", True), ("_changing", False)):
        rex, rivals = [], []
        for cell, policies in cells.items():
            if (cell.scenario == "static") is still:
                times = mean_times(policies)
                others = [seconds for policy, seconds in times.items() if policy not in ("rex", *ARMS)]
                rex += [times["rex"] / ideals[cell]] if "rex" in times else []
                rivals += [min(others) / ideals[cell]] if others else []
        found |= {
            f"rex_vs_ideal{suffix}": _rounded(statistics.fmean(rex) if rex else None),
            f"rex_vs_ideal{suffix}_median": _rounded(statistics.median(rex) if rex else None),
            f"rex_vs_ideal{suffix}_max": _rounded(max(rex, default=None)),
            f"best_rival_vs_ideal{suffix}": _rounded(statistics.fmean(rivals) if rivals else None),
        }
    return found


def _rows(cells: Times, ideals: Mapping[Cell, float]) -> Iterator[dict[str, Any]]:
    for cell, policies in cells.items():
        for policy, seconds in mean_times(policies).items():
            results = [o.result for o in policies[policy] if o.result is not None]
            yield {
                "model": cell.model,
                "mix": cell.mix,
                "scenario": cell.scenario,
                "policy": policy,
                "seconds": round(seconds, 1),
                "ideal": round(ideals[cell], 1),
                "sd": round(statistics.stdev(r.seconds for r in results), 1) if len(results) > 1 else None,
                "missed": sum(not r.reached for r in results),
                "samples_per_s": round(statistics.fmean(r.samples_per_s for r in results), 1),
                "steps": round(statistics.fmean(r.steps for r in results)),
                "final_batch": round(statistics.median(r.final_batch for r in results)),
                "decisions": round(statistics.fmean(sum(r.decisions.values()) for r in results), 1),
                "trials": round(statistics.fmean(r.decisions.get("trial-started", 0) for r in results), 1),
                "evidence_bytes": round(statistics.fmean(r.evidence_bytes for r in results)),
            }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def table(cells: Times, ideals: Mapping[Cell, float], names: Sequence[str]) -> Table:
    """Return the times of the policies of these names, one cell a row, beside the bound."""
    table = Table(title="time to target over the best policy's (± sd over seeds); !: not reached")
    for column in ("model", "mix", "scenario", "best, s", "ideal"):
        table.add_column(column, justify="right" if column in ("best, s", "ideal") else "left", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for cell, policies in cells.items():
        times = mean_times(policies)
        best = min(times.values(), default=1.0)
        shown = [_shown(policies.get(name, ()), times.get(name), best) for name in names]
        table.add_row(cell.model, cell.mix, cell.scenario, f"{best:.0f}", f"{ideals[cell] / best:.2f}", *shown)
    return table


def _shown(group: Sequence[Outcome], seconds: float | None, best: float) -> str:
    if seconds is None:
        return "failed"
    results = [o.result for o in group if o.result is not None]
    spread = f"±{statistics.stdev(r.seconds for r in results) / best:.2f}" if len(results) > 1 else ""
    text = f"{seconds / best:.2f}{spread}{'' if all(r.reached for r in results) else '!'}"
    return f"[bold]{text}[/bold]" if seconds <= 1.01 * best else text
