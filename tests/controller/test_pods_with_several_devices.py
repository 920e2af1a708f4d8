"""A pod with several devices is as many workers: made, counted, lost and charged accordingly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rex_operator.api import RexJobSpec
from rex_operator.controller.decide import decide
from rex_operator.controller.observation import Observation
from rex_operator.controller.pods import PodView, read_pod
from rex_operator.controller.template import InvalidTemplate, WorkerPod, build_pod
from rex_operator.jobs import JobView, WorkerRow
from tests.controller.pictures import NOW, OWNER, URL, later, node, pod, row, seen, spec, view

LAUNCH = ["python", "-m", "rex_worker.launch", "--", "python", "train.py"]


def job(**changes: Any) -> RexJobSpec:
    pools = [
        {
            "name": "fast",
            "maxWorkers": 8,
            "devicesPerPod": 4,
            "nodeSelector": {"rex.dev/device": "a100"},
            "resources": {"limits": {"nvidia.com/gpu": 4}},
        },
        {"name": "slow", "maxWorkers": 4, "nodeSelector": {"rex.dev/device": "t4"}},
    ]
    container = {"name": "trainer", "image": "x", "command": LAUNCH}
    plain = {"pools": pools, "workers": {"min": 4, "max": 8}, "template": {"spec": {"containers": [container]}}}
    return spec(**{**plain, **changes})


def wide(name: str, **changes: Any) -> PodView:
    return pod(name, devices=4, **changes)


def together(*pods: PodView, **lives: tuple[int, ...]) -> JobView:
    """All workers of these pods train; ``lives`` has the exits of earlier processes, by worker (``_`` for the dash)."""
    rows: list[WorkerRow] = []
    for one in pods:
        for worker, first in one.workers.items():
            exits = lives.get(worker.replace("-", "_"), ())
            life = first + (f"-r{len(exits)}" if exits else "")
            rows.append(replace(row(one, rank=len(rows)), worker_id=worker, incarnation=life, exits=exits))
    return view("Running", rows)


def picture(*pods: PodView, **changes: Any) -> Observation:
    nodes = [node("n-fast", "a100", 8), node("n-slow", "t4", 4)]
    left = nodes[0].free["nvidia.com/gpu"] - 4 * sum(one.live for one in pods)
    full = replace(nodes[0], free={**nodes[0].free, "nvidia.com/gpu": left})
    plain = {"job": job(), "nodes": [full, nodes[1]], "view": together(*pods) if pods else None}
    return seen(pods, **{**plain, **changes})


def test_a_gang_is_made_of_whole_pods_and_its_size_is_told_in_workers() -> None:
    made = decide(picture())
    assert [(new.worker_id, new.pool) for new in made.create] == [("w0", "fast"), ("w1", "fast")]
    status = decide(picture(wide("w0"), wide("w1"))).status
    assert status.workers.summary == "8/8"
    assert status.replicas == 8
    assert status.pools_summary == "fast:8"


def test_each_worker_of_a_pod_is_a_target_of_its_own() -> None:
    targets = decide(picture(wide("w0"))).targets
    assert {name: target.incarnation for name, target in targets.items()} == {
        f"w0-{device}": f"uid-w0-0-d{device}" for device in range(4)
    }


def test_a_half_connected_pod_counts_what_is_connected() -> None:
    one = wide("w0")
    trains = together(one)
    rows = [replace(r, state="starting") if r.worker_id == "w0-3" else r for r in trains.workers]
    made = decide(picture(one, view=view("Pending", rows, generation=0)))
    assert made.status.workers.summary == "3/4"
    assert "3 of 4 workers connected" in made.status.message


def test_shrinking_drains_whole_pods() -> None:
    made = decide(picture(wide("w0"), wide("w1"), job=job(workers={"min": 4, "max": 6})))
    assert [one.worker_id for one in made.drain] == ["w1"]
    assert set(made.targets) == {"w0-0", "w0-1", "w0-2", "w0-3"}


def test_both_kinds_of_pods_stand_side_by_side() -> None:
    small = pod("w1", "slow")
    pods = [wide("w0"), small]
    made = decide(picture(*pods, job=job(workers={"min": 4, "max": 5})))
    assert (made.create, made.drain) == ((), ())
    assert set(made.targets) == {"w0-0", "w0-1", "w0-2", "w0-3", "w1"}
    assert made.status.workers.summary == "5/5"


def test_a_process_that_was_started_again_is_charged_once_and_noted_on_the_pod() -> None:
    one = wide("w0")
    first = decide(picture(one, view=together(one, w0_1=(137,))))
    assert first.status.restarts.charged == 1
    assert [(f.worker, f.exit_code, f.uid) for f in first.failures] == [("w0-1", 137, "uid-w0-0-d1")]
    assert first.create and first.create[0].worker_id == "w1", "nothing is made in its place"
    assert [(noted.name, counts) for noted, counts in first.note_exits] == [(one.name, (0, 1, 0, 0))]

    same = picture(one, view=together(one, w0_1=(137,)))
    again = decide(later(same, first))
    assert (again.status.restarts.charged, again.failures) == (1, ())
    assert again.note_exits, "the note is written until it is there"

    kept = wide("w0", counted=(0, 1, 0, 0))
    forgotten = later(picture(kept, view=together(kept, w0_1=(137, 1))), first)
    forgotten = replace(forgotten, status=forgotten.status.model_copy(update={"failures": []}))
    third = decide(forgotten)
    assert third.status.restarts.charged == 2, "the end that the pod notes is not counted again, the new one is"
    assert [counts for _, counts in third.note_exits] == [(0, 2, 0, 0)]


def test_the_same_end_told_by_two_lives_counts_once() -> None:
    one = wide("w0")
    before = together(one, w0_1=(137,))
    both = replace(before, workers=(*before.workers, *together(one, w0_1=(137, 1)).workers[1:2]))
    assert decide(picture(one, view=both)).status.restarts.charged == 2


def test_c_094_ends_within_a_pod_use_up_the_same_budget() -> None:
    one = wide("w0")
    made = decide(picture(one, view=together(one, w0_0=(1,), w0_2=(1, 1)), job=job(failure={"maxRestarts": 2})))
    assert made.status.phase == "Failed"
    assert "failure.maxRestarts (2) is used up" in made.status.message


def test_rules_hold_within_a_pod() -> None:
    one = wide("w0")
    rules = {"rules": [{"exitCodes": [3], "action": "Ignore"}, {"exitCodes": [2], "action": "Fail"}]}
    ignored = decide(picture(one, view=together(one, w0_0=(3, 3)), job=job(failure=rules)))
    assert (ignored.status.restarts.charged, ignored.status.restarts.uncharged) == (0, 2)
    failed = decide(picture(one, view=together(one, w0_0=(2,)), job=job(failure=rules)))
    assert "worker w0-0: exit code 2, and failure.rules say Fail" in failed.status.message


def test_a_lost_pod_is_one_loss_and_one_replacement() -> None:
    failed = wide("w0", ended=True, exit_code=7)
    made = decide(picture(failed, wide("w1")))
    assert made.status.restarts.charged == 1
    assert [(new.worker_id, new.attempt) for new in made.create] == [("w0", 1)]


def out_of_reach(pods: list[PodView], *names: str) -> JobView:
    known = together(*pods)
    gone = {"state": "lost", "connected": False, "given_up": True, "rank": None}
    rows = [replace(r, **gone) if r.worker_id in names else r for r in known.workers]  # type: ignore[arg-type]
    return replace(known, workers=tuple(rows))


def test_a_pod_with_one_worker_out_of_reach_is_drained_while_others_can_carry_on() -> None:
    pods = [wide("w0"), wide("w1")]
    made = decide(picture(*pods, view=out_of_reach(pods, "w1-2")))
    assert ([one.worker_id for one in made.drain], made.delete) == (["w1"], ())
    assert set(made.targets) == {"w0-0", "w0-1", "w0-2", "w0-3"}
    needed = decide(picture(*pods, job=job(workers={"min": 8, "max": 8}), view=out_of_reach(pods, "w1-2")))
    assert (needed.drain, needed.delete) == ((), ())


def test_a_pod_with_no_worker_within_reach_is_replaced() -> None:
    pods = [wide("w0"), wide("w1")]
    made = decide(picture(*pods, view=out_of_reach(pods, *pods[1].workers)))
    assert ([one.worker_id for one in made.delete], made.drain) == (["w1"], ())
    assert made.status.restarts.uncharged == 1


def test_a_script_that_never_called_rex_is_named_when_no_worker_of_the_pod_did() -> None:
    ended = wide("w0", ended=True, exit_code=0)
    made = decide(picture(ended, view=view("Pending", generation=0)))
    assert made.status.reason == "NeverConnected"


def test_a_pod_that_does_not_get_all_its_workers_to_connect_is_at_fault() -> None:
    one = wide("w0", created=NOW.replace(hour=11))
    trains = together(one)
    rows = [replace(r, state="starting") if r.worker_id == "w0-3" else r for r in trains.workers]
    quiet = picture(one, view=view("Pending", rows, generation=0), created=NOW.replace(hour=10))
    assert decide(quiet).status.reason == "NeverConnected"


def built(**changes: Any) -> dict[str, Any]:
    made = job(**changes)
    return build_pod(OWNER, made, WorkerPod("w0", made.pools[0], 0), URL).manifest


def test_the_pod_says_how_many_workers_it_has() -> None:
    manifest = built()
    trainer = manifest["spec"]["containers"][0]
    assert {"name": "REX_DEVICES_PER_POD", "value": "4"} in trainer["env"]
    assert trainer["command"] == LAUNCH
    manifest["metadata"] |= {"uid": "u", "creationTimestamp": "2024-05-01T12:00:00Z"}
    assert read_pod(manifest).workers == {f"w0-{i}": f"u-d{i}" for i in range(4)}
    manifest["metadata"]["annotations"] |= {"rex.dev/devices": "9" * 5000, "rex.dev/counted-exits": "2,x,1"}
    assert (read_pod(manifest).devices, read_pod(manifest).counted) == (1, (2, 0, 1))


def test_a_command_without_the_launcher_is_warned_about() -> None:
    made = job(template={"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "t.py"]}]}})
    fast, slow = (build_pod(OWNER, made, WorkerPod("w0", pool, 0), URL) for pool in made.pools)
    assert any("python -m rex_worker.launch -- python train.py" in warning for warning in fast.warnings)
    assert slow.warnings == ()


def test_devices_of_the_template_must_be_those_of_the_pool() -> None:
    trainer = {"name": "trainer", "image": "x", "resources": {"limits": {"amd.com/gpu": 8}}}
    made = job(template={"spec": {"containers": [trainer]}})
    with pytest.raises(InvalidTemplate, match=r"pool slow: .*amd.com/gpu is 8, but devicesPerPod is 1"):
        build_pod(OWNER, made, WorkerPod("w0", made.pools[1], 0), URL)
