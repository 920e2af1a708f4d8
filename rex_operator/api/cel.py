"""CEL rules beside the models that they belong to.

A rule across fields must hold twice: in Python, for ``rex run`` and for objects that an older schema let in, and in the
API server, which refuses a bad manifest even while no operator runs. A pydantic validator states the first, ``rules``
attaches the second to the model's schema, where the CRD generator finds it. Both are tested with the same tables.
"""

from __future__ import annotations

from typing import Any

KEY = "x-kubernetes-validations"


def rules(*pairs: tuple[str, str], **extra: Any) -> dict[str, Any]:
    """Schema extras with one CEL rule per (expression, message) pair, and ``extra`` as it is."""
    return {KEY: [{"rule": rule, "message": message} for rule, message in pairs], **extra}
