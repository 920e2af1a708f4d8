"""One test's own corner of a real API server: a namespace, some fake nodes, and a kubelet that runs real processes."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

from rex_operator.controller.kube import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    REXJOBS,
    SERVICES,
    Kube,
    KubeError,
    Object,
    Resource,
)
from tests.controller.kubelet import ProcessKubelet, add_node
from tests.controller.operator_process import OperatorProcess, until

NAMESPACES = Resource("v1", "namespaces", namespaced=False)
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts")
CHILDREN = (PODS, SERVICES, CONFIG_MAPS, DISRUPTION_BUDGETS, NETWORK_POLICIES)

SCENE_LABEL = "test/scene"
TRAIN = ["python", "tests/controller/train_tiny.py"]


class Scene:
    """A namespace with nodes of its own, which carry its name as a label."""

    def __init__(self, kube: Kube, operator: OperatorProcess) -> None:
        self.kube, self.operator = kube, operator
        self.namespace = f"t-{uuid.uuid4().hex[:8]}"
        self._nodes: list[str] = []
        self._stack = contextlib.AsyncExitStack()
        self.kubelet: ProcessKubelet

    async def __aenter__(self) -> Scene:
        meta = {"name": self.namespace}
        await self.kube.create(NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        await until(self._has_account, "the namespace has a service account")
        self.kubelet = await self._stack.enter_async_context(ProcessKubelet(self.kube, self.namespace))
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in (await self.kube.list(REXJOBS, self.namespace))[0]:
            await self.kube.delete(REXJOBS, self.namespace, job["metadata"]["name"])
        await self._stack.aclose()
        for name in self._nodes:
            await self.kube.delete(NODES, None, name)
        for pod in (await self.kube.list(PODS, self.namespace))[0]:
            with contextlib.suppress(KubeError):
                path = PODS.path(self.namespace, pod["metadata"]["name"])
                await self.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
        await self.kube.delete(NAMESPACES, None, self.namespace)

    async def _has_account(self) -> bool:
        return await self.kube.get(SERVICE_ACCOUNTS, self.namespace, "default") is not None

    async def nodes(self, **devices: int) -> None:
        """Add a node per device kind with so many devices."""
        for device, count in devices.items():
            name = f"{device}-{len(self._nodes)}-{self.namespace}"
            self._nodes.append(name)
            await add_node(self.kube, name, device, count, **{SCENE_LABEL: self.namespace})
            self.kubelet.keep_alive(name)

    def job(
        self,
        name: str,
        command: list[str] | None = None,
        *,
        pools: dict[str, int] | None = None,
        epochs: int = 3,
        **spec: Any,
    ) -> Object:
        """A RexJob on this scene's nodes; ``spec`` replaces whole fields."""
        pools = pools or {"a100": 2}
        trainer = {
            "name": "trainer",
            "image": "example/train:1",
            "command": command or TRAIN,
            "env": [
                {"name": "REX_EMULATE", "value": "1"},
                {"name": "REX_EMULATE_SCALE", "value": "0.2"},
                {"name": "EPOCHS", "value": str(epochs)},
            ],
        }
        return {
            "apiVersion": "rex.dev/v1alpha1",
            "kind": "RexJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "workers": {"min": sum(pools.values()), "max": sum(pools.values())},
                "pools": [
                    {
                        "name": device,
                        "maxWorkers": count,
                        "nodeSelector": {"rex.dev/device": device, SCENE_LABEL: self.namespace},
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                    }
                    for device, count in pools.items()
                ],
                "batch": {"initial": 32, "min": 8, "max": 256},
                "template": {"spec": {"containers": [trainer], "terminationGracePeriodSeconds": 10}},
                **spec,
            },
        }

    async def create(self, job: Object) -> Object:
        """Create the job."""
        return await self.kube.create(REXJOBS, self.namespace, job)

    async def get(self, name: str) -> Object:
        """The job as it stands; an empty object when it is gone."""
        return await self.kube.get(REXJOBS, self.namespace, name) or {}

    async def status(self, name: str) -> Object:
        """The job's status as it stands."""
        status: Object = (await self.get(name)).get("status", {})
        return status

    async def wait(self, name: str, what: Callable[[Object], Any], told: str, seconds: float = 120) -> Object:
        """Wait until the job's status satisfies ``what``, and return it."""
        held: Object = {}

        async def satisfied() -> bool:
            held.clear()
            held.update(await self.status(name))
            return bool(what(held))

        try:
            await until(satisfied, told, self.operator.log, seconds)
        except AssertionError as error:
            logs = "\n".join(f"--- {pod}\n{self.kubelet.log(pod)[-1500:]}" for pod in self.kubelet.logs)
            raise AssertionError(f"{error}\nstatus: {held}\n{logs}") from None
        return held

    async def wait_phase(self, name: str, phase: str, seconds: float = 120) -> Object:
        """Wait for a phase."""
        ends = {phase, "Succeeded", "Failed"}
        status = await self.wait(name, lambda status: status.get("phase") in ends, f"{name} is {phase}", seconds)
        logs = {pod: self.kubelet.log(pod)[-800:] for pod in self.kubelet.logs}
        assert status["phase"] == phase, f"{status}\n{logs}"
        return status

    async def wait_whole(self, name: str, workers: int, told: str, *, beyond: int = 0) -> Object:
        """Wait until so many workers train in one group, of a later generation than ``beyond``, under its plan.

        That so many are ready is true a moment before: a newcomer is counted when it is ready to be let in.
        """

        def whole(status: Object) -> bool:
            plan, generation = status.get("plan", {}), status.get("generation", 0)
            return bool(
                status.get("phase") == "Running"
                and status["workers"]["summary"] == f"{workers}/{workers}"
                and generation > beyond
                and (plan.get("generation"), plan.get("state")) == (generation, "Applied")
            )

        return await self.wait(name, whole, told)

    async def pods(self, name: str) -> dict[str, Object]:
        """The job's pods by name."""
        items, _ = await self.kube.list(PODS, self.namespace, labels=f"rex.dev/job={name}")
        return {pod["metadata"]["name"]: pod for pod in items}

    async def children(self) -> list[str]:
        """Everything that REX made in this namespace."""
        found = []
        for resource in CHILDREN:
            items, _ = await self.kube.list(
                resource, self.namespace, labels="app.kubernetes.io/managed-by=rex-operator"
            )
            found += [f"{resource.plural}/{item['metadata']['name']}" for item in items]
        return found

    async def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, note) of all events about the job."""
        items, _ = await self.kube.list(EVENTS, self.namespace)
        return [(e["reason"], e.get("note", "")) for e in items if e["regarding"].get("name") == name]

    async def wait_told(self, name: str, *reasons: str) -> None:
        """Wait for events about the job with these reasons: they are posted after the status is written."""
        seen: list[tuple[str, str]] = []

        async def told() -> bool:
            seen[:] = await self.events(name)
            return set(reasons) <= {reason for reason, _ in seen}

        try:
            await self.until(told, f"events {', '.join(reasons)}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nevents: {seen}") from None

    async def delete_pod(self, name: str) -> None:
        """Delete a pod, as somebody else would."""
        await self.kube.delete(PODS, self.namespace, name)

    async def until(self, what: object, told: str, seconds: float = 120) -> None:
        """Wait until ``what()`` is true."""
        try:
            await until(what, told, self.operator.log, seconds)
        except AssertionError as error:
            pods = [
                (p["metadata"]["name"], p["metadata"].get("deletionTimestamp"), p["status"]["phase"])
                for p in self.kubelet.pods
            ]
            raise AssertionError(f"{error}\nkubelet: {pods} {self.kubelet.faults}") from None

    async def patch(self, name: str, **spec: Any) -> None:
        """Change fields of the spec."""
        await self.kube.merge(REXJOBS, self.namespace, name, {"spec": spec})
