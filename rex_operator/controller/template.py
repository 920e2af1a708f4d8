"""A worker's pod, made from the user's template and the pool.

The template stays the user's: everything in it is kept unless REX cannot work without changing it, and each such change
is named in a warning, never made in silence. The environment that makes a process a worker is REX's alone; a template
that sets one of those names is refused. Identity is a service-account token with its own audience, projected into the
pod and renewed by the kubelet, beside the CA certificate that the channel is checked with.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rex_operator.api import Pool, RexJobSpec
from rex_operator.api.spec import check_devices
from rex_operator.controller.names import (
    ATTEMPT_ANNOTATION,
    DEVICE_ANNOTATION,
    DEVICES_ANNOTATION,
    POOL_LABEL,
    TRAINER,
    WORKER_LABEL,
    Owner,
)

AUDIENCE = "rex.dev"
LAUNCHER = "rex_worker.launch"
TOKEN_SECONDS = 3600
IDENTITY_VOLUME = "rex-identity"
IDENTITY_DIR = "/var/run/rex"
CHECKPOINT_VOLUME = "rex-checkpoints"
CHECKPOINT_DIR = "/var/lib/rex/checkpoints"

RESERVED = frozenset(
    {
        "REX_ADDRESS",
        "REX_BATCH_INITIAL",
        "REX_CA_FILE",
        "REX_CHANNEL_URL",
        "REX_CHECKPOINT_DIR",
        "REX_CHECKPOINT_EVERY",
        "REX_CHECKPOINT_KEEP",
        "REX_DEVICE",
        "REX_DEVICES_PER_POD",
        "REX_EXITS",
        "REX_GRACE_SECONDS",
        "REX_INCARNATION",
        "REX_JOB",
        "REX_JOB_SEED",
        "REX_POOL",
        "REX_REACHED_FILE",
        "REX_TOKEN_FILE",
        "REX_WORKER_ID",
    }
)
"""Set by REX, or by its launcher; ``REX_EMULATE`` and ``REX_EMULATE_SCALE`` are the user's."""

_LAUNCHER = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


class InvalidTemplate(ValueError):
    """The pod template cannot become a worker; the text says what, where and what to do."""


@dataclass(frozen=True)
class WorkerPod:
    """What distinguishes one pod of a job from the others; of several workers, ``worker_id`` is the stem."""

    worker_id: str
    pool: Pool
    attempt: int
    avoid_nodes: Collection[str] = ()


@dataclass(frozen=True)
class Built:
    """A pod manifest, and what of the user's template had to give way."""

    manifest: dict[str, Any]
    warnings: tuple[str, ...]


def build_pod(owner: Owner, spec: RexJobSpec, worker: WorkerPod, channel_url: str) -> Built:
    """Make the manifest of a worker's pod. Raises ``InvalidTemplate``."""
    template = copy.deepcopy(spec.template)
    metadata = template.get("metadata") or {}
    pod: dict[str, Any] = template["spec"]
    trainer = next(c for c in pod["containers"] if c.get("name") == TRAINER)
    warnings: list[str] = []
    _check_environment(trainer, warnings)

    def override(key: str, value: Any) -> None:
        if pod.get(key) not in (None, value):
            warnings.append(f"template.spec.{key} {pod[key]!r} was replaced by {value!r}")
        pod[key] = value

    override("restartPolicy", "Never")
    override("subdomain", owner.service)
    override("hostname", worker.worker_id)
    _place(pod, worker, warnings)
    _merge_resources(trainer, worker.pool, warnings)
    _check_devices(trainer, worker.pool, warnings)
    _mount(pod, trainer, IDENTITY_VOLUME, IDENTITY_DIR, {"projected": {"sources": _identity(owner)}}, read_only=True)
    checkpoints = _checkpoints(spec, pod, trainer)
    grace_s = int(pod.get("terminationGracePeriodSeconds", 30))
    ours = _environment(owner, spec, worker, channel_url, checkpoints, grace_s)
    trainer["env"] = [*(trainer.get("env") or []), *ours]

    labels = {**(metadata.get("labels") or {}), **owner.labels()}
    labels |= {WORKER_LABEL: worker.worker_id, POOL_LABEL: worker.pool.name}
    annotations = {**(metadata.get("annotations") or {})}
    annotations |= {ATTEMPT_ANNOTATION: str(worker.attempt), DEVICE_ANNOTATION: worker.pool.device}
    if worker.pool.devices_per_pod > 1:
        annotations[DEVICES_ANNOTATION] = str(worker.pool.devices_per_pod)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": owner.metadata(owner.pod(worker.worker_id, worker.attempt), labels=labels, annotations=annotations),
        "spec": pod,
    }
    return Built(manifest, tuple(warnings))


def _check_environment(trainer: dict[str, Any], warnings: list[str]) -> None:
    names = [str(entry.get("name")) for entry in trainer.get("env") or []]
    taken = sorted(RESERVED.intersection(names))
    if taken:
        raise InvalidTemplate(
            f"spec.template.spec.containers[trainer].env: {', '.join(taken)}: set by REX itself; remove it"
        )
    idle = [name for name in names if name in _LAUNCHER or name.startswith("PET_")]
    warnings += [f"env {name} has no effect: REX forms the process group itself" for name in idle]
    words = [str(word) for word in [*(trainer.get("command") or []), *(trainer.get("args") or [])]]
    if any(word.split("=")[0] in ("--nnodes", "--nproc_per_node", "--nproc-per-node") for word in words):
        warnings.append("launcher flags such as --nnodes have no effect: REX starts one process per worker itself")


def _place(pod: dict[str, Any], worker: WorkerPod, warnings: list[str]) -> None:
    selector = dict(pod.get("nodeSelector") or {})
    for key, value in worker.pool.node_selector.items():
        if selector.get(key) not in (None, value):
            warnings.append(f"nodeSelector {key}={selector[key]} was replaced by pool {worker.pool.name}'s {value}")
        selector[key] = value
    if selector:
        pod["nodeSelector"] = selector
    tolerations = [t.model_dump(by_alias=True, exclude_none=True) for t in worker.pool.tolerations]
    present = pod.get("tolerations") or []
    if tolerations:
        pod["tolerations"] = [*present, *({k: v for k, v in t.items() if v != ""} for t in tolerations)]
    if worker.avoid_nodes:
        _avoid(pod, sorted(worker.avoid_nodes))


def _avoid(pod: dict[str, Any], nodes: list[str]) -> None:
    """Keep the pod off nodes whose kubelet has just refused one, in every alternative the user gave."""
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        fields = term.setdefault("matchFields", [])
        fields += [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]


def _merge_resources(trainer: dict[str, Any], pool: Pool, warnings: list[str]) -> None:
    resources = dict(trainer.get("resources") or {})
    for kind, amounts in (("limits", pool.resources.limits), ("requests", pool.resources.requests)):
        merged = dict(resources.get(kind) or {})
        for name, amount in amounts.items():
            if str(merged.get(name, amount)) != str(amount):
                warnings.append(f"resources.{kind} {name}={merged[name]} was replaced by pool {pool.name}'s {amount}")
            merged[name] = amount
        if merged:
            resources[kind] = merged
    if resources:
        trainer["resources"] = resources


def _check_devices(trainer: dict[str, Any], pool: Pool, warnings: list[str]) -> None:
    try:
        check_devices((trainer.get("resources") or {}).get("limits") or {}, pool.devices_per_pod, "resources.limits")
    except ValueError as error:
        raise InvalidTemplate(f"pool {pool.name}: the trainer's {error}") from None
    words = [str(word) for word in [*(trainer.get("command") or []), *(trainer.get("args") or [])]]
    if pool.devices_per_pod > 1 and words and not any(LAUNCHER in word for word in words):
        warnings.append(
            f"pool {pool.name} has devicesPerPod {pool.devices_per_pod}, but the trainer's command does not name"
            f" {LAUNCHER}: unless it calls it itself, let it be python -m {LAUNCHER} -- python train.py"
        )


def _identity(owner: Owner) -> list[dict[str, Any]]:
    return [
        {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": owner.trust, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]


def _mount(
    pod: dict[str, Any], trainer: dict[str, Any], name: str, path: str, source: dict[str, Any], *, read_only: bool
) -> None:
    if any(volume.get("name") == name for volume in pod.get("volumes") or []):
        raise InvalidTemplate(f"spec.template.spec.volumes: the name {name} is REX's; choose another")
    pod["volumes"] = [*(pod.get("volumes") or []), {"name": name, **source}]
    mount = {"name": name, "mountPath": path, "readOnly": read_only}
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), mount]


def _checkpoints(spec: RexJobSpec, pod: dict[str, Any], trainer: dict[str, Any]) -> str | None:
    """Where checkpoints go; a template that mounts its own ``rex-checkpoints`` volume in the trainer keeps it."""
    if spec.checkpoint is None:
        return None
    own = next((m for m in trainer.get("volumeMounts") or [] if m.get("name") == CHECKPOINT_VOLUME), None)
    if own is not None:
        if own.get("readOnly"):
            raise InvalidTemplate(f"volumeMounts[{CHECKPOINT_VOLUME}] is read-only; checkpoints are written there")
        return f"{own['mountPath'].rstrip('/')}/{spec.checkpoint.path}"
    claim = spec.checkpoint.claim_name
    source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    _mount(pod, trainer, CHECKPOINT_VOLUME, CHECKPOINT_DIR, source, read_only=False)
    return f"{CHECKPOINT_DIR}/{spec.checkpoint.path}"


def _environment(
    owner: Owner, spec: RexJobSpec, worker: WorkerPod, channel_url: str, checkpoints: str | None, grace_s: int
) -> list[dict[str, Any]]:
    values = {
        "REX_JOB": str(owner),
        "REX_WORKER_ID": worker.worker_id,
        "REX_POOL": worker.pool.name,
        "REX_DEVICE": worker.pool.device,
        "REX_DEVICES_PER_POD": str(worker.pool.devices_per_pod),
        "REX_CHANNEL_URL": channel_url,
        "REX_TOKEN_FILE": f"{IDENTITY_DIR}/token",
        "REX_CA_FILE": f"{IDENTITY_DIR}/ca.crt",
        "REX_JOB_SEED": str(job_seed(owner.uid)),
        "REX_BATCH_INITIAL": str(spec.batch.initial),
        "REX_GRACE_SECONDS": str(max(1, grace_s - 2)),
    }
    if checkpoints is not None and spec.checkpoint is not None:
        values |= {
            "REX_CHECKPOINT_DIR": checkpoints,
            "REX_CHECKPOINT_EVERY": str(spec.checkpoint.every_steps),
            "REX_CHECKPOINT_KEEP": str(spec.checkpoint.keep),
        }
    fields = {"REX_INCARNATION": "metadata.uid", "REX_ADDRESS": "status.podIP"}
    return [{"name": name, "value": value} for name, value in values.items()] + [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]


def job_seed(uid: str) -> int:
    """The order in which all workers of a job draw their data: the same over all lives of the job."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") >> 1
