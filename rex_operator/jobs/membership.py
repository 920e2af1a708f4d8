"""Who should form the next generation, and when: the one policy behind growth, planned shrinkage and loss.

Forming a group costs a pause, so it is done as rarely as the rules allow: newcomers are gathered for a moment and join
together, while a loss is answered at once because the survivors stand still anyway. Nobody who works is taken out
before the rest can go on without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rex_operator.api import RexJobSpec
from rex_operator.jobs.life import Life
from rex_worker.pod import in_order

FIRST_GROUP_WAIT_S = 5.0
"""How long after the last Ready the first group still waits for the others."""
JOIN_WINDOW_S = 1.0
"""Newcomers that are ready within this time join in one generation."""


def next_members(
    current: Sequence[Life],
    newcomers: Sequence[Life],
    spec: RexJobSpec,
    *,
    everyone_ready: bool,
    broken: bool,
    now: float,
) -> list[Life] | None:
    """Return the members of the next generation in rank order, or None to leave things as they are.

    ``current`` are the members of the last generation, ``newcomers`` the lives that are ready and in no group;
    ``everyone_ready`` says that no worker is still being started, ``broken`` that the group fell apart though all of
    its members live. Survivors keep their order, so that rank 0, whose state the others take, is an old hand.
    """
    stay = [life for life in current if life.alive and not life.departing]
    departing = [life for life in current if life.alive and life.departing]
    fresh = sorted(newcomers, key=by_number)
    if not stay and not departing:
        return _first_group(fresh, spec, everyone_ready=everyone_ready, now=now)
    urgent = broken or len(stay) + len(departing) < len(current)
    joiners = fresh if urgent or _gathered(fresh, now) else []
    if not (urgent or departing or joiners):
        return None
    choices = [stay + joiners]
    if urgent or joiners:
        replaced = {life.worker_id for life in joiners}
        choices.append(stay + [life for life in departing if life.worker_id not in replaced] + joiners)
    for choice in choices:
        members = _within_limits(choice, spec)
        if viable(members, spec) and (urgent or _keys(members) != _keys(current)):
            return members
    return None


def viable(members: Sequence[Life], spec: RexJobSpec) -> bool:
    """Whether these can train: ``workers.min`` in all and ``minWorkers`` of each pool."""
    if len(members) < spec.workers.min:
        return False
    return all(sum(life.pool == pool.name for life in members) >= pool.min_workers for pool in spec.pools)


def by_number(life: Life) -> tuple[list[int], str]:
    """Sort key that puts w2 before w10, and the workers of a pod side by side: neighbours talk to each other most."""
    return in_order(life.worker_id)


def _first_group(ready: list[Life], spec: RexJobSpec, *, everyone_ready: bool, now: float) -> list[Life] | None:
    waited = bool(ready) and now - max(life.ready_at or 0.0 for life in ready) >= FIRST_GROUP_WAIT_S
    members = _within_limits(ready, spec)
    return members if viable(members, spec) and (everyone_ready or waited) else None


def _gathered(fresh: list[Life], now: float) -> bool:
    return bool(fresh) and now - min(life.ready_at or 0.0 for life in fresh) >= JOIN_WINDOW_S


def _within_limits(members: list[Life], spec: RexJobSpec) -> list[Life]:
    return members[: min(spec.workers.max, spec.batch.most_workers)]


def _keys(members: Sequence[Life]) -> list[tuple[str, str]]:
    return [life.key for life in members]
