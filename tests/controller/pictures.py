"""Builders of pictures of a job for the tables of the pure tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from rex_operator.api import JobStatus, RexJob, RexJobSpec
from rex_operator.controller.demand import pool_request
from rex_operator.controller.names import Owner
from rex_operator.controller.observation import Decision, Observation
from rex_operator.controller.pods import PodView
from rex_operator.controller.template import WorkerPod, build_pod
from rex_operator.jobs import JobView, WorkerRow
from rex_operator.jobs.view import Phase, WorkerState
from rex_operator.placement import Node
from rex_operator.planning import PlannerView
from rex_worker.protocol import Plan
from tests.api.manifests import changed, manifest

NOW = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)
OWNER = Owner("team", "digits", "11111111-2222-3333-4444-555555555555")
URL = "wss://rex-channel.rex-system.svc:8443/v1/channel"


def spec(**changes: Any) -> RexJobSpec:
    """The good spec, with fields set by dotted path (``__`` for the dots)."""
    made = manifest()
    for path, value in changes.items():
        made = changed("spec." + path.replace("__", "."), value, made)
    return RexJob.from_manifest(made).spec


def pod(worker_id: str, pool: str = "fast", **changes: Any) -> PodView:
    """A worker's pod that runs on node ``n-POOL``."""
    attempt = changes.get("attempt", 0)
    plain = PodView(
        name=f"digits-{worker_id}-{attempt}",
        uid=f"uid-{worker_id}-{attempt}",
        worker_id=worker_id,
        pool=pool,
        created=NOW - timedelta(minutes=1),
        device={"fast": "a100", "slow": "t4"}[pool],
        node=f"n-{pool}",
        started=True,
    )
    return replace(plain, **changes)


def node(name: str, device: str, gpus: int, **changes: Any) -> Node:
    amounts = {"nvidia.com/gpu": Decimal(gpus), "memory": Decimal(2**40), "pods": Decimal(110)}
    plain = Node(name, {"rex.dev/device": device}, allocatable=amounts, free=amounts)
    return replace(plain, **changes)


def row(pod: PodView, state: WorkerState = "running", rank: int | None = 0, **changes: Any) -> WorkerRow:
    plain = WorkerRow(
        worker_id=pod.worker_id,
        incarnation=pod.uid,
        pool=pod.pool,
        device=pod.device,
        state=state,
        rank=rank,
        connected=True,
        local_batch=32,
        compute_s=0.01,
        wait_s=0.0,
        comm_s=0.002,
        step=10,
        plan_version=1,
    )
    return replace(plain, **changes)


def view(phase: Phase = "Running", rows: Sequence[WorkerRow] = (), generation: int = 1, **changes: Any) -> JobView:
    names = [r.worker_id for r in rows if r.rank is not None] or ["w0"]
    batches = {name: 256 // len(names) + (i < 256 % len(names)) for i, name in enumerate(names)}
    plan = Plan(generation=generation, version=3, global_batch=256, local_batches=batches) if generation else None
    plain = JobView(
        name=str(OWNER),
        phase=phase,
        generation=generation,
        plan=plan,
        workers=tuple(rows),
        step=100 if generation else 0,
        samples=25_600 if generation else 0,
        total_samples=0,
        steps_lost=0,
        progress=None,
        steps_per_s=None,
        samples_per_s=None,
        goodput=None,
        loss=None,
        diverged=False,
        metrics={},
        eta_s=None,
        checkpoint_step=0,
        decisions=(),
        stale=(),
        unacked=(),
        last_step=None,
        planner=PlannerView(),
        converged=False,
    )
    return replace(plain, **changes)


def training(*pods: PodView) -> JobView:
    """All these pods train together."""
    return view("Running", [row(p, rank=i) for i, p in enumerate(pods)])


def seen(pods: Sequence[PodView] = (), job: RexJobSpec | None = None, **changes: Any) -> Observation:
    """A picture: two fast and four slow devices are there and free, unless said otherwise."""
    job = job or spec()
    pools = [
        pool_request(p, job, build_pod(OWNER, job, WorkerPod("w0", p, 0), URL).manifest["spec"]) for p in job.pools
    ]
    free_fast = 2 - sum(p.pool == "fast" and p.live for p in pods)
    free_slow = 4 - sum(p.pool == "slow" and p.live for p in pods)
    nodes = tuple(
        replace(node(f"n-{pool}", device, total), free=node("", device, max(0, free)).free)
        for pool, device, total, free in (("fast", "a100", 2, free_fast), ("slow", "t4", 4, free_slow))
    )
    plain = Observation(
        owner=OWNER,
        spec=job,
        generation=1,
        created=NOW - timedelta(minutes=2),
        status=JobStatus(),
        pods=pods,
        now=NOW,
        view=view("Pending", generation=0),
        pools=pools,
        nodes=nodes,
    )
    return replace(plain, **changes)


def later(picture: Observation, decision: Decision, **changes: Any) -> Observation:
    """The picture after the decision's status was written."""
    return replace(picture, status=JobStatus.read(decision.status.dump()), **changes)
