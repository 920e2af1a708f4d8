"""The cache follows the cluster over resumed, expired and broken watches, and over our own writes."""

from __future__ import annotations

import asyncio
from typing import Any

from rex_operator.controller.informer import Informer
from rex_operator.controller.kube import PODS, KubeError, Object
from tests.controller.recording import RecordingKube
from tests.controller.virtual import in_virtual_time


def item(name: str, version: int, uid: str = "", **meta: Any) -> Object:
    made = {"name": name, "namespace": "a", "uid": uid or f"u-{name}", "resourceVersion": str(version), **meta}
    return {"metadata": made}


def names(informer: Informer) -> dict[str, str]:
    return {held["metadata"]["name"]: held["metadata"]["resourceVersion"] for held in informer}


def name(held: Object | None) -> str | None:
    return None if held is None else str(held["metadata"]["name"])


async def follow(kube: RecordingKube, seconds: float = 1.0) -> tuple[Informer, list[tuple[str | None, str | None]]]:
    told: list[tuple[str | None, str | None]] = []

    def note(before: Object | None, after: Object | None) -> None:
        told.append((name(before), name(after)))

    informer = Informer(kube.as_kube(), PODS, None, on_change=note)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(seconds)
    task.cancel()
    return informer, told


@in_virtual_time
async def test_a_watch_that_ends_is_resumed_where_it_stopped() -> None:
    kube = RecordingKube([[item("x", 5)]], [[("ADDED", item("y", 7))], [("BOOKMARK", item("", 9))], []])
    informer, told = await follow(kube, 0.0001)
    assert names(informer) == {"x": "5", "y": "7"}
    assert kube.watched_from[:3] == ["5", "7", "9"]
    assert told == [(None, "x"), (None, "y")]


@in_virtual_time
async def test_an_expired_watch_lists_anew_and_tells_what_went_meanwhile() -> None:
    kube = RecordingKube([[item("x", 5), item("y", 6)], [item("y", 8)]], [KubeError(410, "Expired", "")])
    informer, told = await follow(kube, 0.9)
    assert names(informer) == {"y": "8"}
    assert ("x", None) in told and ("y", "y") in told


@in_virtual_time
async def test_a_broken_connection_is_tried_again_with_pauses() -> None:
    kube = RecordingKube([[item("x", 5)]], [KubeError(0, "Unreachable", "")] * 50)
    await follow(kube, 60)
    assert 3 <= kube.listed <= 200
    assert kube.listed < 60 / 0.25


@in_virtual_time
async def test_what_we_wrote_is_seen_at_once_and_never_rises_from_the_dead() -> None:
    kube = RecordingKube([[item("x", 5)]], [[("DELETED", item("x", 6))]])
    informer, _ = await follow(kube, 0.0001)
    informer.remember(item("x", 5))
    assert "x" not in names(informer), "its deletion was seen before our own answer"
    informer.remember(item("z", 9))
    informer.remember(item("z", 8))
    assert names(informer)["z"] == "9"


@in_virtual_time
async def test_c_185_reading_may_be_forbidden() -> None:
    class Forbidding(RecordingKube):
        async def list(self, *_: Any, **__: Any) -> tuple[list[Object], str]:
            raise KubeError(403, "Forbidden", "")

    informer, _ = await follow(Forbidding())
    assert informer.forbidden and informer.synced.is_set()
