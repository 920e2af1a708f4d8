"""Whether the cluster knows RexJobs, and in the form that this operator was built with.

Helm never updates what lies in a chart's crds/ folder, and an API server with an older schema drops new fields without
a word: a limit that was dropped reads as no limit. The installed definition carries a digest of its schema; a
difference is said out loud, in the log and as a metric.
"""

from __future__ import annotations

import asyncio
import logging

from rex_operator.api.crd import HASH_ANNOTATION, NAME, schema_hash
from rex_operator.controller.kube import CRDS, REXJOBS, Kube, KubeError
from rex_operator.controller.metrics import SCHEMA_DIFFERS

logger = logging.getLogger(__name__)

RETRY_S = 5.0


async def wait_for_schema(kube: Kube) -> None:
    """Return once the API server serves RexJobs; says what is missing until then."""
    while True:
        try:
            found = await kube.request("GET", f"/apis/{REXJOBS.api_version}")
            if any(resource["name"] == REXJOBS.plural for resource in found.get("resources", [])):
                return
        except KubeError as error:
            if error.status != 404:
                logger.warning("The API server cannot be asked yet: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
        logger.error("The CustomResourceDefinition %s is not installed; waiting for it", NAME)
        await asyncio.sleep(RETRY_S)


async def check_schema(kube: Kube) -> None:
    """Compare the installed definition with our own, if we may read it."""
    try:
        installed = await kube.get(CRDS, None, NAME)
    except KubeError as error:
        logger.info("The CustomResourceDefinition cannot be read, so its version is not checked: %s", error.reason)
        return
    held = ((installed or {}).get("metadata", {}).get("annotations") or {}).get(HASH_ANNOTATION, "none")
    if held != schema_hash():
        SCHEMA_DIFFERS.set(1)
        logger.error(
            "The installed CustomResourceDefinition %s (schema %s) is not the one of this operator (%s): new fields may"
            " be dropped silently; apply the definition that was shipped with it",
            NAME,
            held,
            schema_hash(),
        )
