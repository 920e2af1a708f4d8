"""Which names a pod's token covers: those of its own workers, each for the lives of its own process."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rex_operator.channel import Identity, Refused
from rex_operator.controller.authentication import TokenAuthenticator
from rex_operator.controller.kube import Kube
from rex_operator.controller.runtime import Runtimes
from rex_worker.protocol import Hello
from tests.controller.pictures import OWNER

UID = "0b7c9b62-6a3e-4c6e-9d53-1f6e2f6b7a10"


class OneToken:
    """An API server to which every token is that of the one pod, and an operator that runs every job."""

    async def create(self, *_: Any, **__: Any) -> dict[str, Any]:
        extra = {
            "authentication.kubernetes.io/pod-name": ["digits-w3-0"],
            "authentication.kubernetes.io/pod-uid": [UID],
        }
        user = {"username": "system:serviceaccount:team:default", "extra": extra}
        return {"status": {"authenticated": True, "audiences": ["rex.dev"], "user": user}}

    async def wait_for(self, *_: Any) -> bool:
        return True


async def let_in(devices: int, worker_id: str, incarnation: str) -> Identity:
    labels = {**OWNER.labels(), "rex.dev/worker": "w3"}
    annotations = {"rex.dev/devices": str(devices)} if devices > 1 else {}
    meta = {"uid": UID, "labels": labels, "annotations": annotations, "ownerReferences": [OWNER.reference()]}
    world = OneToken()
    check = TokenAuthenticator(cast(Kube, world), lambda *_: {"metadata": meta}, cast(Runtimes, world))
    hello = Hello(
        job=str(OWNER),
        worker_id=worker_id,
        incarnation=incarnation,
        device="a100",
        address="127.0.0.1",
        store_port=1234,
    )
    return await check("token", hello)


@pytest.mark.parametrize(
    ("devices", "worker_id", "life"), [(1, "w3", ""), (2, "w3-0", "-d0"), (2, "w3-1", "-d1"), (4, "w3-3", "-d3-r2")]
)
async def test_its_own_workers_are_let_in(devices: int, worker_id: str, life: str) -> None:
    assert await let_in(devices, worker_id, UID + life) == Identity(str(OWNER), worker_id, UID + life)


@pytest.mark.parametrize(
    ("devices", "worker_id", "life"),
    [
        (1, "w3-0", "-d0"),
        (1, "w3", "-d0"),
        (1, "w3-0", ""),
        (2, "w3", ""),
        (2, "w3-2", "-d2"),
        (2, "w3-0", "-d1"),
        (2, "w3-1", ""),
        (2, "w4-0", "-d0"),
        (2, "w3-0", "-d00"),
        (2, "w3-0", "-d0-r0"),
        (2, "w3-0", "-d0-r1-d0"),
    ],
)
async def test_c_201_nobody_else_is(devices: int, worker_id: str, life: str) -> None:
    with pytest.raises(Refused):
        await let_in(devices, worker_id, UID + life)
