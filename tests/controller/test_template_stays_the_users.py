"""A worker's pod is the user's template plus what makes it a worker; nothing is changed in silence."""

from __future__ import annotations

from typing import Any

import pytest

from rex_operator.controller.template import RESERVED, Built, InvalidTemplate, WorkerPod, build_pod
from tests.controller.pictures import OWNER, URL, spec


def build(pool: int = 0, avoid: tuple[str, ...] = (), **pod_spec: Any) -> Built:
    trainer = pod_spec.pop("trainer", {})
    containers = [{"name": "trainer", "image": "x", **trainer}, *pod_spec.pop("containers", [])]
    job = spec(
        template={"metadata": {"labels": {"team": "vision"}}, "spec": {"containers": containers, **pod_spec}},
        **pod_spec.pop("job", {}),
    )
    return build_pod(OWNER, job, WorkerPod("w3", job.pools[pool], 2, avoid), URL)


def env(built: Built) -> dict[str, Any]:
    trainer = next(c for c in built.manifest["spec"]["containers"] if c["name"] == "trainer")
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in trainer["env"]}


def test_the_environment_of_the_worker_contract() -> None:
    values = env(build())
    assert values["REX_JOB"] == "team/digits"
    assert values["REX_WORKER_ID"] == "w3"
    assert (values["REX_POOL"], values["REX_DEVICE"]) == ("fast", "a100")
    assert values["REX_CHANNEL_URL"] == URL
    assert values["REX_INCARNATION"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert values["REX_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert values["REX_CHECKPOINT_DIR"] == "/var/lib/rex/checkpoints/digits"
    assert values["REX_DEVICES_PER_POD"] == "1"
    assert set(values) == RESERVED - {"REX_EXITS", "REX_REACHED_FILE"}, "those two are the launcher's"


def test_identity_is_a_token_with_its_own_audience_beside_the_ca() -> None:
    sources = next(v for v in build().manifest["spec"]["volumes"] if v["name"] == "rex-identity")["projected"][
        "sources"
    ]
    assert sources[0]["serviceAccountToken"]["audience"] == "rex.dev"
    assert sources[0]["serviceAccountToken"]["expirationSeconds"] >= 600
    assert sources[1]["configMap"]["name"] == OWNER.trust


def test_children_are_owned_so_that_deleting_the_job_takes_them_along() -> None:
    meta = build().manifest["metadata"]
    assert meta["name"] == "digits-w3-2"
    (owner,) = meta["ownerReferences"]
    assert owner["uid"] == OWNER.uid and owner["controller"] and not owner["blockOwnerDeletion"]
    assert meta["labels"]["team"] == "vision"


def test_c_010_what_is_overridden_is_named() -> None:
    built = build(
        restartPolicy="Always",
        hostname="mine",
        subdomain="ours",
        nodeSelector={"rex.dev/device": "t4", "zone": "a"},
        trainer={"resources": {"limits": {"nvidia.com/gpu": 4, "memory": "1Gi"}}},
    )
    pod = built.manifest["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {"rex.dev/device": "a100", "zone": "a"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1, "memory": "1Gi"}
    text = "\n".join(built.warnings)
    for word in ("restartPolicy", "hostname", "subdomain", "nodeSelector rex.dev/device", "nvidia.com/gpu"):
        assert word in text


def test_c_010_what_can_be_kept_is_kept_without_a_word() -> None:
    kept: dict[str, Any] = {
        "restartPolicy": "Never",
        "schedulerName": "mine",
        "serviceAccountName": "trainer",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "affinity": {"podAntiAffinity": {}},
        "dnsPolicy": "Default",
        "futureField": {"anything": 1},
    }
    built = build(**kept)
    assert built.warnings == ()
    for key, value in kept.items():
        assert built.manifest["spec"][key] == value


@pytest.mark.parametrize("name", ["REX_TOKEN_FILE", "REX_WORKER_ID"])
def test_c_011_a_reserved_name_in_the_environment_is_refused(name: str) -> None:
    with pytest.raises(InvalidTemplate, match=f"{name}.*set by REX itself"):
        build(trainer={"env": [{"name": name, "value": "x"}]})


def test_c_011_launcher_settings_are_warned_about() -> None:
    built = build(
        trainer={
            "env": [{"name": "PET_NNODES", "value": "1:99"}, {"name": "MASTER_ADDR", "value": "x"}],
            "args": ["--nnodes=1:99"],
        }
    )
    assert len(built.warnings) == 3


def test_emulation_is_the_users_to_set() -> None:
    assert env(build(trainer={"env": [{"name": "REX_EMULATE", "value": "1"}]}))["REX_EMULATE"] == "1"


def test_no_value_of_the_environment_is_in_a_warning() -> None:
    built = build(trainer={"env": [{"name": "WORLD_SIZE", "value": "CANARY"}]}, restartPolicy="Always")
    assert "CANARY" not in "\n".join(built.warnings)


def test_c_057_nodes_to_avoid_are_excluded_in_every_alternative() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    built = build(avoid=("bad",), affinity=affinity)
    made = built.manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in made["nodeSelectorTerms"]:
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]


def test_a_volume_of_the_users_own_takes_the_checkpoints() -> None:
    built = build(
        volumes=[{"name": "rex-checkpoints", "hostPath": {"path": "/data"}}],
        trainer={"volumeMounts": [{"name": "rex-checkpoints", "mountPath": "/mnt/"}]},
    )
    assert env(built)["REX_CHECKPOINT_DIR"] == "/mnt/digits"
    assert [v["name"] for v in built.manifest["spec"]["volumes"]] == ["rex-checkpoints", "rex-identity"]


def test_the_template_itself_is_not_changed_by_building() -> None:
    job = spec()
    before = str(job.template)
    build_pod(OWNER, job, WorkerPod("w0", job.pools[0], 0), URL)
    assert str(job.template) == before
