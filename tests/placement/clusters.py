"""Builders for small clusters."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from rex_operator.placement import Demand, Live, Node, PoolRequest, Taint, Toleration

GPU = "nvidia.com/gpu"


def gpu_node(
    name: str,
    device: str,
    gpus: int = 1,
    used: int = 0,
    *,
    ready: bool = True,
    cordoned: bool = False,
    taints: tuple[Taint, ...] = (),
    labels: Mapping[str, str] | None = None,
) -> Node:
    return Node(
        name=name,
        labels=labels if labels is not None else {"rex.dev/device": device},
        taints=taints,
        allocatable={GPU: Decimal(gpus), "pods": Decimal(110)},
        free={GPU: Decimal(gpus - used), "pods": Decimal(110)},
        ready=ready,
        cordoned=cordoned,
    )


def ask(device: str, gpus: int = 1, tolerations: tuple[Toleration, ...] = ()) -> Demand:
    return Demand({GPU: Decimal(gpus), "pods": Decimal(1)}, {"rex.dev/device": device}, tolerations)


def pool(name: str, device: str, most: int, least: int = 0, gpus: int = 1, devices: int = 1) -> PoolRequest:
    return PoolRequest(name, least, most, ask(device, gpus * devices), devices)


def workers(**counts: int) -> list[Live]:
    names = [name for name, count in counts.items() for _ in range(count)]
    return [Live(f"w{i}", name, rank=i) for i, name in enumerate(names)]
