"""Where drift might decide, the incumbent runs again after the trial, and steady drift cancels."""

from __future__ import annotations

import numpy as np
import pytest

from rex_operator.api.spec import Validation
from rex_operator.planning import Planner
from rex_operator.planning.statistics import mann_whitney, paired_windows
from rex_operator.planning.trial import Trial
from rex_operator.planning.types import DecisionRecord
from rex_operator.planning.verdict import Levels, compare_with_both
from tests.planning.simulated import MIX, POLL_S, Job, spec
from tests.planning.test_nothing_without_evidence import CHOICE, PLAN, group_step

LEVELS = Levels(0.0238, 0.0238)


def drifting(n: int, begin: int, drift: float, seed: int, gain: float = 0.0) -> np.ndarray:
    """``n`` steps from step ``begin`` on of a job whose steps change by ``drift`` in 100 steps."""
    noise = np.random.default_rng(seed).normal(size=n)
    return np.exp(0.01 * noise + drift * np.arange(begin, begin + n) / 100) / (1 + gain)


@pytest.mark.parametrize("drift", [-0.05, 0.05])
@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "open"), (0.05, "better"), (-0.05, "worse")])
def test_between_two_windows_of_the_incumbent_steady_drift_cancels(drift: float, gain: float, verdict: str) -> None:
    before, trial = drifting(40, 0, drift, 1), drifting(40, 50, drift, 2, gain)
    judgement = compare_with_both(before, trial, drifting(40, 100, drift, 3), LEVELS, 0.02)
    assert judgement.verdict == verdict
    evidence = judgement.evidence
    assert evidence is not None and evidence.switchback
    assert evidence.effect == pytest.approx(gain, abs=0.01)
    assert evidence.drift == pytest.approx(drift, abs=0.015)
    assert (evidence.n_reference, evidence.n_trial) == (80, 40)


def run(reference: np.ndarray, tried: np.ndarray, wary: bool = False) -> tuple[Trial, str]:
    trial = Trial(PLAN, PLAN, CHOICE, reference, np.zeros(0), 1.0, Validation(), wary=wary)
    steps = [group_step(i, float(t)) for i, t in enumerate(tried)]
    look = trial.due(steps)
    assert look is not None
    verdict = trial.judge(look, steps).verdict
    if verdict == "open" and trial.ends(steps):
        trial.go_back(steps)
    return trial, verdict


def test_a_gain_that_the_references_own_drift_explains_is_not_believed_at_once() -> None:
    drift = -0.10
    trial, verdict = run(drifting(60, 0, drift, 1), drifting(60, 50, drift, 2))
    assert verdict == "open" and trial.back
    again = [group_step(i, float(t)) for i, t in enumerate(drifting(60, 120, drift, 3))]
    look = trial.due(again)
    assert look is not None and look.final
    assert trial.judge(look, again).verdict == "open"


def test_a_gain_that_drift_cannot_explain_needs_no_way_back() -> None:
    trial, verdict = run(drifting(60, 0, 0.0, 1), drifting(60, 50, 0.0, 2, gain=0.1))
    assert verdict == "better" and not trial.back


def test_c_133_a_hundred_slow_first_steps_of_a_team_make_no_trial_look_good() -> None:
    """The reference is slow for reasons of its own, evenly, so that no drift shows; the trial comes after it."""
    trial, verdict = run(3 * drifting(60, 0, 0.0, 1), drifting(60, 50, 0.0, 2), wary=True)
    assert verdict == "open" and trial.back
    again = [group_step(i, float(t)) for i, t in enumerate(drifting(60, 120, 0.0, 3))]
    look = trial.due(again)
    assert look is not None
    assert trial.judge(look, again).verdict == "open", "both halves must show the gain"


@pytest.mark.parametrize(("shown", "believed"), [(2.0, False), (0.5, True)])
def test_c_133_a_climb_that_got_better_twice_is_no_slow_start(shown: float, believed: bool) -> None:
    """A slow start that is over makes the first rung look good, and the last one no better than that."""
    reference, tried = 3 * drifting(60, 0, 0.0, 1), drifting(60, 50, 0.0, 2)
    trial = Trial(PLAN, PLAN, CHOICE, reference, np.zeros(0), 1.0, Validation(), wary=True, shown=shown)
    steps = [group_step(i, float(t)) for i, t in enumerate(tried)]
    look = trial.due(steps)
    assert look is not None
    assert (trial.judge(look, steps).verdict == "better") is believed


@pytest.mark.parametrize(("gain", "believed"), [(0.10, False), (0.40, True)])
def test_a_reference_that_was_carried_over_shows_large_gains_only(gain: float, believed: bool) -> None:
    trial = Trial(PLAN, PLAN, CHOICE, drifting(60, 0, 0.0, 1) / 1.5, np.zeros(0), 1.0, Validation())
    trial.translate(1.5, {}, PLAN)
    steps = [group_step(i, float(t)) for i, t in enumerate(drifting(60, 50, 0.0, 2, gain))]
    look = trial.due(steps)
    assert look is not None
    assert (trial.judge(look, steps).verdict == "better") is believed


def test_pairs_are_ranked_apart_so_that_their_levels_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(0.8, 1, 30), rng.normal(0, 1, 30)
    apart = paired_windows([(x[:15], y[:15]), (x[15:] + 100, y[15:] + 100)])
    assert apart.p_greater == pytest.approx(paired_windows([(x[:15], y[:15]), (x[15:], y[15:])]).p_greater)
    assert paired_windows([(x, y)]) == mann_whitney(x, y)
    assert paired_windows([(x[:15], x[:15]), (y[:9], y[:9])]).a12 == pytest.approx(0.5)


def decisions(job: Job, kind: str, seconds: float = 300.0) -> list[DecisionRecord]:
    end = job.now + seconds
    while job.now < end:
        job.run(POLL_S)
        found = [d for d in job.planner.decisions if d.kind == kind]
        if found:
            return found
    raise AssertionError(f"no {kind}: {job.kinds()}")


@pytest.fixture
def back() -> Job:
    """A job in which the incumbent has just begun to run again."""
    planner = Planner(spec(64, 32, 128), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise=0.03, noise_scale=lambda samples: 500.0)
    decisions(job, "switchback")
    return job


def test_the_first_trial_of_a_team_always_ends_with_the_incumbent(back: Job) -> None:
    started, switched = (
        next(d for d in back.planner.decisions if d.kind == k) for k in ("trial-started", "switchback")
    )
    assert started.plan_from == switched.plan_to and started.plan_to is not None
    assert back.plan is not None and back.plan.global_batch == 64
    view = back.planner.view()
    assert view.trial is not None and view.trial.back and view.trial.global_batch == started.plan_to.global_batch
    accepted = decisions(back, "accepted")[0]
    assert accepted.evidence is not None and accepted.evidence.switchback
    assert accepted.plan_to is not None and accepted.plan_to.global_batch == started.plan_to.global_batch
    back.run(POLL_S)
    latest = [draft.global_batch for draft in back.drafts[-3:]]
    assert started.plan_to.global_batch in latest, "the plan on trial comes back"


def test_a_job_tells_what_its_trials_cost_and_what_of_the_budget_is_spent(back: Job) -> None:
    accepted = decisions(back, "accepted")[0]
    started = next(d for d in back.planner.decisions if d.kind == "trial-started")
    cost, evidence = accepted.cost, accepted.evidence
    assert cost is not None and evidence is not None
    assert cost.steps == accepted.step - started.step
    assert cost.seconds == pytest.approx(accepted.time_s - started.time_s)
    assert cost.samples > 0, "the plan on trial was the better one while it ran"
    assert evidence.budget_spent == pytest.approx(back.planner.view().budget_spent)
    assert 0 < back.planner.view().next_level <= 0.05
    again = Planner(back.planner.spec, np.random.default_rng(0), back.planner.state())
    assert again.view().budget_spent == pytest.approx(evidence.budget_spent)


def test_a_worker_that_becomes_slow_meanwhile_voids_the_trial() -> None:
    planner = Planner(spec(64, 32, 128, validation={"minSteps": 100, "warmupSteps": 5}), np.random.default_rng(0))
    job = Job.of(planner, MIX, noise=0.01, noise_scale=lambda samples: 500.0)
    decisions(job, "switchback")
    while (planner.view().trial or pytest.fail("the trial is over")).steps < 30:
        job.one_step()
    job.slow["w0"] = 2.5
    job.run(1)
    assert job.kinds()[-1] == "rebalanced"
    assert planner.view().trial is None and planner.view().trials == 0, "it tells nothing, so it does not count"


def test_a_team_that_changes_meanwhile_drops_it(back: Job) -> None:
    back.join({}, leave=("w3",))
    assert back.planner.view().trial is None
    assert back.plan is not None and back.plan.global_batch == 64
