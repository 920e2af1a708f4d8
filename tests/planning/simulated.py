"""Jobs of the simulator for the planner's tests: some unlike devices, and a spec."""

from __future__ import annotations

from typing import Any

from rex_operator.api.spec import RexJobSpec
from rex_operator.simulation.devices import Bent as Device
from rex_operator.simulation.job import POLL_S, Job

__all__ = ["A100", "DEMO", "MIX", "POLL_S", "T4", "V100", "Device", "Job", "spec"]

A100 = Device("a100", 0.006, 0.00020)
V100 = Device("v100", 0.010, 0.00045)
T4 = Device("t4", 0.018, 0.00110)
MIX = (A100, A100, V100, T4)
DEMO = (
    Device("a100", 0.0055, 0.00030, 24),
    Device("a100", 0.0055, 0.00030, 24),
    Device("v100", 0.0065, 0.00058, 12),
    Device("t4", 0.0090, 0.00145, 4),
)
"""Bent curves, as emulated devices have them."""


def spec(
    initial: int = 64,
    low: int = 32,
    high: int = 1024,
    *,
    policy: str = "rex",
    objective: str = "goodput",
    scaling: str = "adascale",
    validation: dict[str, Any] | None = None,
    trials: int = 40,
    cooldown: float = 2.0,
    min_share: int = 1,
) -> RexJobSpec:
    return RexJobSpec.model_validate(
        {
            "workers": {"min": 1, "max": 1024},
            "pools": [{"name": "any", "maxWorkers": 1024}],
            "template": {},
            "batch": {"initial": initial, "min": low, "max": high, "minShare": min_share},
            "learningRate": {"scaling": scaling},
            "planner": {
                "policy": policy,
                "objective": objective,
                "validation": validation or {"minSteps": 20, "warmupSteps": 5},
                "search": {"maxTrials": trials, "cooldownSeconds": cooldown},
            },
        }
    )
