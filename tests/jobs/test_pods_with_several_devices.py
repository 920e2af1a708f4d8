"""The workers of one pod: they join and are lost in one generation, and one of them may be started again in it."""

from __future__ import annotations

from rex_worker.protocol import Drain, GroupLost, Ready
from tests.jobs.desk import Desk, memberships, running, sent

PODS = ("w0-0", "w0-1", "w1-0", "w1-1")


def test_neighbours_have_neighbouring_ranks() -> None:
    desk = Desk()
    names = ("w2", "w10-0", "w1-1", "w0-0", "w1-0", "w10-1", "w0-1")
    desk.target(*names)
    desk.ready(*names)
    assert desk.members == ["w0-0", "w0-1", "w1-0", "w1-1", "w2", "w10-0", "w10-1"]


def test_a_pod_that_is_gone_costs_one_generation() -> None:
    desk = running(*PODS)
    made = desk.coordinator.gone_together([("w1-0", "i1-d0"), ("w1-1", "i1-d1")], "the pod is gone", desk.now)
    assert [[m.worker_id for m in one.members] for one in memberships(made)] == [["w0-0", "w0-1"]]


def test_a_pod_whose_channels_are_down_is_given_up_as_one() -> None:
    desk = running(*PODS)
    desk.hang_up("w1-0")
    desk.wait(0.5)
    desk.hang_up("w1-1")
    made = []
    for survivor in ("w0-0", "w0-1"):
        made += desk.say(survivor, GroupLost(generation=1, step=1))
    made += desk.wait(3)
    assert [[m.worker_id for m in one.members] for one in memberships(made)] == [["w0-0", "w0-1"]]


def test_one_process_that_dies_leaves_its_siblings_in_the_group() -> None:
    desk = running(*PODS)
    desk.hang_up("w1-1")
    made = []
    for survivor in ("w0-0", "w0-1", "w1-0"):
        made += desk.say(survivor, GroupLost(generation=1, step=1))
    made += desk.wait(3)
    assert [[m.worker_id for m in one.members] for one in memberships(made)] == [["w0-0", "w0-1", "w1-0"]]


def test_the_workers_of_a_new_pod_join_together() -> None:
    desk = running("w0-0", "w0-1")
    desk.target(*PODS)
    desk.ready("w1-0")
    assert not memberships(desk.wait(3)), "its neighbour is on its way"
    made = desk.ready("w1-1") + desk.wait(3)
    assert [[m.worker_id for m in one.members] for one in memberships(made)] == [list(PODS)]


def test_a_worker_does_not_wait_for_its_neighbour_for_ever() -> None:
    desk = running("w0-0", "w0-1")
    desk.target(*PODS)
    desk.ready("w1-0")
    assert [[m.worker_id for m in one.members] for one in memberships(desk.wait(6))] == [["w0-0", "w0-1", "w1-0"]]


def test_a_process_that_was_started_again_takes_the_place_of_the_one_before() -> None:
    desk = running(*PODS)
    lost = desk.hello("w1-1", life="i1-d1-r1", exits=(137,))
    assert [[m.worker_id for m in one.members] for one in memberships(lost)] == [["w0-0", "w0-1", "w1-0"]]
    desk.target(*PODS)  # the controller goes by pods, and names the first lives
    desk.say("w1-1", Ready(), life="i1-d1-r1")
    joined = desk.wait(3)
    assert [[m.incarnation for m in one.members] for one in memberships(joined)] == [
        ["i0-d0", "i0-d1", "i1-d0", "i1-d1-r1"]
    ]
    assert not sent(desk.actions, Drain)
    row = next(row for row in desk.coordinator.view().workers if row.worker_id == "w1-1")
    assert (row.incarnation, row.pool, row.exits) == ("i1-d1-r1", "a100", (137,))


def test_news_of_the_earlier_process_changes_nothing_any_more() -> None:
    desk = running(*PODS)
    desk.hello("w1-1", life="i1-d1-r1", exits=(137,))
    desk.say("w1-1", Ready(), life="i1-d1-r1")
    desk.wait(3)
    generation = desk.coordinator.view().generation
    desk.hello("w1-1", life="i1-d1")
    desk.gone("w1-1")
    desk.wait(3)
    assert desk.coordinator.view().generation == generation
    assert desk.coordinator.view().counters["dead-life"] == 1


def test_a_restarted_operator_finds_the_process_that_runs_now() -> None:
    before = running(*PODS)
    before.hello("w1-1", life="i1-d1-r1", exits=(137,))
    before.say("w1-1", Ready(), life="i1-d1-r1")
    before.wait(3)
    plan = before.plan

    desk = Desk(saved=before.coordinator.saved())
    desk.target(*PODS)
    for name in PODS:
        again = name == "w1-1"
        desk.hello(
            name,
            life="i1-d1-r1" if again else "",
            generation=plan.generation,
            version=plan.version,
            exits=(137,) if again else (),
        )
    made = desk.wait(40)
    assert not memberships(made) and not sent(made, Drain)
    assert desk.members == list(PODS)


def test_a_pod_that_ends_takes_the_process_that_was_started_again_with_it() -> None:
    desk = running(*PODS)
    desk.hello("w1-1", life="i1-d1-r1", exits=(137,))
    lives = [("w1-0", "i1-d0"), ("w1-1", "i1-d1"), ("w1-1", "i1-d1-r1")]
    made = desk.coordinator.gone_together(lives, "exit code 7", desk.now)
    assert [[m.worker_id for m in one.members] for one in memberships(made)] == [["w0-0", "w0-1"]]
