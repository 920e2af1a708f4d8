"""What to do about a worker that ended: replace it, and at whose expense, or end the job.

A program that fails again and again must not run for ever, and a job on preemptible machines must not die because its
machines were taken away. So there are two counts: what the program did is charged to the job's budget, what the
cluster or REX itself did is not. A plan that asked too much of a device's memory is REX's doing, too; the ceiling sinks
with each such end, so that they cannot go on for ever. The user's own rules come first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rex_operator.api.spec import Failure
from rex_worker.protocol import EXIT_OUT_OF_MEMORY

NOT_CHARGED = frozenset(
    {
        "DeletionByTaintManager",
        "DisruptionTarget",
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "Planned",
        "Preempted",
        "PreemptionByScheduler",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""Reasons that lie outside the program."""

MAX_DELAY_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """What follows from one end. ``charged`` counts against ``failure.maxRestarts``."""

    fail: bool
    charged: bool
    message: str
    reason: str = ""
    """CamelCase cause of a failed job."""


def judge(failure: Failure, charged_so_far: int, exit_code: int | None, reasons: Collection[str] = ()) -> Verdict:
    """Decide about a worker that ended with ``exit_code`` (128 + signal for signals) for ``reasons``.

    Exactly ``max_restarts`` charged replacements are made: the next charged end fails the job.
    """
    what = _describe(exit_code, reasons)
    action = _rule(failure, exit_code, reasons)
    spared = exit_code == EXIT_OUT_OF_MEMORY or bool(NOT_CHARGED.intersection(reasons))
    if action == "Fail":
        return Verdict(True, True, f"{what}, and failure.rules say Fail", "FailureRule")
    if action == "Ignore" or (action is None and spared):
        return Verdict(False, False, f"{what}; replaced, not charged")
    if charged_so_far >= failure.max_restarts:
        used_up = f"{what}; failure.maxRestarts ({failure.max_restarts}) is used up"
        return Verdict(True, True, used_up, "RestartsUsedUp")
    return Verdict(False, True, f"{what}; replaced, restart {charged_so_far + 1} of {failure.max_restarts}")


def restart_delay(failures_in_a_row: int) -> float:
    """Seconds to wait before a worker is started again: nothing at first, then doubling up to a minute."""
    return 0.0 if failures_in_a_row <= 1 else min(MAX_DELAY_S, 0.5 * 2.0 ** min(failures_in_a_row - 2, 10))


def _rule(failure: Failure, exit_code: int | None, reasons: Collection[str]) -> str | None:
    for rule in failure.rules:
        if exit_code in rule.exit_codes or any(reason in rule.reasons for reason in reasons):
            return rule.action
    return None


def _describe(exit_code: int | None, reasons: Collection[str]) -> str:
    causes = ", ".join(sorted(reasons))
    if exit_code == EXIT_OUT_OF_MEMORY:
        causes = "the device's memory was full; the next plan asks for less"
    elif "OOMKilled" in reasons:
        causes += ": the container's memory on the host was full, not the device's"
    if exit_code is None:
        return causes or "worker is gone"
    return f"exit code {exit_code}" + (f" ({causes})" if causes else "")
