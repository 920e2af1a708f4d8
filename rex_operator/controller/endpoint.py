"""Where workers find the leader: the leader writes the EndpointSlice of a Service that selects nothing.

Standbys are ready, so a selecting Service would send workers to them. The slice names exactly one address, that of the
process that leads; after a change of leaders workers reconnect and reach the new one.
"""

from __future__ import annotations

import ipaddress
import logging

from rex_operator.controller.kube import ENDPOINT_SLICES, Kube, Object
from rex_operator.controller.names import MANAGER
from rex_operator.controller.settings import Settings

logger = logging.getLogger(__name__)


async def publish(kube: Kube, settings: Settings, port: int) -> None:
    """Point the channel's Service at this process. Raises ``KubeError``."""
    if not settings.pod_ip:
        logger.info("No pod IP is known: workers are expected to reach %s by themselves", settings.url)
        return
    kind = "IPv6" if ipaddress.ip_address(settings.pod_ip).version == 6 else "IPv4"
    body: Object = {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": {
            "name": settings.channel_service,
            "namespace": settings.namespace,
            "labels": {
                "kubernetes.io/service-name": settings.channel_service,
                "endpointslice.kubernetes.io/managed-by": MANAGER,
            },
        },
        "addressType": kind,
        "ports": [{"name": "channel", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [settings.pod_ip], "conditions": {"ready": True}}],
    }
    await kube.apply(ENDPOINT_SLICES, settings.namespace, body, manager=MANAGER)
