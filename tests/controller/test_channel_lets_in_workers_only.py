"""C-201 on a real API server: who is not exactly the worker that it claims to be is refused, and nothing changes."""

from __future__ import annotations

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from rex_operator.controller.kube import CONFIG_MAPS, PODS, Object
from rex_worker.protocol import Hello, encode
from tests.controller.scene import Scene

pytestmark = pytest.mark.component

IDLE = ["sleep", "1000"]


async def token(scene: Scene, pod: Object, audience: str = "rex.dev") -> str:
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{scene.namespace}/serviceaccounts/default/token"
    return str((await scene.kube.request("POST", path, body=body))["status"]["token"])


def hello(scene: Scene, pod: Object, **changes: Any) -> Hello:
    labels = pod["metadata"]["labels"]
    said = {
        "job": f"{scene.namespace}/{labels['rex.dev/job']}",
        "worker_id": labels["rex.dev/worker"],
        "incarnation": pod["metadata"]["uid"],
        "device": "a100",
        "address": "127.0.0.1",
        "store_port": 1234,
    }
    return Hello(**{**said, **changes})


@contextlib.asynccontextmanager
async def knock(scene: Scene, bearer: str, said: Hello) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open the channel and say hello. Raises ``WSServerHandshakeError`` when even that is refused."""
    held = await scene.kube.get(CONFIG_MAPS, scene.namespace, "rex-one-ca")
    assert held is not None
    trust = ssl.create_default_context(cadata=held["data"]["ca.crt"])
    url = f"wss://127.0.0.1:{scene.operator.channel_port}/v1/channel"
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    async with aiohttp.ClientSession() as session, session.ws_connect(url, ssl=trust, headers=headers) as socket:
        await socket.send_str(encode(said))
        yield socket


async def refused(scene: Scene, bearer: str, said: Hello, patience_s: float = 60) -> bool:
    """Whether the operator hangs up. One that it lets in hears nothing, as long as it is not ready."""
    try:
        async with knock(scene, bearer, said) as socket:
            answer = await socket.receive(timeout=patience_s)
    except aiohttp.WSServerHandshakeError:
        return True
    except TimeoutError:
        return False
    return answer.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_only_the_pods_own_token_speaks_for_the_worker(scene: Scene) -> None:
    await scene.nodes(a100=4)
    for name in ("one", "two"):
        await scene.create(scene.job(name, IDLE))
        await scene.wait(name, lambda s: s.get("replicas") == 2, "two workers")
    one, two = await scene.pods("one"), await scene.pods("two")
    mine = one["one-w0-0"]
    good = await token(scene, mine)

    assert await refused(scene, "", hello(scene, mine)), "no token"
    assert await refused(scene, "x" * 100, hello(scene, mine)), "no real token"
    assert await refused(scene, await token(scene, mine, "other"), hello(scene, mine)), "another audience"
    assert await refused(scene, await token(scene, two["two-w0-0"]), hello(scene, mine)), "another job's token"
    assert await refused(scene, await token(scene, one["one-w1-0"]), hello(scene, mine)), "a brother's token"
    assert await refused(scene, good, hello(scene, mine, worker_id="w1")), "another worker's name"
    assert await refused(scene, good, hello(scene, mine, job=f"{scene.namespace}/two")), "another job's name"
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": {**mine["metadata"]["labels"]}},
        "spec": {"containers": [{"name": "trainer", "image": "x", "command": IDLE}]},
    }
    scene.kubelet.cordoned_off.add("stranger")
    made = await scene.kube.create(PODS, scene.namespace, stranger)
    assert await refused(scene, await token(scene, made), hello(scene, made)), "a pod with copied labels"

    before = await scene.status("one")
    assert before["workers"]["ready"] == 0
    async with knock(scene, good, hello(scene, mine)):
        await scene.wait("one", lambda s: "1 of 2 workers connected" in s["message"], "the worker itself is let in")

    await scene.delete_pod("one-w0-0")

    async def gone() -> bool:
        lives = {pod["metadata"]["uid"] for pod in (await scene.pods("one")).values()}
        return mine["metadata"]["uid"] not in lives  # its replacement may have its name again

    await scene.until(gone, "the pod is gone")
    last_try = functools.partial(refused, scene, good, hello(scene, mine), patience_s=3)
    await scene.until(last_try, "the token of a pod that is gone opens nothing, once the operator knows")
    assert good not in scene.operator.log.read_text()
