"""Promise 9: below the minimum no device is held longer than ``pendingDeadlineSeconds``.

A job that waits without pods holds nothing and may wait for room as long as it likes; one whose pools match no node, or
whose pods are refused, fails when the time is up, because waiting rarely mends that. A job that holds devices without
training gives them back when other workers find no place, and fails when its own workers are at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rex_operator.controller.observation import Observation, Outcome
from rex_operator.controller.pods import PodView
from rex_operator.placement import Placement

RELEASE_PAUSE = timedelta(seconds=30)
GIVEN_BACK = "DevicesGivenBack"


def overdue(seen: Observation, placement: Placement) -> Outcome | str:
    """What the bound demands now: an outcome, the reason for which devices are given back, or ""."""
    limit = timedelta(seconds=seen.spec.pending_deadline_seconds)
    live = seen.live
    if not live:
        hopeless = seen.blocked or (placement.message if placement.no_match else "")
        if hopeless and seen.now - _idle_since(seen) >= limit:
            reason = "PodsRefused" if seen.blocked else "NoMatchingNodes"
            return Outcome(False, reason, f"not started within {_bound(seen)}: {hopeless}")
        return ""
    since = held_since(seen)
    if since is None or seen.now - since < limit:
        return ""
    return _fault(seen, live) or _shortage(seen, live)


def held_since(seen: Observation) -> datetime | None:
    """Since when the job holds devices without training; None when it trains or holds nothing."""
    running = seen.status.condition("Running")
    live = seen.live
    if not live or (running is not None and running.status == "True"):
        return None
    return max(_idle_since(seen), min(pod.created for pod in live))


def seconds_left(seen: Observation) -> float | None:
    """Seconds until the bound must be looked at again."""
    since = held_since(seen) or (_idle_since(seen) if not seen.live else None)
    if since is None:
        return None
    return (since + timedelta(seconds=seen.spec.pending_deadline_seconds) - seen.now).total_seconds()


def paused_until(seen: Observation) -> datetime:
    """After devices were given back the others get a moment to take them."""
    scheduled = seen.status.condition("Scheduled")
    if scheduled is not None and scheduled.reason == GIVEN_BACK:
        return scheduled.last_transition_time + RELEASE_PAUSE
    return seen.now


def _idle_since(seen: Observation) -> datetime:
    running = seen.status.condition("Running")
    return running.last_transition_time if running is not None else seen.created


def _bound(seen: Observation) -> str:
    return f"pendingDeadlineSeconds ({seen.spec.pending_deadline_seconds})"


def _fault(seen: Observation, live: Sequence[PodView]) -> Outcome | None:
    """What is wrong with the job's own workers, so that other devices would not help."""
    bound = _bound(seen)
    stuck = next((pod for pod in live if pod.stuck), None)
    if stuck is not None:
        return Outcome(False, "WorkersStuck", f"worker {stuck.worker_id} did not start within {bound}: {stuck.stuck}")
    silent = next((pod for pod in live if pod.started and seen.connected(pod) < pod.devices), None)
    if silent is not None:
        text = f"worker {silent.worker_id} runs but did not connect within {bound}: does its script call rex.init()?"
        return Outcome(False, "NeverConnected", text)
    if seen.minimum_met and all(seen.connected(pod) == pod.devices for pod in live):
        return Outcome(False, "NeverReady", f"the workers connected but did not begin to train within {bound}")
    return None


def _shortage(seen: Observation, live: Sequence[PodView]) -> str:
    unbound = sum(pod.node is None for pod in live)
    if unbound:
        return f"{unbound} of {len(live)} workers found no place within {_bound(seen)}; all devices are given back"
    return f"not enough workers to train for {_bound(seen)}; their devices are given back"
