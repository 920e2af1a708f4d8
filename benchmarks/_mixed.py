"""Real training on an emulated mix of two a100, a v100 and a t4, for the benchmarks that need one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def manifest(name: str, script: Path, env: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    """Return the RexJob of a script on the mix; ``spec`` is what the job has beside workers, pools and template."""
    trainer = {
        "name": "trainer",
        "image": "none",
        "command": ["python", str(script)],
        "env": [{"name": key, "value": value} for key, value in env.items()],
    }
    return {
        "apiVersion": "rex.dev/v1alpha1",
        "kind": "RexJob",
        "metadata": {"name": name},
        "spec": {
            "workers": {"min": 4, "max": 4},
            "pools": [
                {"name": "a100", "maxWorkers": 2},
                {"name": "v100", "maxWorkers": 1},
                {"name": "t4", "maxWorkers": 1},
            ],
            **spec,
            "template": {"spec": {"containers": [trainer]}},
        },
    }
