"""What a pod asks of a node, and what a node has left."""

from __future__ import annotations

from decimal import Decimal

from rex_operator.controller.demand import pod_demand, read_node, usage_by_node


def test_containers_add_up_init_containers_peak_and_sidecars_stay() -> None:
    demand = pod_demand(
        {
            "containers": [
                {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}}},
                {"resources": {"requests": {"cpu": "500m"}}},
            ],
            "initContainers": [
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
                {"resources": {"requests": {"cpu": "3"}}},
            ],
            "overhead": {"cpu": "100m"},
        }
    )
    assert demand.requests == {"cpu": Decimal("3.35"), "nvidia.com/gpu": Decimal(1), "pods": Decimal(1)}


def test_c_062_free_is_allocatable_minus_everyones_bound_pods_terminating_ones_included() -> None:
    gpu = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}], "nodeName": "n"}
    pods = [
        {"spec": gpu, "status": {"phase": "Running"}},
        {"metadata": {"deletionTimestamp": "now"}, "spec": gpu, "status": {"phase": "Running"}},
        {"spec": gpu, "status": {"phase": "Succeeded"}},
        {"spec": {**gpu, "nodeName": None}, "status": {"phase": "Pending"}},
    ]
    node = {
        "metadata": {"name": "n"},
        "status": {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert read_node(node, usage_by_node(pods)["n"]).free["nvidia.com/gpu"] == 2


def test_a_node_out_of_service_is_not_ready() -> None:
    node = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert not read_node(node, {}).ready and read_node(node, {}).draining
