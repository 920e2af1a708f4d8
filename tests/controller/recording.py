"""A stand-in for the seam to the API server where time must be virtual: it answers from a script and records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from rex_operator.controller.kube import Kube, KubeError, Object, Resource

Step = list[tuple[str, Object]] | KubeError


class RecordingKube:
    """Answers lists and watches from a script; remembers what was written."""

    def __init__(self, lists: list[list[Object]] | None = None, watches: list[Step] | None = None) -> None:
        self.lists, self.watches = lists or [], watches or []
        self.applied: list[Object] = []
        self.created: list[Object] = []
        self.listed = 0
        self.watched_from: list[str] = []

    def as_kube(self) -> Kube:
        """Typed as the real one."""
        return cast(Kube, self)

    async def apply(self, resource: Resource, namespace: str | None, body: Object, **_: Any) -> Object:
        self.applied.append(body)
        return body

    async def create(self, resource: Resource, namespace: str | None, body: Object, **_: Any) -> Object:
        self.created.append(body)
        return body

    async def list(self, resource: Resource, namespace: str | None = None, **_: Any) -> tuple[list[Object], str]:
        items = self.lists[min(self.listed, len(self.lists) - 1)]
        self.listed += 1
        return items, str(max([0, *(int(item["metadata"]["resourceVersion"]) for item in items)]))

    async def watch(
        self, resource: Resource, namespace: str | None, *, labels: str, since: str
    ) -> AsyncIterator[tuple[str, Object]]:
        self.watched_from.append(since)
        step = self.watches.pop(0) if self.watches else KubeError(410, "Expired", "too old")
        if isinstance(step, KubeError):
            raise step
        for event in step:
            yield event
