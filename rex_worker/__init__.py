"""What runs in the training process.

The operator shares one module with the worker, ``rex_worker.protocol``, and is installed without torch; so this
package must import nothing of torch until a training script asks for it. Names are therefore resolved on first use
(PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rex_worker.session import Session, init

__all__ = ["Session", "init"]

_HOME = {"Session": "rex_worker.session", "init": "rex_worker.session"}


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use, so that ``import rex_worker.protocol`` stays free of torch."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
