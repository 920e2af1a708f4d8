"""What a job's coordinator knows, kept in the API server: one compressed ConfigMap per job.

A killed operator must go on from what was decided, and an operator has no disk. The state is JSON, compressed, in a
ConfigMap that the job owns; reading it back unpacks at most a bounded number of bytes and accepts nothing but the
declared fields. A state that cannot be read counts as none: plan versions and generations still cannot go back, because
the workers say theirs when they connect.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import zlib
from collections.abc import Callable

from pydantic import ValidationError

from rex_operator.controller.kube import CONFIG_MAPS, Kube, KubeError
from rex_operator.controller.names import MANAGER, Owner
from rex_operator.jobs import MAX_SAVED_BYTES, SavedState

logger = logging.getLogger(__name__)

FIELD = "state.json.zz"
_MIN_PAUSE_S = 1.0
_RETRY_S = 5.0


def pack(state: SavedState) -> str:
    """The state as text for ``binaryData``. Raises ``ValueError`` when it is larger than its bound."""
    text = state.model_dump_json().encode()
    if len(text) >= MAX_SAVED_BYTES:
        raise ValueError(f"state of {len(text)} bytes; at most {MAX_SAVED_BYTES} are kept")
    return base64.b64encode(zlib.compress(text, 6)).decode()


def unpack(text: str) -> SavedState:
    """Read what ``pack`` made. Raises ``ValueError`` on anything else, before it could unpack into more than fits."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), MAX_SAVED_BYTES)
    except zlib.error as error:
        raise ValueError(f"not a saved state: {error}") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise ValueError("not a saved state: too long or cut off")
    return SavedState.model_validate_json(data)


async def recall(kube: Kube, owner: Owner) -> SavedState | None:
    """The job's saved state; None for a job without one. Raises ``KubeError``."""
    item = await kube.get(CONFIG_MAPS, owner.namespace, owner.state)
    if item is None or not owner.owns(item):
        return None
    try:
        return unpack(item.get("binaryData", {}).get(FIELD, ""))
    except (ValueError, ValidationError):
        logger.warning("Saved state of RexJob %s cannot be read; starting from what its workers say", owner)
        return None


class Keeper:
    """Writes one job's state after decisions: soon, in order, and never more often than once per second."""

    def __init__(self, kube: Kube, owner: Owner, state: Callable[[], SavedState]) -> None:
        self._kube, self._owner, self._state = kube, owner, state
        self._wanted = asyncio.Event()
        self._last = ""

    def save(self) -> None:
        """Have the present state written."""
        self._wanted.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.write()
                await asyncio.sleep(_MIN_PAUSE_S)
            except KubeError as error:
                if error.status != 404:
                    logger.warning("Could not save the state of RexJob %s: %s", self._owner, error)
                self._wanted.set()
                await asyncio.sleep(_RETRY_S)

    async def write(self) -> None:
        """Write the present state unless it is what was written last. Raises ``KubeError``."""
        try:
            packed = pack(self._state())
        except ValueError as error:
            logger.error("State of RexJob %s was not saved: %s", self._owner, error)
            return
        if packed == self._last:
            return
        metadata = self._owner.metadata(self._owner.state)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": {FIELD: packed}}
        await self._kube.apply(CONFIG_MAPS, self._owner.namespace, body, manager=MANAGER)
        self._last = packed
