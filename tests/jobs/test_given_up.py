"""A worker that nobody can reach is replaced, though its process may live; but not for a fault of this side."""

from __future__ import annotations

from tests.jobs.desk import Desk, running


def given_up(desk: Desk) -> set[str]:
    return {row.worker_id for row in desk.coordinator.view().workers if row.given_up}


def cut_off() -> Desk:
    """A group of three that went on as two."""
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    desk.wait(15)
    assert desk.members == ["w0", "w1"]
    desk.switch("w0", "w1", step=9)
    return desk


def train(desk: Desk, seconds: int) -> None:
    for _ in range(seconds):
        desk.wait(1)
        desk.run("w0", "w1", step=int(desk.now) + 10)


def test_one_that_stays_away_is_given_up() -> None:
    desk = cut_off()
    train(desk, 20)
    assert given_up(desk) == set()
    train(desk, 15)
    assert given_up(desk) == {"w2"}


def test_one_that_comes_back_in_time_joins_again() -> None:
    desk = cut_off()
    train(desk, 20)
    desk.hello("w2")
    train(desk, 60)
    assert given_up(desk) == set()


def test_when_nobody_is_heard_of_nobody_is_given_up() -> None:
    desk = running("w0", "w1", "w2")
    for name in ("w0", "w1", "w2"):
        desk.hang_up(name)
    desk.wait(600)
    assert given_up(desk) == set()
    desk.hello("w0", generation=1, version=1, step=900)
    desk.wait(10)
    assert given_up(desk) == set(), "the others may be about to come back as well"
