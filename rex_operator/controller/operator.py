"""Puts the parts together: one operator process from its first look at the cluster to its end.

Every process serves its probes at once and stands by for the Lease. The one that leads opens the channel, watches, and
reconciles; when any of these ends, everything ends and the process exits, to be started anew from what was saved.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl

from rex_operator.channel import ChannelServer
from rex_operator.controller.act import Actor
from rex_operator.controller.authentication import TokenAuthenticator
from rex_operator.controller.capacity import Capacity
from rex_operator.controller.election import lead, resign
from rex_operator.controller.endpoint import publish
from rex_operator.controller.events import Recorder
from rex_operator.controller.health import Health
from rex_operator.controller.informer import Informer
from rex_operator.controller.jobwatch import JobWatch
from rex_operator.controller.kube import NODES, PODS, Kube, KubeError, Object
from rex_operator.controller.metrics import LEADING, REGISTRY, JobFigures
from rex_operator.controller.names import JOB_LABEL, MANAGER
from rex_operator.controller.observe import Observer
from rex_operator.controller.pki import Certificates, ensure_certificates
from rex_operator.controller.queue import Key, WorkQueue
from rex_operator.controller.reconciler import Reconciler
from rex_operator.controller.runtime import Runtimes
from rex_operator.controller.schema import check_schema, wait_for_schema
from rex_operator.controller.search import SearchPool
from rex_operator.controller.settings import Settings
from rex_operator.controller.storyteller import Storyteller

logger = logging.getLogger(__name__)

CERTIFICATES_EVERY_S = 6 * 3600.0
WORKER_PODS = f"{JOB_LABEL},app.kubernetes.io/managed-by={MANAGER}"


async def operate(settings: Settings) -> int:
    """Run until stopped by a signal (returns 0) or until leading ends for another reason (returns 1)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    kube = await Kube.connect(settings.kubeconfig)
    health = Health()
    logger.info("Probes and metrics on port %d", health.serve(settings.health_port))
    beat = asyncio.create_task(health.beat_forever())
    work = asyncio.create_task(_stand_by(kube, settings, health))
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            logger.info("Stopping; workers train on")
            work.cancel()
            await asyncio.wait({work}, timeout=20)
            if settings.leader_elect:
                await resign(kube, settings.namespace, settings.lease, settings.identity)
            return 0
        if work.exception() is not None:
            logger.error("The operator ends: %s", work.exception(), exc_info=work.exception())
        return 1
    finally:
        beat.cancel()
        waiting.cancel()
        health.close()
        await kube.close()


async def _stand_by(kube: Kube, settings: Settings, health: Health) -> None:
    await wait_for_schema(kube)
    await check_schema(kube)
    health.ready = True
    if settings.leader_elect:
        await lead(kube, settings.namespace, settings.lease, settings.identity, lambda: _lead(kube, settings))
    else:
        await _lead(kube, settings)


async def _lead(kube: Kube, settings: Settings) -> None:
    """Everything that only the leader does."""
    queue = WorkQueue()
    runtimes = Runtimes(queue.add)
    searches = SearchPool(settings.search_processes)
    recorder = Recorder(kube, settings.identity)
    nodes = Informer(kube, NODES, None, on_change=lambda *_: reconciler.wake_waiting())
    pods = [
        Informer(kube, PODS, namespace, WORKER_PODS, on_change=lambda before, after: _pod_changed(before, after))
        for namespace in (settings.watched or (None,))
    ]
    certificates = await ensure_certificates(
        kube, settings.namespace, settings.certificate_secret, settings.certificate_hosts
    )
    observer = Observer(kube, pods, Capacity(kube, nodes), settings.url)
    actor = Actor(kube, observer, recorder, certificates.ca, network_policy=settings.network_policy)
    reconciler = Reconciler(kube, queue, observer, actor, runtimes, searches, Storyteller(recorder))

    def _pod_changed(before: Object | None, after: Object | None) -> None:
        meta = (after or before or {})["metadata"]
        queue.add(Key(meta["namespace"], meta["labels"][JOB_LABEL]))
        if after is None or after.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            reconciler.wake_waiting()

    context = certificates.ssl_context()
    server = ChannelServer(TokenAuthenticator(kube, observer.find_pod, runtimes), runtimes)
    runtimes.server = server
    figures = JobFigures(lambda: [runtime.view() for runtime in runtimes], lambda: dict(server.counters))
    REGISTRY.register(figures)
    LEADING.set(1)
    try:
        async with asyncio.TaskGroup() as tasks:
            for informer in (*pods, nodes):
                tasks.create_task(informer.run())
            for informer in (*pods, nodes):
                await informer.synced.wait()
            port = await server.start(settings.channel_host, settings.channel_port, context)
            logger.info("Worker channel on port %d, known to workers as %s", port, settings.url)
            await publish(kube, settings, port)
            tasks.create_task(runtimes.tick_forever())
            for _ in range(settings.workers):
                tasks.create_task(reconciler.work())
            tasks.create_task(JobWatch(kube, settings.watched, queue.add).run())
            tasks.create_task(_renew_certificates(kube, settings, certificates, context))
    finally:
        LEADING.set(0)
        REGISTRY.unregister(figures)
        for runtime in runtimes:
            runtime.close()
        await server.stop()
        searches.close()


async def _renew_certificates(kube: Kube, settings: Settings, held: Certificates, context: ssl.SSLContext) -> None:
    """Serve with a new certificate in good time. A new CA is another matter: it needs a new start."""
    while True:
        await asyncio.sleep(CERTIFICATES_EVERY_S)
        try:
            now = await ensure_certificates(
                kube, settings.namespace, settings.certificate_secret, settings.certificate_hosts
            )
        except KubeError as error:
            logger.warning("The channel's certificate could not be looked after: %s", error)
            continue
        if now.ca != held.ca:
            raise RuntimeError("the channel's CA was replaced; starting anew to hand it to the jobs")
        if now != held:
            now.load_into(context)
            held = now
            logger.info("The channel is served with a new certificate")
