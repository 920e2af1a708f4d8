"""Manifests for the tables of the API tests: a good one, and what makes it bad."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Manifest = dict[str, Any]


def manifest(name: str = "digits", namespace: str = "default") -> Manifest:
    """A RexJob that every check accepts."""
    return {
        "apiVersion": "rex.dev/v1alpha1",
        "kind": "RexJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "workers": {"min": 2, "max": 4},
            "pools": [
                {
                    "name": "fast",
                    "maxWorkers": 2,
                    "nodeSelector": {"rex.dev/device": "a100"},
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                },
                {
                    "name": "slow",
                    "maxWorkers": 4,
                    "nodeSelector": {"rex.dev/device": "t4"},
                    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "16Gi"}},
                },
            ],
            "template": {
                "metadata": {"labels": {"team": "vision"}},
                "spec": {
                    "containers": [{"name": "trainer", "image": "example/train:1", "command": ["python", "t.py"]}]
                },
            },
            "batch": {"initial": 256, "min": 64, "max": 8192},
            "checkpoint": {"claimName": "ckpt", "path": "digits"},
        },
    }


def changed(path: str, value: Any, base: Manifest | None = None) -> Manifest:
    """The good manifest with one field set (``None`` as value and a path ending in ``-`` removes it)."""
    result = copy.deepcopy(base or manifest())
    *parents, last = path.removesuffix("-").split(".")
    node: Any = result
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    if path.endswith("-"):
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return result


def priced(objective: str, *prices: float | None, device: str = "t4") -> Manifest:
    """The good manifest with an objective, prices of its two pools (None: none) and a device of the second one."""
    result = changed("spec.planner", {"objective": objective})
    for pool, price in zip(result["spec"]["pools"], prices, strict=False):
        if price is not None:
            pool["pricePerHour"] = price
    return changed("spec.pools.1.nodeSelector", {"rex.dev/device": device}, result)


Bad = tuple[str, Callable[[], Manifest], str]

GPU = "spec.pools.0.resources.limits"


def _set(path: str, value: Any) -> Callable[[], Manifest]:
    return lambda: changed(path, value)


BAD: list[Bad] = [
    ("c_001_pools_missing", lambda: changed("spec.pools-", None), "pools"),
    ("c_001_pools_empty", _set("spec.pools", []), "pools"),
    ("c_002_workers_min_zero", _set("spec.workers.min", 0), "workers.min"),
    ("c_002_workers_max_negative", _set("spec.workers.max", -1), "workers.max"),
    ("c_002_batch_min_zero", _set("spec.batch.min", 0), "batch.min"),
    ("c_002_alpha_zero", _set("spec.planner", {"validation": {"alpha": 0}}), "alpha"),
    ("c_002_alpha_above_one", _set("spec.planner", {"validation": {"alpha": 1.5}}), "alpha"),
    ("c_007_batch_below_workers", _set("spec.batch", {"initial": 1, "min": 1, "max": 1}), "batch.max"),
    ("c_118_min_share_zero", _set("spec.batch.minShare", 0), "batch.minShare"),
    ("c_118_min_share_is_text", _set("spec.batch.minShare", "four"), "batch.minShare"),
    ("c_118_min_share_overflows", _set("spec.batch.minShare", 2**40), "batch.minShare"),
    (
        "c_118_batch_below_the_workers_shares",
        _set("spec.batch", {"initial": 7, "min": 1, "max": 7, "minShare": 4}),
        "batch.max",
    ),
    (
        "c_118_share_beyond_a_pools_memory",
        lambda: changed("spec.pools.1.maxLocalBatch", 3, changed("spec.batch.minShare", 4)),
        "maxLocalBatch",
    ),
    ("c_012_amount_is_a_word", _set(GPU, {"nvidia.com/gpu": "two"}), "pools[0].resources.limits"),
    ("c_012_amount_is_negative_text", _set(GPU, {"nvidia.com/gpu": "-1"}), "pools[0].resources.limits"),
    ("c_012_amount_is_negative", _set(GPU, {"nvidia.com/gpu": -1}), "pools[0].resources.limits"),
    ("c_012_amount_is_a_fraction", _set(GPU, {"nvidia.com/gpu": 0.5}), "pools[0].resources.limits"),
    ("c_012_device_is_split", _set(GPU, {"nvidia.com/gpu": "500m"}), "pools[0].resources.limits"),
    ("c_012_memory_with_a_wrong_unit", _set(GPU, {"memory": "500XYZ"}), "pools[0].resources.limits"),
    ("c_012_pools_is_a_map", _set("spec.pools", {}), "pools"),
    ("c_012_pools_is_null", _set("spec.pools", None), "pools"),
    ("c_211_path_climbs", _set("spec.checkpoint.path", "a/../../b"), "path"),
    ("c_211_path_is_absolute", _set("spec.checkpoint.path", "/etc"), "path"),
    ("c_211_path_is_expanded", _set("spec.checkpoint.path", "$(X)"), "path"),
    ("c_211_path_is_long", _set("spec.checkpoint.path", "x" * 4096), "path"),
    ("c_215_batch_overflows", _set("spec.batch.max", 9223372036854775807), "batch.max"),
    ("c_215_a_million_workers", _set("spec.workers.max", 1_000_000), "workers.max"),
    ("c_215_many_pools", _set("spec.pools", [{"name": f"p{i}"} for i in range(10_000)]), "pools"),
    ("unknown_field", _set("spec.worker", {"min": 1}), "worker"),
    ("unknown_nested_field", _set("spec.batch.maximum", 3), "maximum"),
    ("wrong_type", _set("spec.workers.min", "two"), "workers.min"),
    ("workers_min_above_max", _set("spec.workers", {"min": 5, "max": 4}), "min"),
    ("batch_initial_outside", _set("spec.batch.initial", 9000), "initial"),
    ("legw_without_a_warm_up", _set("spec.learningRate", {"scaling": "legw"}), "warmupSamples"),
    ("warm_up_below_zero", _set("spec.learningRate", {"warmupSamples": -1}), "warmupSamples"),
    ("batch_min_above_max", _set("spec.batch.min", 8193), "min"),
    ("pool_min_above_max", _set("spec.pools.0.minWorkers", 3), "minWorkers"),
    ("no_devices_in_a_pod", _set("spec.pools.0.devicesPerPod", 0), "devicesPerPod"),
    ("too_many_devices_in_a_pod", _set("spec.pools.0.devicesPerPod", 17), "devicesPerPod"),
    ("half_a_pod", _set("spec.pools.0", {"name": "fast", "maxWorkers": 6, "devicesPerPod": 4}), "multiple"),
    (
        "half_a_pod_at_least",
        _set("spec.pools.0", {"name": "fast", "minWorkers": 1, "maxWorkers": 4, "devicesPerPod": 2}),
        "multiple",
    ),
    ("more_devices_than_workers", _set(GPU, {"nvidia.com/gpu": 2}), "devicesPerPod"),
    ("fewer_devices_than_workers", _set("spec.pools.0.devicesPerPod", 2), "devicesPerPod"),
    (
        "devices_of_another_maker",
        _set("spec.pools.0", {"name": "fast", "maxWorkers": 2, "resources": {"limits": {"amd.com/gpu": "8"}}}),
        "devicesPerPod",
    ),
    ("pools_too_small", _set("spec.workers", {"min": 7, "max": 9}), "pools"),
    ("pool_floors_above_max", _set("spec.pools.1", {"name": "slow", "minWorkers": 5, "maxWorkers": 5}), "minWorkers"),
    ("two_pools_of_one_name", _set("spec.pools.1.name", "fast"), "pools"),
    ("steps_out_of_order", _set("spec.planner", {"validation": {"minSteps": 500}}), "minSteps"),
    ("template_missing", lambda: changed("spec.template-", None), "template"),
    ("objective_unknown", _set("spec.planner", {"objective": "profit"}), "objective"),
    ("cost_without_prices", lambda: priced("cost"), "pricePerHour"),
    ("cost_with_a_price_missing", lambda: priced("cost", 3.0), "pricePerHour"),
    ("cost_of_nothing", lambda: priced("cost", 0, 0), "pricePerHour"),
    ("price_below_zero", _set("spec.pools.0.pricePerHour", -0.5), "pricePerHour"),
    ("price_is_absurd", _set("spec.pools.0.pricePerHour", 1e9), "pricePerHour"),
    ("energy_of_an_unknown_device", lambda: priced("energy", device="abacus-1"), "idleWatts"),
    ("energy_of_a_device_that_only_sounds_known", lambda: priced("energy", device="t4000"), "idleWatts"),
    ("idle_above_the_limit", _set("spec.pools.0.power", {"idleWatts": 80, "maxWatts": 70}), "idleWatts"),
    ("no_power_at_all", _set("spec.pools.0.power", {"idleWatts": 0, "maxWatts": 0}), "maxWatts"),
    ("half_a_power", _set("spec.pools.0.power", {"maxWatts": 70}), "idleWatts"),
    (
        "too_many_measured_watts",
        _set("spec.pools.0.power", {"idleWatts": 9, "maxWatts": 70, "measured": [{"localBatch": 8, "watts": 40}] * 9}),
        "measured",
    ),
    ("policy_unknown", _set("spec.planner", {"policy": "magic"}), "policy"),
    ("name_too_long", lambda: changed("metadata.name", "x" * 64), "name"),
    ("name_with_a_dot", lambda: changed("metadata.name", "a.b"), "name"),
]
"""Refused by pydantic and by the API server alike; the last item stands in both error texts."""
