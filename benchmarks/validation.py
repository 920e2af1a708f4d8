"""How often does a rule for accepting a plan err? False changes on A/A data, power at a true gain, and what it takes.

A trial compares the steps before a change with those after it. Here both come from one series, so that every accepted
change is false (A/A), or the plan on trial is 5 % faster, so that every other answer is a miss. The series are step
times as training makes them: independent, autocorrelated (AR(1) .3, .6, .8), drifting (3 % and 10 % faster within 400
steps, the longest window), both at once; and every published record of LBB, three or four unequal GPUs, where
``--data`` (or REX_DATA, or ../shared/data beside the checkout) has a folder ``lbb``. The rules:

- ``rex``: what the planner does in a job's first trial, at alpha .05: block medians longer than the measured
  dependence, two planned looks that share the level, a practical margin of 2 %, three answers, and the incumbent once
  more before the last look and where drift might explain the first.
- Its parts left out, one at a time: ``no margin``; ``no blocks``; ``one look`` (at as many steps as the first, at the
  whole level); ``no way back`` (the trial goes on instead, the reference stays the window before it); ``always back``
  (A-B-A for every trial, and one look).
- ``rank test``: one raw two-sided Mann-Whitney test at .05 on 100 against 100 steps, the better side wins.
- ``peeking``: the same, looked at every 10 steps until significant.
- ``t-test``: Welch's, otherwise as the rank test.
- ``1.05``: the ratio of the means passes 1.05 (the fixed threshold of Pollux).

The last line is one JSON object: ``false_change_rate_max`` (REX, the worst series), ``power_5pct`` (REX, the mean over
the series with at most ``POWER_STEPS`` steps a side), ``power_5pct_min`` (the worst of them), ``steps_median`` (both
plans together, up to the answer), and all of it for each rule and series.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy import signal, stats

from rex_operator.api.spec import Validation
from rex_operator.planning import CandidateSummary, PlanDraft
from rex_operator.planning.budget import ErrorBudget
from rex_operator.planning.trial import Trial, steps_needed
from rex_operator.planning.verdict import Levels, compare_with_both, judge_pairs, look_levels
from rex_operator.planning.windows import GroupStep
from rex_operator.simulation.published.lbb import records

Sample = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], Sample]

SPEC = Validation()
BEFORE = SPEC.max_steps
LENGTH = BEFORE + 4 * SPEC.max_steps
POWER_STEPS = 200
WINDOW = 100
CHANGE = 10
"""Steps of a change and its warm-up, that nobody compares."""
LOOK_EVERY = 10
SPREAD = 0.05
"""Standard deviation of the logarithm of step times; published ones have 0.2-4 %."""
SEED = 20260101
LEVEL = ErrorBudget(SPEC.alpha).level
"""One-sided, of a job's first trial; those that follow in vain are stricter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of one trial."""

    verdict: str
    steps: int
    """Of both plans, from the start of the trial."""


Rule = Callable[[Sample, float], Outcome]
"""Takes a series and the true gain of the plan on trial."""


class Job:
    """A series of step times, taken step by step under either plan."""

    def __init__(self, times: Sample, gain: float) -> None:
        self.before = times[:BEFORE]
        self._times, self._gain, self._at = times, gain, BEFORE

    @property
    def steps(self) -> int:
        """Steps since the trial started."""
        return self._at - BEFORE

    def change(self) -> None:
        """Let the steps of a change go by."""
        self._at += CHANGE

    def run(self, steps: int, *, tried: bool) -> Sample:
        """Return the times of the next steps; fewer where the series ends."""
        taken = self._times[self._at : self._at + steps]
        self._at += taken.size
        return taken / (1 + self._gain) if tried else taken


def series(rho: float, drift: float = 0.0, spread: float = SPREAD) -> Draw:
    """Return a maker of lognormal step times with lag-1 correlation ``rho``, drifting by ``drift`` in 400 steps."""
    trend = drift * np.arange(LENGTH) / 400

    def draw(rng: np.random.Generator) -> Sample:
        noise = rng.normal(size=LENGTH) * np.sqrt(1 - rho * rho)
        noise[0] = rng.normal()
        return np.asarray(np.exp(spread * signal.lfilter([1.0], [1.0, -rho], noise) + trend))

    return draw


def recorded(folder: Path) -> Iterator[tuple[str, Draw]]:
    """Return a maker per record: a random stretch of it, epoch starts left out; short records go round."""
    for record in records(folder):
        times = record.step_s[record.iteration != 0]
        if times.size < 2 * LENGTH:
            times = np.tile(times, 1 + 2 * LENGTH // times.size)

        def draw(rng: np.random.Generator, times: Sample = times) -> Sample:
            start = int(rng.integers(times.size - LENGTH))
            return times[start : start + LENGTH]

        yield "lbb " + record.name.split("_bs")[0], draw


def rex(times: Sample, gain: float, spec: Validation = SPEC, level: float = LEVEL) -> Outcome:
    """Let the planner's own trial decide, looking whenever it would."""
    job, plan = Job(times, gain), PlanDraft(1, 1, {"w0": 1}, 1.0)
    choice = CandidateSummary(global_batch=1, accumulation=1, expected_gain=0.0, ei=0.0)
    reference = job.before[-2 * steps_needed(spec, job.before, level=level) :]
    trial = Trial(plan, plan, choice, reference, np.zeros(0), 1.0, spec, level=level)
    while True:
        job.change()
        steps: list[GroupStep] = []
        while not trial.ends(steps):
            taken = job.run(LOOK_EVERY, tried=not trial.back)
            if not taken.size:
                return Outcome("open", job.steps)
            steps += [_step(CHANGE + len(steps) + i, t) for i, t in enumerate(taken)]
            look = trial.due(steps)
            judgement = None if look is None else trial.judge(look, steps)
            if look is not None and judgement is not None and (judgement.verdict != "open" or look.final):
                return Outcome(judgement.verdict, job.steps)
        trial.go_back(steps)


_NOTHING = np.zeros(1)


def _step(number: int, seconds: float) -> GroupStep:
    none = _NOTHING
    return GroupStep(number, number, seconds, none, none, none, none, none, none, 0.0, None, False, True)


def no_margin(times: Sample, gain: float) -> Outcome:
    """REX with a practical margin of zero."""
    return rex(times, gain, SPEC.model_copy(update={"min_effect": 0.0}))


def no_blocks(times: Sample, gain: float) -> Outcome:
    """The two looks on single steps: windows as short as for independent ones."""
    job, first, last = Job(times, gain), *look_levels(2 * LEVEL, 0.5)
    reference, n = job.before[-2 * SPEC.min_steps :], SPEC.min_steps
    job.change()
    tried = job.run(n, tried=True)
    for level, more in ((first, n), (last, 0)):
        test = stats.mannwhitneyu(tried, reference, alternative="less", method="asymptotic").pvalue
        effect = np.median(reference) / np.median(tried) - 1
        if test <= level and effect >= SPEC.min_effect:
            return Outcome("better", job.steps)
        tried = np.concatenate([tried, job.run(more, tried=True)])
    return Outcome("open", job.steps)


def one_look(times: Sample, gain: float) -> Outcome:
    """One look at the first window, at the whole level, without a way back."""
    job, reference, tried = _first_window(times, gain)
    return Outcome(_judged(reference, tried, LEVEL), job.steps)


def no_way_back(times: Sample, gain: float) -> Outcome:
    """Two looks, but the reference is the window before only: the trial goes on instead."""
    job, reference, tried = _first_window(times, gain)
    first, last = look_levels(2 * LEVEL, 0.5)
    verdict = _judged(reference, tried, first)
    if verdict == "open":
        tried = np.concatenate([tried, job.run(min(tried.size, SPEC.max_steps - tried.size), tried=True)])
        verdict = _judged(reference, tried, last)
    return Outcome(verdict, job.steps)


def always_back(times: Sample, gain: float) -> Outcome:
    """A-B-A for every trial, all windows of one length, and one look."""
    job, reference, tried = _first_window(times, gain)
    job.change()
    again = job.run(tried.size, tried=False)
    judgement = compare_with_both(reference[-tried.size :], tried, again, Levels(LEVEL, LEVEL), SPEC.min_effect)
    return Outcome(judgement.verdict, job.steps)


def _first_window(times: Sample, gain: float) -> tuple[Job, Sample, Sample]:
    """Return the job after the first window of a trial, its reference and that window."""
    job = Job(times, gain)
    needed = steps_needed(SPEC, job.before, level=LEVEL)
    reference = job.before[-2 * needed :]
    job.change()
    tried = job.run(needed, tried=True)
    more = steps_needed(SPEC, reference, tried, level=LEVEL) - needed
    return job, reference, np.concatenate([tried, job.run(max(0, more), tried=True)])


def _judged(reference: Sample, tried: Sample, level: float) -> str:
    return judge_pairs([(reference, tried)], Levels(level, level), SPEC.min_effect).verdict


def rank_test(times: Sample, gain: float) -> Outcome:
    """One raw two-sided test at .05; the better side wins."""
    job, x, y = _windows(times, gain, WINDOW)
    p = stats.mannwhitneyu(x, y, alternative="two-sided", method="asymptotic").pvalue
    return Outcome("better" if p < 0.05 and np.median(x) < np.median(y) else "open", job.steps)


def peeking(times: Sample, gain: float) -> Outcome:
    """Test every 10 steps until it is significant."""
    _, tried, y = _windows(times, gain, 2 * WINDOW)
    for n in range(10, 2 * WINDOW + 1, 10):
        x = tried[:n]
        if stats.mannwhitneyu(x, y, alternative="two-sided", method="asymptotic").pvalue < 0.05:
            return Outcome("better" if np.median(x) < np.median(y) else "worse", CHANGE + n)
    return Outcome("open", CHANGE + 2 * WINDOW)


def t_test(times: Sample, gain: float) -> Outcome:
    """Welch's t-test at .05."""
    job, x, y = _windows(times, gain, WINDOW)
    better = stats.ttest_ind(x, y, equal_var=False).pvalue < 0.05 and x.mean() < y.mean()
    return Outcome("better" if better else "open", job.steps)


def fixed_ratio(times: Sample, gain: float) -> Outcome:
    """The means differ by more than 5 %."""
    job, x, y = _windows(times, gain, WINDOW)
    return Outcome("better" if y.mean() / x.mean() > 1.05 else "open", job.steps)


def _windows(times: Sample, gain: float, length: int) -> tuple[Job, Sample, Sample]:
    job = Job(times, gain)
    job.change()
    return job, job.run(length, tried=True), job.before[-length:]


RULES: dict[str, Rule] = {
    "rex": rex,
    "no margin": no_margin,
    "no blocks": no_blocks,
    "one look": one_look,
    "no way back": no_way_back,
    "always back": always_back,
    "rank test": rank_test,
    "peeking": peeking,
    "t-test": t_test,
    "1.05": fixed_ratio,
}


def capped(times: Sample, gain: float) -> Outcome:
    """REX with at most `POWER_STEPS` steps a side."""
    return rex(times, gain, SPEC.model_copy(update={"max_steps": POWER_STEPS}))


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one rule on one series, at one gain."""

    accepted: float
    rejected: float
    steps: float
    """Median."""


def measure(draw: Draw, rule: Rule, trials: int, gain: float) -> Rates:
    """Return how often a rule accepts, or finds worse, a change that makes steps ``gain`` faster."""
    rng = np.random.default_rng(SEED)
    outcomes = [rule(draw(rng), gain) for _ in range(trials)]
    verdicts = [outcome.verdict for outcome in outcomes]
    return Rates(
        verdicts.count("better") / trials,
        verdicts.count("worse") / trials,
        float(np.median([outcome.steps for outcome in outcomes])),
    )


def strictness(draw: Draw, trials: int) -> dict[int, tuple[float, float, float]]:
    """Return (level, power at 5 %, median steps) by the number of trials before that led to no change."""
    found = {}
    for before in (0, 4, 9, 19, 39):
        budget = ErrorBudget(SPEC.alpha)
        for _ in range(before):
            budget.spend()
        level = budget.level
        rates = measure(draw, lambda times, gain, level=level: rex(times, gain, level=level), trials, 0.05)  # type: ignore[misc]
        found[before] = (level, rates.accepted, rates.steps)
    return found


def whole_job(draw: Draw, jobs: int, trials: int = 40) -> tuple[float, float]:
    """Return the mean false changes of a job whose trials are all of no use: at a level of its own each; by budget."""
    rng = np.random.default_rng(SEED)
    alone = together = 0
    for _ in range(jobs):
        budget = ErrorBudget(SPEC.alpha)
        for _ in range(trials):
            times = draw(rng)
            alone += rex(times, 0.0, without_margin(), SPEC.alpha / 2).verdict == "better"
            if rex(times, 0.0, without_margin(), budget.spend()).verdict == "better":
                together += 1
                budget.earn()
    return alone / jobs, together / jobs


def without_margin() -> Validation:
    """Return the spec without the practical margin, where the level alone has to hold."""
    return SPEC.model_copy(update={"min_effect": 0.0})


def folder(given: Path | None) -> Path | None:
    """Return the folder with LBB's records, if there is one."""
    root = given or Path(os.environ.get("REX_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return next((path for path in (root / "lbb", root) if any(path.glob("*.csv*"))), None)


def main() -> None:
    """Measure, print tables and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="30 instead of 1000 trials per series; under a minute")
    parser.add_argument("--trials", type=int, help="trials per rule, series and gain")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of published data, with lbb/*.csv.gz")
    options = parser.parse_args()
    made: dict[str, Draw] = {
        "independent": series(0.0),
        "AR(1) .3": series(0.3),
        "AR(1) .6": series(0.6),
        "AR(1) .8": series(0.8),
        "3 % faster": series(0.0, drift=-0.03),
        "10 % faster": series(0.0, drift=-0.10),
        "AR(1) .6, 3 % faster": series(0.6, drift=-0.03),
        "AR(1) .8, 3 % faster": series(0.8, drift=-0.03),
    }
    data = folder(options.data)
    if data is not None:
        made.update(recorded(data))
    trials = options.trials or (30 if options.quick else 1000)
    console = Console(width=200)
    where = "" if data is not None else "; LBB's records are not here: see --data"
    console.print(f"{trials} trials of each rule on each of {len(made)} series{where}")

    rates = {
        name: {rule: {gain: measure(draw, run, trials, gain) for gain in (0.0, 0.05)} for rule, run in RULES.items()}
        for name, draw in made.items()
    }
    power = {name: measure(draw, capped, trials, 0.05) for name, draw in made.items()}
    table = Table(title="changes accepted without any gain / with a gain of 5 % (median steps)")
    table.add_column("series")
    for rule in RULES:
        table.add_column(rule, justify="right")
    for name, of in rates.items():
        cells = (f"{r[0.0].accepted:.1%} / {r[0.05].accepted:.0%} ({r[0.05].steps:.0f})" for r in of.values())
        table.add_row(name, *cells)
    console.print(table)

    looks = {
        name: {gain: measure(draw, rex, trials, gain) for gain in (0.01, 0.03, -0.03, -0.05)}
        for name, draw in made.items()
    }
    table = Table(
        title=f"REX: accepted at +1 %, +3 %; found worse at -3 %, -5 %; power at 5 % with {POWER_STEPS} steps a side"
    )
    for column in ("series", "+1 %", "+3 %", "-3 %", "-5 %", f"5 % in {POWER_STEPS}"):
        table.add_column(column, justify="right")
    for name, by in looks.items():
        shown = [by[0.01].accepted, by[0.03].accepted, by[-0.03].rejected, by[-0.05].rejected, power[name].accepted]
        table.add_row(name, *(f"{value:.1%}" for value in shown))
    console.print(table)

    stricter = strictness(made["AR(1) .3"], trials)
    console.print(
        f"The budget, after so many trials in vain (AR(1) .3, spread {SPREAD:.0%}): level, power at 5 %, steps"
    )
    for before, (level, found, steps) in stricter.items():
        console.print(f"  {before:3}  {level:.2g}  {found:.1%}  {steps:.0f}")
    jobs = max(2, trials // 20)
    alone, together = whole_job(made["independent"], jobs)
    console.print(
        f"False changes in a job of 40 trials in vain, no margin ({jobs} jobs): {alone:.2f} at .025 each,"
        f" {together:.3f} by the budget"
    )
    result = {
        "false_change_rate_max": max(of["rex"][0.0].accepted for of in rates.values()),
        "power_5pct": float(np.mean([rates.accepted for rates in power.values()])),
        "power_5pct_min": min(rates.accepted for rates in power.values()),
        "steps_median": {rule: float(np.median([of[rule][0.05].steps for of in rates.values()])) for rule in RULES},
        "trials": trials,
        "false_changes": {name: {rule: r[0.0].accepted for rule, r in of.items()} for name, of in rates.items()},
        "power": {name: {rule: r[0.05].accepted for rule, r in of.items()} for name, of in rates.items()},
        "false_changes_per_job": {"per trial": alone, "budget": together},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
