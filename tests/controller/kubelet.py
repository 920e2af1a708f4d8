"""A kubelet and scheduler of the smallest kind: fake nodes whose pods are real processes on this machine.

The component tests run against a real API server without nodes. This stands in for the rest of a node: it binds pods to
nodes with room, fetches the projected service-account token (a real one, bound to the pod), starts the trainer
container's command with its environment, and reports the process's life in the pod's status. Volumes other than REX's
identity and pod fields are not supported; containers beside the trainer count as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rex_operator.controller.demand import pod_demand, read_node, usage_by_node
from rex_operator.controller.informer import Informer
from rex_operator.controller.kube import CONFIG_MAPS, LEASES, NODES, PODS, Kube, KubeError, Object
from rex_operator.controller.template import CHECKPOINT_DIR, IDENTITY_DIR
from rex_operator.placement.nodes import fits

ROOT = Path(__file__).parents[2]


async def add_node(kube: Kube, name: str, device: str, gpus: int = 1, **labels: str) -> None:
    """Make a Node object that is Ready and offers devices."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"rex.dev/device": device, "kubernetes.io/hostname": name, **labels}},
    }
    await kube.create(NODES, None, node)
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "", "lastTransitionTime": now}
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    await kube.request(
        "PATCH", NODES.path(None, name, "status"), body=status, content_type="application/merge-patch+json"
    )
    await kube.merge(NODES, None, name, {"spec": {"taints": None}})


class ProcessKubelet:
    """Runs the pods of one namespace (None: of all) until closed."""

    def __init__(self, kube: Kube, namespace: str | None = None) -> None:
        self._kube = kube
        self._folder = Path(tempfile.mkdtemp(prefix="rex-kubelet-"))
        self._changed = asyncio.Event()
        self.pods = Informer(kube, PODS, namespace, on_change=lambda *_: self._changed.set())
        self._nodes = Informer(kube, NODES, None, on_change=lambda *_: self._changed.set())
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        """By pod UID."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started: set[str] = set()
        self._terminating: set[str] = set()
        self._over: set[str] = set()
        """Pods (by UID) whose process has ended and was reported."""
        self.cordoned_off: set[str] = set()
        """Pods (by name) that are left unbound."""
        self.logs: dict[str, Path] = {}
        self._uids: dict[str, str] = {}
        self.faults: list[str] = []
        """What ended one of our own tasks; must stay empty."""

    async def __aenter__(self) -> ProcessKubelet:
        self._spawn(self.pods.run())
        self._spawn(self._nodes.run())
        await self.pods.synced.wait()
        await self._nodes.synced.wait()
        self._spawn(self._loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder)

    def keep_alive(self, node: str) -> None:
        """Renew the node's Lease, so that the controller manager believes that it lives."""
        self._spawn(self._heartbeat(node))

    async def _heartbeat(self, node: str) -> None:
        body: Object = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": node, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 40},
        }
        while True:
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            body["spec"]["renewTime"] = now
            with contextlib.suppress(KubeError):
                await self._kube.apply(LEASES, "kube-node-lease", body, manager="kubelet")
            await asyncio.sleep(5)

    def process(self, pod: str) -> asyncio.subprocess.Process:
        """The process of the newest pod of that name."""
        return self.processes[self._uids[pod]]

    def kill(self, pod: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the process of the pod of that name."""
        self.process(pod).send_signal(number)

    def log(self, pod: str) -> str:
        """What the pod's process has written."""
        return self.logs[pod].read_text() if pod in self.logs else ""

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_fault)

    def _note_fault(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, KubeError):
            self._look_again()
        else:
            self.faults.append("".join(traceback.format_exception(error)))

    def _look_again(self) -> None:
        """What the API server refused just now is tried again: like a kubelet, go by the state, not by the event."""
        asyncio.get_running_loop().call_later(0.5, self._changed.set)

    async def _loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for pod in self.pods:
                try:
                    await self._sync(pod)
                except KubeError:
                    self._look_again()

    async def _sync(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._started or uid in self._over:
                await self._remove(pod)
            elif uid in self.processes and uid not in self._terminating:
                self._terminating.add(uid)
                self._spawn(self._terminate(pod))
        elif not pod["spec"].get("nodeName"):
            await self._bind(pod)
        elif uid not in self._started:
            self._started.add(uid)
            self._spawn(self._run(pod))

    async def _bind(self, pod: Object) -> None:
        if pod["metadata"]["name"] in self.cordoned_off:
            return
        used = usage_by_node(self.pods)
        demand = pod_demand(pod["spec"])
        for node in self._nodes:
            if fits(demand, read_node(node, used.get(node["metadata"]["name"], {}))):
                meta = pod["metadata"]
                target = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
                binding = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": meta["name"]},
                    "target": target,
                }
                await self._kube.request("POST", PODS.path(meta["namespace"], meta["name"], "binding"), body=binding)
                bound = await self._kube.get(PODS, meta["namespace"], meta["name"])
                if bound is not None:
                    self.pods.remember(bound)
                return

    async def _run(self, pod: Object) -> None:
        meta = pod["metadata"]
        home = self._folder / meta["uid"]
        home.mkdir(exist_ok=True)
        try:
            await self._identity(pod, home)
        except KubeError:
            self._started.discard(meta["uid"])  # what it needs is not there yet, or not any more
            raise
        trainer = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
        command = [*trainer.get("command", []), *trainer.get("args", [])]
        command = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        self.logs[meta["name"]] = home / "log"
        with (home / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env=self._environment(pod, trainer, home),
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[meta["uid"]] = process
        self._uids[meta["name"]] = meta["uid"]
        await self._report(pod, "Running", {"running": {"startedAt": _now()}})
        code = await process.wait()
        code = 128 - code if code < 0 else code
        reason = "Completed" if code == 0 else "Error"
        ended = {"terminated": {"exitCode": code, "reason": reason, "startedAt": _now(), "finishedAt": _now()}}
        await self._report(pod, "Succeeded" if code == 0 else "Failed", ended)
        self._over.add(meta["uid"])
        self._changed.set()

    async def _terminate(self, pod: Object) -> None:
        process = self.processes[pod["metadata"]["uid"]]
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                async with asyncio.timeout(pod["metadata"].get("deletionGracePeriodSeconds", 30)):
                    await process.wait()
            except TimeoutError:
                process.kill()

    async def _remove(self, pod: Object) -> None:
        meta = pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        try:
            await self._kube.request("DELETE", PODS.path(meta["namespace"], meta["name"]), body=options)
        except KubeError as error:
            if error.status not in (404, 409):  # gone, or of another life by now
                raise

    async def _identity(self, pod: Object, home: Path) -> None:
        meta = pod["metadata"]
        for volume in pod["spec"].get("volumes", []):
            for source in volume.get("projected", {}).get("sources", []):
                token = source.get("serviceAccountToken")
                if token and token.get("audience") == "rex.dev":
                    (home / "token").write_text(await self._token(meta, pod["spec"], token))
                name = source.get("configMap", {}).get("name", "")
                if name.endswith("-ca"):
                    held = await self._kube.request("GET", CONFIG_MAPS.path(meta["namespace"], name))
                    (home / "ca.crt").write_text(held["data"]["ca.crt"])

    async def _token(self, meta: Object, spec: Object, wish: Object) -> str:
        account = spec.get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [wish["audience"]],
                "expirationSeconds": wish["expirationSeconds"],
                "boundObjectRef": bound,
            },
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        answer = await self._kube.request("POST", path, body=body)
        return str(answer["status"]["token"])

    def _environment(self, pod: Object, trainer: Object, home: Path) -> dict[str, str]:
        fields = {"metadata.uid": pod["metadata"]["uid"], "status.podIP": "127.0.0.1"}
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(home)}
        for entry in trainer.get("env", []):
            value = entry.get("value")
            if "valueFrom" in entry:
                value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            env[entry["name"]] = str(value or "")
        for name, value in env.items():
            if name.startswith("REX_"):
                value = value.replace(IDENTITY_DIR, str(home))
                env[name] = value.replace(CHECKPOINT_DIR, str(self._folder / "checkpoints"))
        return env

    async def _report(self, pod: Object, phase: str, state: Object) -> None:
        meta = pod["metadata"]
        ready = "True" if phase == "Running" else "False"
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "state": state if container["name"] == "trainer" else {"running": {"startedAt": _now()}},
                }
                for container in pod["spec"]["containers"]
            ],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": _now()}],
        }
        with contextlib.suppress(KubeError):
            await self._kube.request(
                "PATCH",
                PODS.path(meta["namespace"], meta["name"], "status"),
                body={"metadata": {"uid": meta["uid"]}, "status": status},
                content_type="application/merge-patch+json",
            )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
