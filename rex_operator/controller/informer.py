"""What the cluster holds of one kind, kept up to date by list and watch.

kopf watches without selectors, so it would carry every pod of the cluster; here the API server selects. A watch that
ends is resumed where it stopped, one that is too old (410) is listed anew, one that breaks is retried with back-off.
What the operator itself has just written is taken in at once, so that the next decision does not act on a picture from
before its own last act.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from rex_operator.controller.kube import Kube, KubeError, Object, Resource

logger = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[Object | None, Object | None], None]
"""Called with (before, after); ``after`` is None when the object is gone."""

_MIN_DELAY_S = 0.5
_MAX_DELAY_S = 30.0


class Informer:
    """A cache of the objects of one kind that match a label selector, in one namespace or (None) in all."""

    def __init__(
        self, kube: Kube, resource: Resource, namespace: str | None, labels: str = "", on_change: OnChange | None = None
    ) -> None:
        self._kube, self._resource, self._namespace, self._labels = kube, resource, namespace, labels
        self._on_change = on_change
        self._objects: dict[tuple[str, str], Object] = {}
        self._buried: deque[str] = deque(maxlen=4096)
        self.synced = asyncio.Event()
        self.forbidden = False
        """The API server does not let us read this kind; the cache stays empty."""

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def covers(self, namespace: str) -> bool:
        """Whether objects of that namespace are in view."""
        return self._namespace in (None, namespace)

    def get(self, namespace: str, name: str) -> Object | None:
        """The object as last seen."""
        return self._objects.get((namespace, name))

    def remember(self, item: Object) -> None:
        """Take in what the API server answered to our own write."""
        if item["metadata"]["uid"] not in self._buried:
            self._put(item)

    async def run(self) -> None:
        """Keep the cache for ever; returns only when cancelled or when reading is forbidden."""
        delay = 0.0
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._follow(version)
                    delay = 0.0
            except KubeError as error:
                if error.status in (401, 403) and not self.synced.is_set():
                    logger.warning("Not allowed to read %s: going on without them", self._resource.plural)
                    self.forbidden = True
                    self.synced.set()
                    return
                if error.status != 410:
                    logger.info("Watch of %s interrupted, listing anew: %s", self._resource.plural, error)
                delay = min(_MAX_DELAY_S, max(_MIN_DELAY_S, delay * 2))
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _list(self) -> str:
        items, version = await self._kube.list(self._resource, self._namespace, labels=self._labels)
        found = {_key(item) for item in items}
        for item in items:
            self._put(item)
        for key in [key for key in self._objects if key not in found]:
            self._bury(self._objects[key])
        self.synced.set()
        return version

    async def _follow(self, version: str) -> str:
        stream = self._kube.watch(self._resource, self._namespace, labels=self._labels, since=version)
        async for kind, item in stream:
            version = item["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._bury(item)
            elif kind != "BOOKMARK":
                self._put(item)
        return version

    def _put(self, item: Object) -> None:
        item["metadata"].pop("managedFields", None)
        before = self._objects.get(_key(item))
        if before is not None and _version(before) >= _version(item):
            return
        self._objects[_key(item)] = item
        if self._on_change is not None:
            self._on_change(before, item)

    def _bury(self, item: Object) -> None:
        self._buried.append(item["metadata"]["uid"])
        before = self._objects.get(_key(item))
        if before is None or before["metadata"]["uid"] != item["metadata"]["uid"]:
            return
        del self._objects[_key(item)]
        if self._on_change is not None:
            self._on_change(before, None)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    # Opaque by the letter, integers in every API server, and comparable by contract since Kubernetes 1.35.
    return int(item["metadata"]["resourceVersion"])
