"""From a new job to a full gang, and back to it after any loss that the cluster caused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from rex_operator.controller.decide import decide
from rex_operator.placement import Demand
from tests.controller.pictures import NOW, later, pod, seen, spec, training, view


def test_a_new_job_gets_all_its_workers_at_once() -> None:
    made = decide(seen())
    assert [(new.worker_id, new.pool, new.attempt) for new in made.create] == [
        ("w0", "fast", 0),
        ("w1", "fast", 0),
        ("w2", "slow", 0),
        ("w3", "slow", 0),
    ]
    assert made.all_or_nothing
    assert made.status.phase == "Pending"


def test_c_050_what_is_asked_by_unbound_pods_of_others_is_not_counted_on() -> None:
    picture = seen(job=spec(workers={"min": 5, "max": 6}))
    asked: Demand = picture.pools[1].demand
    assert decide(picture).create
    assert not decide(replace(picture, reserved=[asked, asked])).create


def test_deciding_again_on_the_full_gang_changes_nothing() -> None:
    pods = [pod("w0"), pod("w1"), pod("w2", "slow"), pod("w3", "slow")]
    again = decide(seen(pods, view=training(*pods)))
    assert (again.create, again.drain, again.delete) == ((), (), ())
    assert set(again.targets) == {"w0", "w1", "w2", "w3"}
    assert again.status.phase == "Running"


def test_c_053_a_terminating_pod_is_replaced_under_the_same_name_and_another_life() -> None:
    pods = [pod("w0"), pod("w1", deleting=True, node="dead"), pod("w2", "slow"), pod("w3", "slow")]
    made = decide(seen(pods, view=training(*pods)))
    assert [(new.worker_id, new.attempt) for new in made.create] == [("w1", 1)]
    assert not made.all_or_nothing
    assert "w1" not in made.targets


def test_c_028_remains_of_a_namesake_do_not_stand_in_the_way() -> None:
    # pods of another UID are not among the job's pods at all; its own terminating ones keep their attempt numbers
    made = decide(seen([pod("w0", deleting=True, attempt=4)]))
    assert next(new for new in made.create if new.worker_id == "w0").attempt == 5


def test_c_065_fewer_workers_than_the_maximum_start_and_one_more_joins_when_there_is_room() -> None:
    pods = [pod("w0"), pod("w1")]
    picture = seen(pods, job=spec(workers={"min": 2, "max": 3}), view=training(*pods))
    full = replace(picture, nodes=[replace(n, free={}) for n in picture.nodes or ()])
    waiting = decide(full)
    assert waiting.create == () and waiting.waiting
    assert waiting.status.phase == "Running"
    grown = decide(picture)
    assert [new.worker_id for new in grown.create] == ["w2"]


def test_c_032_the_last_written_size_wins() -> None:
    pods = [pod("w0"), pod("w1"), pod("w2", "slow"), pod("w3", "slow")]
    for size in (2, 4, 3, 1):
        made = decide(seen(pods, job=spec(workers={"min": 1, "max": size}), view=training(*pods)))
        assert len(made.targets) == size
        assert len(made.drain) == 4 - size


def test_c_054_a_draining_worker_is_not_counted_again() -> None:
    pods = [pod("w0"), pod("w1"), pod("w2", "slow", draining_since=NOW - timedelta(seconds=5))]
    for _ in range(10):
        made = decide(seen(pods, job=spec(workers={"min": 1, "max": 2}), view=training(*pods)))
        assert made.drain == () and made.delete == ()
        assert set(made.targets) == {"w0", "w1"}


def test_c_061_workers_on_cordoned_nodes_are_drained_first() -> None:
    pods = [pod("w0", node="bad"), pod("w1", node="bad"), pod("w2", "slow"), pod("w3", "slow")]
    picture = seen(pods, job=spec(workers={"min": 2, "max": 2}), view=training(*pods))
    nodes = [*(picture.nodes or ()), replace((picture.nodes or ())[0], name="bad", cordoned=True)]
    assert {p.worker_id for p in decide(replace(picture, nodes=nodes)).drain} == {"w0", "w1"}


def test_c_055_a_drained_pod_that_overstays_is_removed() -> None:
    late = pod("w2", "slow", draining_since=NOW - timedelta(minutes=3))
    pods = [pod("w0"), pod("w1"), late]
    made = decide(seen(pods, job=spec(workers={"min": 1, "max": 2}), view=training(*pods)))
    assert made.delete == (late,)


def test_never_more_workers_than_samples_in_a_batch() -> None:
    job = spec(batch={"initial": 3, "min": 3, "max": 3})
    assert len(decide(seen(job=job)).create) == 3


def test_c_118_never_more_workers_than_get_their_least_share() -> None:
    job = spec(batch={"initial": 12, "min": 8, "max": 15, "minShare": 4})
    assert len(decide(seen(job=job)).create) == 3


def test_c_185_without_node_rights_the_gang_is_made_by_selectors() -> None:
    assert len(decide(seen(nodes=None)).create) == 4


def test_while_refused_nothing_is_lost_and_the_words_of_the_server_are_told() -> None:
    made = decide(seen(blocked="pods is forbidden: exceeded quota"))
    validated = made.status.condition("Validated")
    assert validated is not None and validated.message == "pods is forbidden: exceeded quota"
    assert made.status.phase == "Pending" and made.again_s is not None


def test_times_of_conditions_stay_while_their_status_stays() -> None:
    first = decide(seen(view=view("Pending", generation=0)))
    second = decide(later(seen(), first, now=NOW + timedelta(minutes=1)))
    assert [c.last_transition_time for c in second.status.conditions] == [NOW] * len(second.status.conditions)
