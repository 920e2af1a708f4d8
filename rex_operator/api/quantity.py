"""Kubernetes resource amounts, checked before the API server is asked.

A wrong amount (``two``, ``-1``, ``0.5`` of a GPU, ``500XYZ``) is otherwise refused late, from deep inside a pod's
creation; here it is refused at the field where the user wrote it.
"""

from __future__ import annotations

import re
from decimal import Decimal

QUANTITY_PATTERN = (
    r"^([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)|[eE]([+-]?[0-9]{1,2}))?$"
)
"""Understood alike by Python and by the API server (RE2)."""

_FORM = re.compile(QUANTITY_PATTERN)
_SCALE = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(["k", "M", "G", "T", "P", "E"], 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
_CORE = {"cpu", "memory", "ephemeral-storage"}


def parse_quantity(text: str | int) -> Decimal:
    """Return the amount in base units (cores, bytes, devices). Raises ``ValueError`` on anything but a quantity."""
    match = _FORM.match(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a resource amount; write for example 1, 500m, 16Gi")
    number, unit, exponent = match.groups()
    amount = Decimal(number)
    if exponent is not None:
        return amount.scaleb(int(exponent))
    return amount * _SCALE[unit] if unit else amount


def check_resource(name: str, amount: str | int) -> None:
    """Raise ``ValueError`` unless ``amount`` is legal for the resource ``name`` (devices are whole numbers)."""
    value = parse_quantity(amount)
    if name not in _CORE and not name.startswith("hugepages-") and value != value.to_integral_value():
        raise ValueError(f"{name}: {amount!r} is not a whole number; devices cannot be split here")
