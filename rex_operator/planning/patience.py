"""When to leave things as they are.

Every change costs: a warm-up, a fresh window, and trust. Shares move only for a gain that passes a threshold; each
further move in a row waits for more steps, and a move that did not keep its promise doubles the threshold. A search
that found nothing is repeated only when something is new.
"""

from __future__ import annotations

THRESHOLD = 0.02
"""Predicted relative gain of throughput for which shares move."""
FIRST_STEPS = 10
MORE_STEPS = 5
MOST_STEPS = 100
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


class Convergence:
    """Whether the search has come to an end, and when it is worth asking again."""

    def __init__(self, reached: bool = False) -> None:
        self.reached = reached
        self._at = 0.0
        self._noise_scale: float | None = None

    def leave(self) -> None:
        """Something is being tried, or the team changed."""
        self.reached = False

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
