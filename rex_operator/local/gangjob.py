"""Which job a gang of given processes is: from a RexJob file, or from nothing but the script's own batch size."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rex_operator.api import Pool, RexJob
from rex_operator.api.job import API_VERSION, KIND
from rex_operator.api.spec import MAX_BATCH
from rex_operator.local.errors import BadInput
from rex_worker.protocol import MAX_SAMPLES

POOL = "local"
_NARROWER, _WIDER = 4, 16
"""Without a job file, batches from a quarter to 16 times the script's own are considered."""

Samples = Annotated[int, Field(ge=1, le=MAX_SAMPLES)]


class Begin(BaseModel):
    """What the script says once its model and data are built."""

    model_config = ConfigDict(extra="forbid")

    batch_size: Samples
    """Samples per process and step that the script asked for."""
    dataset_size: Annotated[int, Field(ge=0, le=MAX_SAMPLES)]
    """0: a stream of unknown length."""


def default_job(begin: Begin, size: int) -> RexJob:
    """The job of ``size`` processes without a file: objective goodput, batches around ``batch_size`` x ``size``."""
    initial = min(MAX_BATCH, begin.batch_size * size)
    largest = max(initial, min(MAX_BATCH, initial * _WIDER, begin.dataset_size or MAX_BATCH))
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "standalone"},
        "spec": {
            "workers": {"min": 1, "max": size},
            "pools": [{"name": POOL, "maxWorkers": size}],
            "batch": {"initial": initial, "min": max(size, initial // _NARROWER), "max": largest},
            "template": {"spec": {"containers": [{"name": "trainer"}]}},
        },
    }
    return RexJob.from_manifest(manifest)


def for_gang(job: RexJob, size: int) -> RexJob:
    """``job`` as ``size`` processes that are there already can run it; the pools stay, for ``ceilings``.

    Raises ``BadInput`` when the job's bounds and the number of processes do not go together.
    """
    workers = job.spec.workers
    if not workers.min <= size <= workers.max:
        raise BadInput(
            f"the launcher started {size} processes, but spec.workers allows {workers.min} to {workers.max};"
            " change one of them"
        )
    batch = job.spec.batch
    if size > batch.most_workers:
        share = "" if batch.min_share == 1 else f" over a minShare of {batch.min_share}"
        raise BadInput(f"the launcher started {size} processes, more than the {batch.max} of spec.batch.max{share}")
    pools = [pool.model_copy(update={"min_workers": 0}) for pool in job.spec.pools]
    if all(pool.name != POOL for pool in pools):
        pools.append(Pool(name=POOL, max_workers=size))
    return job.model_copy(update={"spec": job.spec.model_copy(update={"pools": pools})})


def ceilings(job: RexJob) -> dict[str, int]:
    """Largest micro-batch by kind of device, where the job's pools say one."""
    return {pool.device: pool.max_local_batch for pool in job.spec.pools if pool.max_local_batch is not None}
