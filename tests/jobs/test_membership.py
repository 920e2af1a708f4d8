"""Growth, planned shrinkage and loss: who forms the next generation, and when."""

from __future__ import annotations

from rex_worker.protocol import Drain, GroupLost, Leaving, Left, Membership, Ready
from tests.jobs.desk import Desk, incarnation, memberships, running, sent


def test_newcomers_join_together() -> None:
    desk = running("w0", "w1")
    desk.target("w0", "w1", "w2", "w3", "w4")
    assert not memberships(desk.ready("w2"))
    desk.wait(0.5)
    assert not memberships(desk.ready("w4"))
    (second,) = memberships(desk.wait(2))
    assert [member.worker_id for member in second.members] == ["w0", "w1", "w2", "w4"]
    assert second.generation == 2
    assert second.plan.version == 2


def test_old_hands_keep_their_ranks() -> None:
    desk = running("w1", "w2")
    desk.target("w0", "w1", "w2")
    desk.ready("w0")
    desk.wait(2)
    assert desk.members == ["w1", "w2", "w0"]


def test_a_worker_that_must_go_is_left_out_and_told_so() -> None:
    desk = running("w0", "w1", "w2")
    actions = desk.say("w1", Leaving(reason="SIGTERM"))
    (second,) = memberships(actions)
    assert [member.worker_id for member in second.members] == ["w0", "w2"]
    assert "w1" in sent(actions, Membership), "it leaves at the boundary that this message sets"


def test_who_must_go_while_a_peer_dies_is_not_sent_away_in_favour_of_the_dead() -> None:
    desk = running("w0", "w1", workers={"min": 1, "max": 4})
    desk.say("w0", GroupLost(generation=1, step=3))
    assert not memberships(desk.say("w0", Leaving(reason="SIGTERM"))), "w1 has not told whether it lives"
    desk.hang_up("w1")
    (second,) = memberships(desk.wait(2))
    assert [member.worker_id for member in second.members] == ["w0"], "it can save what the two had"


def test_who_must_go_before_it_has_noticed_a_peers_death_is_kept_as_well() -> None:
    desk = running("w0", "w1", workers={"min": 1, "max": 4})
    desk.hang_up("w1")
    assert not memberships(desk.say("w0", Leaving(reason="SIGTERM"))), "w1 may be back in a moment, or dead"
    desk.say("w0", GroupLost(generation=1, step=3))
    (second,) = memberships(desk.wait(2))
    assert [member.worker_id for member in second.members] == ["w0"]


def test_who_must_go_does_not_wait_long_for_a_peer_whose_channel_is_down() -> None:
    desk = running("w0", "w1", workers={"min": 1, "max": 4})
    desk.hang_up("w1")
    desk.say("w0", Leaving(reason="SIGTERM"))
    (second,) = memberships(desk.wait(6))
    assert [member.worker_id for member in second.members] == ["w1"]


def test_a_target_that_shrinks_drains_the_one_not_in_it() -> None:
    desk = running("w0", "w1", "w2")
    actions = desk.target("w0", "w2")
    assert desk.members == ["w0", "w2"]
    assert sent(actions, Drain).keys() == {"w1"}
    assert "w1" in sent(actions, Membership)


def test_one_that_leaves_hears_of_every_later_generation_until_it_has_left() -> None:
    desk = running("w0", "w1", "w2", "w3")
    desk.say("w1", Leaving())
    again = desk.say("w2", Leaving())
    assert sent(again, Membership).keys() == {"w0", "w1", "w2", "w3"}
    desk.say("w1", Left(reason="drained"))
    desk.target("w0", "w2", "w3", "w4")
    desk.ready("w4")
    assert "w1" not in sent(desk.wait(2), Membership)


def test_nobody_is_taken_out_before_the_rest_can_go_on_without_it() -> None:
    desk = running("w0", "w1")
    assert not memberships(desk.say("w1", Leaving()))
    desk.target("w0", "w1", "w2")
    desk.ready("w2")
    (second,) = memberships(desk.wait(1.5))
    assert [member.worker_id for member in second.members] == ["w0", "w2"]


def test_survivors_of_a_death_go_on_at_once() -> None:
    desk = running("w0", "w1", "w2")
    (second,) = memberships(desk.gone("w0"))
    assert [member.worker_id for member in second.members] == ["w1", "w2"]


def test_a_lost_worker_gets_no_more_messages() -> None:
    desk = running("w0", "w1", "w2")
    assert "w0" not in sent(desk.gone("w0"))


def test_below_the_minimum_the_survivors_wait_for_a_replacement() -> None:
    desk = running("w0", "w1")
    assert not memberships(desk.gone("w1"))
    assert desk.phase == "Recovering"
    desk.target("w0", "w1", w1="second")
    desk.hello("w1", "second")
    (second,) = memberships(desk.say("w1", Ready(), "second"))
    assert [(member.worker_id, member.incarnation) for member in second.members] == [("w0", "i0"), ("w1", "second")]


def test_a_loss_is_believed_when_a_survivor_tells_it_and_the_channel_is_down() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    assert not memberships(desk.wait(2))
    (second,) = memberships(desk.say("w0", GroupLost(generation=1, step=5)))
    assert [member.worker_id for member in second.members] == ["w0", "w1"]


def test_a_channel_that_is_down_for_a_moment_loses_nobody() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    desk.wait(5)
    desk.hello("w2", generation=1, version=1, step=4)
    assert not memberships(desk.wait(30))


def test_silence_counts_after_ten_seconds() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    assert not memberships(desk.wait(9.5))
    assert memberships(desk.wait(2))


def test_a_silent_worker_lives_as_long_as_the_group_steps() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    for step in range(1, 10):
        desk.run("w0", "w1", step=step)
        assert not memberships(desk.wait(5))


def test_a_group_that_fell_apart_with_all_alive_is_formed_anew() -> None:
    desk = running("w0", "w1")
    desk.say("w0", GroupLost(generation=1, step=3))
    (second,) = memberships(desk.say("w1", GroupLost(generation=1, step=3)))
    assert len(second.members) == 2


def test_forming_in_vain_slows_down() -> None:
    desk = running("w0", "w1")
    for _ in range(200):
        for name in ("w0", "w1"):
            desk.say(name, GroupLost(generation=desk.plan.generation, step=0))
        desk.wait(0.5)
    assert desk.plan.generation < 14


def test_one_that_is_connected_but_hangs_is_given_up_after_the_time_out() -> None:
    desk = running("w0", "w1", "w2")
    desk.wait(1)
    desk.say("w0", GroupLost(generation=1, step=3))
    desk.say("w1", GroupLost(generation=1, step=3))
    assert not memberships(desk.wait(60))
    (second,) = memberships(desk.wait(20))
    assert [member.worker_id for member in second.members] == ["w0", "w1"]


def test_one_that_returns_from_silence_joins_again() -> None:
    desk = running("w0", "w1", "w2")
    desk.hang_up("w2")
    desk.wait(12)
    assert desk.members == ["w0", "w1"]
    actions = desk.hello("w2", generation=1, version=1, step=4)
    assert not sent(actions).get("w2"), "a membership without it would make it leave"
    desk.wait(2)
    assert desk.members == ["w0", "w1", "w2"]


def test_news_of_an_earlier_life_changes_nothing() -> None:
    desk = running("w0", "w1", "w2")
    desk.gone("w2")
    desk.target("w0", "w1", "w2", w2="second")
    before = desk.coordinator.saved()
    assert not desk.say("w2", GroupLost(generation=2, step=1), incarnation("w2"))
    assert not desk.gone("w2")
    assert desk.coordinator.saved() == before
    # and what the dead one says late never counts for the new one
    rows = {row.incarnation: row for row in desk.coordinator.view().workers}
    assert rows["second"].state == "starting"


def test_one_unknown_to_the_target_neither_joins_nor_is_sent_away() -> None:
    desk = running("w0", "w1")
    actions = desk.ready("w7") + desk.wait(10)
    assert not sent(actions)


def test_a_pod_not_in_the_group_that_is_no_longer_wanted_is_drained() -> None:
    desk = Desk(workers={"min": 2, "max": 8})
    desk.target("w0", "w1", "w2")
    desk.ready("w0")
    assert sent(desk.target("w1", "w2"), Drain).keys() == {"w0"}
