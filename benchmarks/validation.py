"""How often does a rule for accepting a plan err? False changes on A/A data, and power at a true gain of 5 %.

A trial compares the steps before a change with those after it. Here the two sides come from one series, so that every
accepted change is false (A/A), or the second side is 5 % faster, so that every other answer is a miss. The series are
step times as training makes them: independent, autocorrelated (AR(1) .3, .6, .8), and drifting (3 % faster over the
whole); with ``--lbb`` also the published step times of three or four unequal GPUs (a folder of that project's records
as CSV). Five rules are compared:

- ``rex``: what the planner does, at alpha .05: block medians longer than the measured dependence, two planned looks
  that share the error budget, a practical margin of 2 %, three answers.
- ``rank test``: one raw two-sided Mann-Whitney test at .05 on 100 against 100 steps, the better side wins.
- ``peeking``: the same, looked at every 10 steps until significant.
- ``t-test``: Welch's, otherwise as the rank test.
- ``1.05``: the ratio of the means passes 1.05 (the fixed threshold of Pollux).

The last line is one JSON object: ``false_change_rate_max`` (REX, the worst series), ``power_5pct`` (REX, the mean over
the series), and both for each rule and series.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import stats

from rex_operator.api.spec import Validation
from rex_operator.planning import CandidateSummary, PlanDraft
from rex_operator.planning.trial import Trial, steps_needed
from rex_operator.planning.windows import GroupStep

Sample = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], Sample]
Rule = Callable[[Sample, Sample], bool]

SPEC = Validation()
BEFORE, AFTER = SPEC.max_steps, SPEC.max_steps
WINDOW = 100
SPREAD = 0.05
"""Standard deviation of the logarithm of step times; published ones have 0.2-4 %."""
GAIN = 0.05
SEED = 20260101


def ar1(rho: float, drift: float = 0.0) -> Draw:
    """Return a maker of series of lognormal step times with lag-1 correlation ``rho``."""
    trend = drift * np.linspace(-0.5, 0.5, BEFORE + AFTER)

    def draw(rng: np.random.Generator) -> Sample:
        noise = rng.normal(size=BEFORE + AFTER) * np.sqrt(1 - rho * rho)
        noise[0] = rng.normal()
        for i in range(1, noise.size):
            noise[i] += rho * noise[i - 1]
        times: Sample = np.exp(SPREAD * noise + trend)
        return times

    return draw


def recorded(folder: Path) -> Iterator[tuple[str, Draw]]:
    """Return a maker per record with a fixed even batch: a random stretch of it, epoch starts left out."""
    for path in sorted(folder.glob("*_even_*.csv.gz")):
        with gzip.open(path, "rt", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["iteration"] != "0"]
        workers = sum(name.startswith("compute_s_") for name in rows[0])
        times = np.array(
            [max(float(r[f"compute_s_{i}"]) + float(r[f"comm_s_{i}"]) for i in range(workers)) for r in rows]
        )

        def draw(rng: np.random.Generator, times: Sample = times) -> Sample:
            start = int(rng.integers(times.size - BEFORE - AFTER))
            return times[start : start + BEFORE + AFTER]

        yield "lbb " + path.name.split("_even_")[0], draw


def rex(before: Sample, after: Sample) -> bool:
    """Let the planner's own trial decide, looking whenever it would."""
    keep = 2 * steps_needed(SPEC, before)
    plan = PlanDraft(1, 1, {"w0": 1}, 1.0)
    choice = CandidateSummary(global_batch=1, accumulation=1, expected_gain=0.0, ei=0.0)
    trial = Trial(plan, plan, choice, before[-keep:], np.zeros(0), 1.0, SPEC)
    none = np.zeros(1)
    steps = [
        GroupStep(i, i, float(t), none, none, none, none, none, none, 0.0, None, False, True)
        for i, t in enumerate(after)
    ]
    for n in range(10, len(steps) + 1, 10):
        look = trial.due(steps[:n])
        if look is None:
            continue
        judgement = trial.judge(look, steps[:n])
        if judgement.verdict != "open" or look.final:
            return judgement.verdict == "better"
    return False


def rank_test(before: Sample, after: Sample) -> bool:
    """One raw two-sided test at .05; the better side wins."""
    x, y = after[:WINDOW], before[-WINDOW:]
    p = stats.mannwhitneyu(x, y, alternative="two-sided", method="asymptotic").pvalue
    return bool(p < 0.05 and np.median(x) < np.median(y))


def peeking(before: Sample, after: Sample) -> bool:
    """Test every 10 steps until it is significant."""
    for n in range(10, 2 * WINDOW + 1, 10):
        x, y = after[:n], before[-2 * WINDOW :]
        if stats.mannwhitneyu(x, y, alternative="two-sided", method="asymptotic").pvalue < 0.05:
            return bool(np.median(x) < np.median(y))
    return False


def t_test(before: Sample, after: Sample) -> bool:
    """Welch's t-test at .05."""
    x, y = after[:WINDOW], before[-WINDOW:]
    return bool(stats.ttest_ind(x, y, equal_var=False).pvalue < 0.05 and x.mean() < y.mean())


def fixed_ratio(before: Sample, after: Sample) -> bool:
    """The means differ by more than 5 %."""
    return bool(before[-WINDOW:].mean() / after[:WINDOW].mean() > 1.05)


RULES: dict[str, Rule] = {
    "rex": rex,
    "rank test": rank_test,
    "peeking": peeking,
    "t-test": t_test,
    "1.05": fixed_ratio,
}


def measure(draw: Draw, trials: int, gain: float) -> dict[str, float]:
    """Return how often each rule accepts a change that makes steps ``gain`` faster."""
    rng = np.random.default_rng(SEED)
    accepted = dict.fromkeys(RULES, 0)
    for _ in range(trials):
        times = draw(rng)
        before, after = times[:BEFORE], times[BEFORE:] / (1 + gain)
        for name, rule in RULES.items():
            accepted[name] += rule(before, after)
    return {name: count / trials for name, count in accepted.items()}


def main() -> None:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="150 instead of 2000 trials per series; under a minute")
    parser.add_argument("--lbb", type=Path, metavar="DIR", help="folder with the LBB records as *.csv.gz")
    options = parser.parse_args()
    series: dict[str, Draw] = {
        "independent": ar1(0.0),
        "AR(1) .3": ar1(0.3),
        "AR(1) .6": ar1(0.6),
        "AR(1) .8": ar1(0.8),
        "3 % faster": ar1(0.0, drift=-0.03),
    }
    if options.lbb is not None:
        series.update(recorded(options.lbb))
    trials = 150 if options.quick else 2000
    console = Console(width=120)
    console.print(f"{trials} trials of each kind on each of {len(series)} series")
    false_changes = {name: measure(draw, trials, 0.0) for name, draw in series.items()}
    power = {name: measure(draw, trials, GAIN) for name, draw in series.items()}
    table = Table(title=f"changes accepted: without any gain / with a gain of {GAIN:.0%}")
    table.add_column("series")
    for rule in RULES:
        table.add_column(rule, justify="right")
    for name in series:
        table.add_row(name, *(f"{false_changes[name][rule]:.1%} / {power[name][rule]:.0%}" for rule in RULES))
    console.print(table)
    result = {
        "false_change_rate_max": max(rates["rex"] for rates in false_changes.values()),
        "power_5pct": float(np.mean([rates["rex"] for rates in power.values()])),
        "trials": trials,
        "false_changes": false_changes,
        "power": power,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
