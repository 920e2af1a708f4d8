"""After a trial that was kept the next may follow at once; after others there is a pause, longer each time."""

from __future__ import annotations

from rex_operator.planning.cooldown import Cooldown


def test_a_trial_that_was_kept_is_followed_at_once() -> None:
    pauses = Cooldown(60.0)
    pauses.failed("larger", at=0.0)
    pauses.accepted("larger")
    assert pauses.open("larger", at=1.0)
    fresh = Cooldown(60.0)
    fresh.accepted("larger")
    assert fresh.quiet(at=0.0) and fresh.open("larger", at=0.0)


def test_each_failure_doubles_the_pause_of_its_direction_only() -> None:
    pauses = Cooldown(60.0)
    assert [pauses.failed("larger", at=0.0) for _ in range(3)] == [60.0, 120.0, 240.0]
    assert not pauses.open("larger", at=239.0) and pauses.open("larger", at=240.0)
    assert pauses.open("smaller", at=0.0)
    assert not pauses.quiet(at=59.0) and pauses.quiet(at=60.0)


def test_what_ends_the_pauses_leaves_them_growing() -> None:
    pauses = Cooldown(60.0)
    pauses.failed("larger", at=0.0)
    pauses.failed("larger", at=60.0)
    pauses.lift()
    assert pauses.open("larger", at=61.0) and pauses.quiet(at=61.0) and not pauses.blocked(at=61.0)
    assert pauses.failed("larger", at=61.0) == 240.0
