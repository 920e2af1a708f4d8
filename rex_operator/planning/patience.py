"""When to leave things as they are.

Every change costs: a warm-up, a fresh window, and trust. Shares move only for a gain that passes a threshold; each
further move in a row waits for more steps, and a move that did not keep its promise doubles the threshold. A search
that found nothing is repeated only when something is new. And where shares have just been, nothing is to be hoped for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

THRESHOLD = 0.02
"""Predicted relative gain of throughput for which shares move."""
FIRST_STEPS = 10
MORE_STEPS = 5
MOST_STEPS = 100
LATELY = 200
"""Steps that measured shares are remembered."""
ALIKE = 0.04
"""Part of the batch in which two divisions may differ to count as one."""
RESTLESS = 5
"""So many moves within `REST_STEPS` are not going anywhere: the best of the shares that ran come back ..."""
REST_STEPS = 120
"""... and stay for so many steps, for twice as many the next time, while they keep taking as long as they did ..."""
HELD = 1.10
"""... give or take this factor: beyond, the workers have changed."""
_PLACES = 16
_WORST = 8.0
_NEWS = 1.25
"""A noise scale that changed by this factor makes another batch worth a thought ..."""
_STALE_S = 600.0
"""... and so does this much time, in seconds: clusters change."""


class Patience:
    """Hysteresis of the shares."""

    def __init__(self) -> None:
        self._moves = 0
        self._doubt = 1.0
        self._promise: tuple[float, float] | None = None

    def reset(self) -> None:
        """The team or the batch changed: begin anew."""
        self._moves, self._doubt, self._promise = 0, 1.0, None

    def disturbed(self) -> None:
        """A worker changed its speed: the last move cannot be held to its promise any more, nor was it idle."""
        self._promise = None
        self._moves //= 2

    @property
    def threshold(self) -> float:
        """The predicted gain that a move needs now."""
        return THRESHOLD * self._doubt

    def ripe(self, steps: int) -> bool:
        """Return whether a window of ``steps`` steady steps may lead to a move."""
        return steps >= min(FIRST_STEPS + MORE_STEPS * self._moves, MOST_STEPS)

    def moved(self, gain: float, step_s: float) -> None:
        """Note a move that is to shorten steps of ``step_s`` seconds by ``gain``."""
        self._moves += 1
        self._promise = (gain, step_s)

    def followed(self) -> None:
        """Note a move that followed a worker's change of speed, which may go on: it promises nothing."""
        self._moves += 1

    def kept(self, step_s: float) -> None:
        """Hold the last move, if it was not judged yet, against the step time since."""
        if self._promise is None or step_s <= 0:
            return
        gain, before = self._promise
        self._promise = None
        self._doubt = 1.0 if before / step_s - 1 >= gain / 2 else min(2 * self._doubt, _WORST)


class Trodden:
    """How long steps took under shares that ran lately: of these a model need promise nothing.

    Where a device's time jumps between two sizes, a move across the jump looks like a worker that changes its speed,
    and the move back like one that recovers; the models then lead to and fro for ever.
    """

    def __init__(self) -> None:
        self._here: tuple[dict[str, int], float] | None = None
        self._left: deque[tuple[dict[str, int], float, int]] = deque(maxlen=_PLACES)
        self._rest = REST_STEPS

    def clear(self) -> None:
        """The workers' speeds are other ones now."""
        self._here = None
        self._left.clear()
        self._rest = REST_STEPS

    def elsewhere(self) -> None:
        """Another plan runs; what ran before is still known, for when its batch and team come back."""
        self._here = None

    def restless(self, step: int, shares: Mapping[str, int]) -> bool:
        """Return whether the shares of this team and batch have moved again and again lately."""
        return sum(step - left <= self._rest and _same(ran, shares) for ran, _, left in self._left) >= RESTLESS

    def best(self, shares: Mapping[str, int]) -> tuple[dict[str, int], float] | None:
        """Return the shares of this team and batch that took least, of all that ran or run, and how long that was."""
        known = [(ran, took) for ran, took, _ in self._left] + ([self._here] if self._here is not None else [])
        return min((one for one in known if _same(one[0], shares)), key=lambda one: one[1], default=None)

    def come_back(self) -> None:
        """The best shares come back, to stay for longer each time."""
        self._rest *= 2

    def at(self, shares: Mapping[str, int], step_s: float) -> None:
        """Note the usual seconds per step under the shares that run; the least ever seen of them counts."""
        if step_s > 0:
            before = self._here[1] if self._here is not None and self._here[0] == shares else step_s
            self._here = dict(shares), min(before, step_s)

    def leads_nowhere(self, shares: Mapping[str, int], step_s: float, step: int) -> bool:
        """Return whether such shares ran lately and took no less than ``step_s`` seconds per step, as now."""
        known = [took for ran, took, left in self._left if step - left <= LATELY and _alike(ran, shares)]
        return bool(known) and step_s < (1 + THRESHOLD) * min(known)

    def leave(self, step: int) -> None:
        """The shares that run are given up at ``step``."""
        if self._here is not None:
            self._left.append((*self._here, step))
            self._here = None


def _same(ran: Mapping[str, int], shares: Mapping[str, int]) -> bool:
    return ran.keys() == shares.keys() and sum(ran.values()) == sum(shares.values())


def _alike(ran: Mapping[str, int], shares: Mapping[str, int]) -> bool:
    moved = sum(abs(share - ran.get(worker, 0)) for worker, share in shares.items())
    return moved <= ALIKE * sum(shares.values())


class Convergence:
    """Whether the search has come to an end, and when it is worth asking again."""

    def __init__(self, reached: bool = False) -> None:
        self.reached = reached
        self._at = 0.0
        self._noise_scale: float | None = None

    def leave(self) -> None:
        """Something is being tried, or the team changed."""
        self.reached = False

    def doubt(self) -> None:
        """Something changed: let the next look ask again, though it may find nothing new."""
        self._at = -math.inf

    def reach(self, at: float, noise_scale: float | None) -> bool:
        """Note that nothing is worth a trial; return whether that is news."""
        news, self.reached = not self.reached, True
        self._at, self._noise_scale = at, noise_scale
        return news

    def search_due(self, at: float, noise_scale: float | None) -> bool:
        """Return whether a search may find what the last one did not."""
        if not self.reached or at - self._at >= _STALE_S:
            return True
        if noise_scale is None or self._noise_scale is None:
            return noise_scale is not self._noise_scale
        low, high = sorted((noise_scale, self._noise_scale))
        return high > _NEWS * low
