"""One writer: leading is a Lease, and a process that may have lost it ends.

The election is ``kubernetes.aio``'s. Two traps of it are handled here. Its requests may wait for minutes, far longer
than the Lease lasts, so each gets a limit that keeps "give up" before "others may take over". And a network error other
than the API server's own ends it at once, where a retry is right. When the Lease is lost nothing may be written any
more, so the process exits without ceremony; its successor goes on from what was saved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from rex_operator.controller.kube import LEASES, Kube, KubeError

logger = logging.getLogger(__name__)

LEASE_S = 15
RENEW_S = 9.0
RETRY_S = 2.0
REQUEST_S = 3.0
"""RENEW_S + RETRY_S + REQUEST_S stays below LEASE_S: a leader that is cut off is silent before another leads."""


class _ImpatientClient(client.ApiClient):
    """An API client that gives up on each request after ``REQUEST_S``."""

    async def call_api(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["_request_timeout"] = kwargs.get("_request_timeout") or REQUEST_S
        try:
            return await super().call_api(*args, **kwargs)
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise client.ApiException(status=0, reason=f"the API server cannot be reached: {error!r}") from None


class _Lock(LeaseLock):
    """A Lease that is created and updated without a traceback per refused attempt."""

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        lease = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        try:
            await self.api_instance.create_namespaced_lease(namespace, lease)
        except client.ApiException as error:
            logger.info("Lease was not created: %s", error.reason)
            return False
        return True

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        if self.lease_reference is None:
            return False
        self.lease_reference.spec = self.update_lease(updated_record, self.lease_reference.spec)
        try:
            await self.api_instance.replace_namespaced_lease(name=name, namespace=namespace, body=self.lease_reference)
        except client.ApiException as error:
            logger.info("Lease was not renewed: %s", error.reason)
            return False
        return True


async def lead(
    kube: Kube, namespace: str, name: str, identity: str, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Wait for the Lease, do ``work`` while it is held, and return when it is lost or ``work`` has ended.

    Raises what ``work`` raises. On return the caller must end the process.
    """
    leading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tasks: list[asyncio.Task[Any]] = []

    async def started() -> None:
        logger.info("Leading as %s", identity)
        tasks.append(asyncio.create_task(work()))
        await asyncio.wait(tasks)
        if not leading.done():
            leading.set_result(None)

    async def lost() -> None:
        logger.error("The Lease %s/%s was lost", namespace, name)

    api = _ImpatientClient(kube.api.configuration)
    try:
        lock = _Lock(name, namespace, identity, api)
        election = LeaderElection(Config(lock, LEASE_S, RENEW_S, RETRY_S, started, lost))
        candidate = asyncio.create_task(election.run())
        try:
            await asyncio.wait({candidate, leading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            candidate.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait([candidate, *tasks], timeout=20)
        for task in [*tasks, candidate]:
            if task.done() and not task.cancelled():
                task.result()
    finally:
        await api.close()  # type: ignore[no-untyped-call]


async def resign(kube: Kube, namespace: str, name: str, identity: str) -> None:
    """Give the Lease up, so that a standby need not wait for it to run out. Only after all writing has ended."""
    try:
        lease = await kube.get(LEASES, namespace, name)
        if lease is None or lease["spec"].get("holderIdentity") != identity:
            return
        version = lease["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}}
        await kube.merge(LEASES, namespace, name, patch)
    except KubeError as error:
        logger.info("The Lease was not given up: %s", error)
