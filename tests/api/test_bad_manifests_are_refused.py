"""What cannot run is refused where it was written, by the operator's own reading."""

from __future__ import annotations

import pytest

from rex_operator.api import InvalidJob, RexJob
from tests.api.manifests import BAD, Bad, changed, manifest, priced


def test_the_good_manifest_is_accepted() -> None:
    job = RexJob.from_manifest(manifest())
    assert [pool.device for pool in job.spec.pools] == ["a100", "t4"]


@pytest.mark.parametrize("bad", BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_manifest_names_the_field(bad: Bad) -> None:
    _, make, where = bad
    with pytest.raises(InvalidJob) as refused:
        RexJob.from_manifest(make())
    assert where.split("[")[0] in str(refused.value)


def test_a_template_without_a_trainer_says_so() -> None:
    with pytest.raises(InvalidJob, match="no container is named 'trainer'"):
        RexJob.from_manifest(changed("spec.template.spec.containers", [{"name": "main", "image": "x"}]))


def test_several_faults_are_all_named() -> None:
    with pytest.raises(InvalidJob) as refused:
        RexJob.from_manifest(changed("spec.batch.min", 0, changed("spec.workers.min", 0)))
    assert len(refused.value.problems) == 2


def test_pods_with_several_devices_are_counted_in_workers() -> None:
    pool = {"name": "fast", "maxWorkers": 8, "devicesPerPod": 4, "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    job = RexJob.from_manifest(changed("spec.pools.0", pool, changed("spec.workers", {"min": 4, "max": 10})))
    assert job.spec.filled() == {"fast": 8, "slow": 2}


def test_c_118_no_more_workers_are_filled_than_get_their_least_share() -> None:
    batch = {"initial": 12, "min": 1, "max": 15, "minShare": 4}
    job = RexJob.from_manifest(changed("spec.batch", batch))
    assert job.spec.batch.most_workers == 3
    assert job.spec.filled() == {"fast": 2, "slow": 1}
    assert RexJob.from_manifest(manifest()).spec.batch.min_share == 1


def test_workers_that_no_whole_pods_make_are_refused() -> None:
    pools = [{"name": "fast", "maxWorkers": 8, "devicesPerPod": 4}]
    with pytest.raises(InvalidJob, match=r"whole pods of these pools make 4 workers within max \(7\) .*fewer than min"):
        RexJob.from_manifest(changed("spec.pools", pools, changed("spec.workers", {"min": 5, "max": 7})))


@pytest.mark.parametrize(
    "device", ["Tesla-T4", "NVIDIA-A100-SXM4-40GB", "nvidia-geforce-rtx-2080-ti", "h100", "V100.PCIe"]
)
def test_known_devices_need_no_power(device: str) -> None:
    assert RexJob.from_manifest(priced("energy", device=device)).spec.planner.objective == "energy"


def test_what_an_objective_lacks_is_told_with_the_pool() -> None:
    with pytest.raises(InvalidJob, match=r"needs pools\[\].pricePerHour; it is missing for slow \(0 for"):
        RexJob.from_manifest(priced("cost", 3.0))
    with pytest.raises(InvalidJob, match=r"the devices of slow \(device abacus\) draw; set pools\[\].power"):
        RexJob.from_manifest(priced("energy", device="abacus"))


def test_a_device_may_cost_nothing_and_a_pool_may_be_left_out() -> None:
    job = RexJob.from_manifest(changed("spec.pools.1.maxWorkers", 0, priced("cost", 3.0, 0)))
    assert [pool.price_per_hour for pool in job.spec.pools] == [3.0, 0.0]
    assert job.spec.filled() == {"fast": 2, "slow": 0}
