"""Decisions in one English sentence each, for people who read status, events and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rex_operator.planning.advice import Advice, Smaller
from rex_operator.planning.policies import Rebalance, Rung
from rex_operator.planning.straggler import SpeedChange
from rex_operator.planning.trial import Trial
from rex_operator.planning.types import CandidateSummary, PlanDraft, WorkerInfo
from rex_operator.planning.verdict import Judgement


def plan(batch: int, accumulation: int) -> str:
    """Name a plan: ``batch 512 in 2 passes``."""
    return f"batch {batch}" + (f" in {accumulation} passes" if accumulation > 1 else "")


def _worker(worker_id: str, workers: Mapping[str, WorkerInfo]) -> str:
    device = workers[worker_id].device if worker_id in workers else ""
    return f"{worker_id} ({device})" if device else worker_id


def membership(workers: Sequence[WorkerInfo], draft: PlanDraft) -> str:
    """Say who shares what."""
    kinds = Counter(w.device for w in workers)
    team = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())[:8])
    return f"{len(workers)} workers ({team}) share {plan(draft.global_batch, draft.accumulation)}."


def rebalanced(
    found: Rebalance, change: SpeedChange | None, names: Sequence[str], workers: Mapping[str, WorkerInfo]
) -> str:
    """Say why shares moved; names the worker that became slow or fast, if one did."""
    hoped = "" if found.gain is None else f"predicted {found.gain:+.1%} throughput, "
    to = "" if found.spread_after is None else f" to {found.spread_after:.2f}"
    effect = f"{hoped}spread {found.spread_before:.2f}{to}"
    if change is not None:
        who = _worker(names[change.worker], workers)
        pace = f"{change.ratio:.2f}x slower" if change.ratio > 1 else f"{1 / change.ratio:.2f}x faster"
        return f"{who} became {pace} at step {change.step} (p = {change.p:.1g}): shares move, {effect}."
    return f"{_worker(found.slowest, workers)} finished last: shares move, {effect}."


def rescaled(before: PlanDraft, after: PlanDraft, noise_scale: float | None) -> str:
    """Say why the rate of a batch changed."""
    old, new = before.learning_rate_factor, after.learning_rate_factor
    scale = "unknown" if noise_scale is None else f"{noise_scale:.3g} samples"
    name = plan(after.global_batch, after.accumulation)
    return f"The learning rate at {name} goes from x{old:.3g} to x{new:.3g}: the noise scale is {scale}."


def trial_started(running: PlanDraft, choice: CandidateSummary) -> str:
    """Say what is tried and what is hoped for."""
    old, new = plan(running.global_batch, running.accumulation), plan(choice.global_batch, choice.accumulation)
    return f"Trying {new} instead of {old}: expected {choice.expected_gain:+.1%}."


def in_two_passes(running: PlanDraft) -> str:
    """Say why one worker computes in two passes what it can in one."""
    name = plan(running.global_batch, running.accumulation)
    return f"One worker shows its noise scale between two passes only: {name} runs in 2, until a search finds better."


def switchback(trial: Trial) -> str:
    """Say that the incumbent runs again for a while."""
    new = plan(trial.plan.global_batch, trial.plan.accumulation)
    old = plan(trial.incumbent.global_batch, trial.incumbent.accumulation)
    return f"{new} ran long enough: {old} runs again, so that drift cannot pass for a difference."


def climbed(trial: Trial, before: PlanDraft, rung: Rung) -> str:
    """Say why a trial goes on with a larger batch."""
    old, base = (plan(p.global_batch, p.accumulation) for p in (before, trial.incumbent))
    return (
        f"In the trial: {old} is {rung.shown:.0%} better than {base} in its first {rung.steps} steps, so it goes on"
        f" with {plan(rung.global_batch, rung.accumulation)}, expected {rung.more:+.1%} on top."
    )


def verdict(trial: Trial, judgement: Judgement) -> str:
    """Say how a trial ended."""
    new = plan(trial.plan.global_batch, trial.plan.accumulation)
    old = plan(trial.incumbent.global_batch, trial.incumbent.accumulation)
    evidence = judgement.evidence
    if evidence is None and judgement.verdict == "better":
        return f"{new} is kept without a test."
    if evidence is None:
        return f"No usable step times under {new}: {old} stays."
    windows = f"{evidence.n_reference} against {evidence.n_trial} steps"
    match judgement.verdict:
        case "better":
            return f"{new} is {evidence.effect:.1%} better than {old} (p = {evidence.p_better:.2g}, {windows}): kept."
        case "worse":
            return f"{new} is {-evidence.effect:.1%} worse than {old} (p = {evidence.p_worse:.2g}, {windows})."
        case _:
            return (
                f"{new} could not be shown to beat {old} by {trial.spec.min_effect:.1%} ({evidence.effect:+.1%},"
                f" p = {evidence.p_better:.2g}, {windows}): {old} stays."
            )


def voided(trial: Trial, change: SpeedChange, names: Sequence[str], workers: Mapping[str, WorkerInfo]) -> str:
    """Say that a trial tells nothing any more."""
    who = _worker(names[change.worker], workers)
    pace = f"{change.ratio:.2f}x slower" if change.ratio > 1 else f"{1 / change.ratio:.2f}x faster"
    old = plan(trial.incumbent.global_batch, trial.incumbent.accumulation)
    return f"{who} became {pace} at step {change.step} during a trial: back to {old} with other shares."


def overfull(trial: Trial, worker: WorkerInfo, part: float) -> str:
    """Say that a trial came too near to the edge of a worker's memory."""
    new = plan(trial.plan.global_batch, trial.plan.accumulation)
    return f"{new} leaves {max(0.0, 1 - part):.1%} of the memory of {worker.worker_id} ({worker.device}) free."


def advised(found: Advice, workers: Mapping[str, WorkerInfo]) -> str:
    """Say who does not pay for themselves, and what to do about it."""
    what = "costs" if found.by_price else "draws"

    def team(smaller: Smaller) -> str:
        names = [_worker(name, workers) for name in smaller.without]
        who = ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
        pace = f"takes {smaller.slower:.0%} longer" if smaller.slower >= 0.005 else "takes no longer"
        return f"without {who} a useful sample {what} {smaller.saving:.0%} less and {pace}"

    teams = [team(found.steps[0]), *([team(found.best)] if len(found.steps) > 1 else [])]
    pools = ", ".join(f"pools[{pool}].maxWorkers to {count}" for pool, count in sorted(found.counts.items())[:4])
    told = "; ".join(teams)
    return f"{told[0].upper()}{told[1:]} (predicted): set {pools}."


def out_of_memory(worker: WorkerInfo, micro_batch: int) -> str:
    """Say what did not fit where."""
    return f"{micro_batch} samples a pass do not fit in the memory of {worker.worker_id} ({worker.device})"
