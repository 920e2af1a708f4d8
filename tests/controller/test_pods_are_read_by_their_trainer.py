"""What a pod's status says about the worker in it."""

from __future__ import annotations

from typing import Any

from rex_operator.controller.pods import PodView, read_pod


def made(status: dict[str, Any], **meta: Any) -> PodView:
    return read_pod(
        {
            "metadata": {
                "name": "digits-w0-0",
                "uid": "u",
                "creationTimestamp": "2024-05-01T12:00:00Z",
                "labels": {"rex.dev/worker": "w0", "rex.dev/pool": "fast"},
                "annotations": {"rex.dev/attempt": "3"},
                **meta,
            },
            "spec": {"nodeName": "n"},
            "status": status,
        }
    )


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def test_c_087_the_trainer_decides_not_its_sidecar() -> None:
    statuses = [container("mesh", running={}), container("trainer", terminated={"exitCode": 0, "reason": "Completed"})]
    pod = made({"phase": "Running", "containerStatuses": statuses})
    assert pod.ended and pod.succeeded and not pod.live


def test_exit_code_and_reasons_of_an_out_of_memory_kill() -> None:
    statuses = [container("trainer", terminated={"exitCode": 137, "reason": "OOMKilled"})]
    pod = made({"phase": "Failed", "containerStatuses": statuses})
    assert (pod.exit_code, pod.reasons, pod.succeeded) == (137, ("OOMKilled",), False)


def test_c_059_a_disruption_is_told_by_its_condition() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = made({"phase": "Failed", "reason": "Terminated", "conditions": [condition]})
    assert pod.reasons == ("Terminated", "DisruptionTarget", "PreemptionByScheduler")
    assert pod.exit_code is None


def test_a_missing_image_is_stuck_and_a_slow_pull_is_not() -> None:
    stuck = made({"containerStatuses": [container("trainer", waiting={"reason": "ImagePullBackOff", "message": "no"})]})
    slow = made({"containerStatuses": [container("trainer", waiting={"reason": "ContainerCreating"})]})
    assert (stuck.stuck, slow.stuck) == ("ImagePullBackOff: no", "")


def test_attempt_and_draining_come_from_annotations() -> None:
    pod = made({}, annotations={"rex.dev/attempt": "3", "rex.dev/draining": "2024-05-01T12:00:00+00:00"})
    assert pod.attempt == 3 and pod.draining_since is not None and pod.live
