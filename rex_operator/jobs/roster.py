"""Everything known of a job's workers: a ledger that takes in news and never acts.

News comes from three sides that do not agree in time: the shell (who should exist, who is dead), the channel (who is
connected) and the workers' own messages. The ledger keeps them apart by life, so that news of an earlier life of a
worker lands on that life and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rex_operator.jobs.life import Key, Life, Target
from rex_worker.pod import read_life

SILENCE_S = 10.0
"""A member whose channel is down and of which nothing is heard for this long, nor a step of the group, is lost."""
RECONNECT_S = 5.0
"""The least time that a member whose channel went down has to come back."""
LOST_CHANNEL_S = 1.0
"""The same when a survivor has reported the loss of the group."""
HUNG_MARGIN_S = 10.0
"""How long after the collective time-out a connected member may still take to report the loss of the group."""
SIBLINGS_WAIT_S = 5.0
"""How long a worker that is ready waits for the others of its pod, so that they join in one generation."""


class Roster:
    """The lives of a job's workers."""

    def __init__(self) -> None:
        self.lives: dict[Key, Life] = {}
        self._newest: dict[Key, Life] = {}
        """By worker and pod: the process that was started last."""
        self.targets_known = False
        self.counters: Counter[str] = Counter()

    def set_target(self, target: Mapping[str, Target]) -> None:
        """Say who should exist; all other lives are no longer wanted."""
        self.targets_known = True
        for life in self.lives.values():
            life.wanted = False
        for worker_id, wish in target.items():
            life = self._newest.get(_seat(worker_id, wish.incarnation)) or self.life(worker_id, wish.incarnation)
            life.wanted = life.was_wanted = True
            life.pool, life.device, life.max_local_batch = wish.pool, wish.device, wish.max_local_batch

    def life(self, worker_id: str, incarnation: str) -> Life:
        """The record of this life, made when it is new; of several processes in one pod only the last can live."""
        key = (worker_id, incarnation)
        if key not in self.lives:
            life = self.lives[key] = Life(worker_id, incarnation)
            before = self._newest.setdefault(_seat(worker_id, incarnation), life)
            if before.name.life < life.name.life:
                self._newest[_seat(worker_id, incarnation)] = life
                life.succeed(before)
            elif before is not life:
                life.end("its process was started again")
        return self.lives[key]

    def heard(self, worker_id: str, incarnation: str, now: float) -> Life | None:
        """The life that a message is from; None for one that never said Hello."""
        life = self.lives.get((worker_id, incarnation))
        if life is None:
            self.counters["unknown-life"] += 1
            return None
        life.heard_at = now
        return life

    def newcomers(self, current: Iterable[Life], now: float) -> list[Life]:
        """Lives that could join: wanted, connected, ready and not in ``current``; those of one pod in one go."""
        inside = {life.key for life in current}
        starting = {life.name.uid for life in self.lives.values() if life.starting}
        return [
            life
            for life in self.lives.values()
            if life.alive
            and life.connected
            and life.ready_at is not None
            and not life.departing
            and life.key not in inside
            and (life.name.uid not in starting or now - life.ready_at >= SIBLINGS_WAIT_S)
        ]

    def everyone_ready(self) -> bool:
        """Whether no wanted worker is still on its way."""
        return not any(life.starting for life in self.lives.values())

    def forget(self, current: Iterable[Life]) -> None:
        """Drop lives that can matter no more, so that a job of many restarts keeps a bounded ledger."""
        inside = {life.key for life in current}
        self.lives = {key: life for key, life in self.lives.items() if life.wanted or life.connected or key in inside}
        self._newest = {seat: life for seat, life in self._newest.items() if life.key in self.lives}


def find_lost(members: Iterable[Life], generation: int, moved_at: float, now: float, timeout_s: float) -> list[Life]:
    """Name the members that must be given up, with the cause in ``life.lost``.

    ``moved_at`` is when the group last reported a step: in lockstep a step proves that all members live, also one
    whose channel is down. ``timeout_s`` is the time-out of the group's collectives.
    """
    alive = [life for life in members if life.alive]
    survivors = [life for life in alive if life.group_lost >= generation]
    reported_at = min((life.heard_at for life in survivors), default=now)
    lost = []
    for life in alive:
        if life.connected:
            hung = survivors and life.group_lost < generation and life.heard_at < reported_at
            if hung and now - reported_at > timeout_s + HUNG_MARGIN_S:
                life.lost = "hung: connected, but it neither steps nor reports the loss of the group"
        elif survivors and now - life.changed_at > LOST_CHANNEL_S:
            life.lost = "the group fell apart and its channel is down"
        elif now - life.changed_at > RECONNECT_S and now - max(life.heard_at, moved_at) > SILENCE_S:
            life.lost = f"silent for {SILENCE_S:g} s"
        if life.lost:
            lost.append(life)
    pods = {life.name.uid: life for life in lost if not life.connected}
    for life in alive:
        if not life.lost and not life.connected and life.name.uid in pods:
            life.lost = f"as silent as {pods[life.name.uid].worker_id}, of the same pod"  # one generation, not several
            lost.append(life)
    return lost


def _seat(worker_id: str, incarnation: str) -> Key:
    return worker_id, read_life(incarnation).uid
