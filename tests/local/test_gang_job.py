"""Which job the processes of a launcher are, from a file or from the script's batch alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rex_operator.api import RexJob
from rex_operator.api.job import API_VERSION, KIND
from rex_operator.local.errors import BadInput
from rex_operator.local.gangjob import POOL, Begin, ceilings, default_job, for_gang


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(1, 1024))
def test_any_script_makes_a_valid_job(batch: int, dataset: int, size: int) -> None:
    spec = default_job(Begin(batch_size=batch, dataset_size=dataset), size).spec
    assert size <= spec.batch.min <= spec.batch.initial <= spec.batch.max
    assert spec.workers.max == size


def test_the_first_batch_is_the_scripts_on_each_process() -> None:
    batch = default_job(Begin(batch_size=32, dataset_size=5000), 4).spec.batch
    assert (batch.min, batch.initial, batch.max) == (32, 128, 2048)
    assert default_job(Begin(batch_size=32, dataset_size=500), 4).spec.batch.max == 500, "no more than there is"


def job(low: int, high: int, **batch: int) -> RexJob:
    return RexJob.from_manifest(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "j"},
            "spec": {
                "workers": {"min": low, "max": high},
                "pools": [
                    {"name": "fast", "maxWorkers": 4, "maxLocalBatch": 96, "nodeSelector": {"rex.dev/device": "a100"}},
                    {"name": "slow", "maxWorkers": 4, "minWorkers": 1},
                ],
                "batch": {"initial": 8, "max": 64, **batch},
                "template": {"spec": {"containers": [{"name": "trainer"}]}},
            },
        }
    )


def test_a_job_file_keeps_its_bounds_and_its_memory_ceilings() -> None:
    made = for_gang(job(2, 4), 3)
    assert made.spec.batch == job(2, 4).spec.batch and made.spec.workers == job(2, 4).spec.workers
    assert {pool.min_workers for pool in made.spec.pools} == {0} and POOL in {pool.name for pool in made.spec.pools}
    assert ceilings(made) == {"a100": 96}


@pytest.mark.parametrize("size", [1, 5])
def test_a_number_of_processes_outside_the_jobs_bounds_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match=f"started {size} processes, but spec.workers allows 2 to 4"):
        for_gang(job(2, 4), size)


def test_c_118_more_processes_than_get_their_least_share_are_refused() -> None:
    assert for_gang(job(2, 4, minShare=21), 3).spec.batch.min_share == 21
    with pytest.raises(
        BadInput, match=r"started 4 processes, more than the 64 of spec.batch.max over a minShare of 21"
    ):
        for_gang(job(2, 4, minShare=21), 4)
