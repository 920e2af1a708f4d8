"""How the workers of one pod are named, and their lives.

A pod with one device is one worker: the worker has the pod's name, and its life is the pod's UID. A pod with several
devices is one worker per device: ``w3-0``, ``w3-1``, and so on. They share the pod's UID, and one of them may be
started again while the pod lives on; so the name of a life says pod, device and how often the device's process was
started. Both sides must agree on these names: the operator lets a worker in only under those that its pod's token
covers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_DEVICES = 16
"""Most devices of a pod."""

_LIFE = re.compile(r"(?P<uid>.+)-d(?P<device>[0-9]{1,2})(?:-r(?P<life>[0-9]{1,2}))?")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class LifeName:
    """What the name of a life says."""

    uid: str
    """Of the pod."""
    device: int | None = None
    """Index within the pod; None for the worker of a pod with one device."""
    life: int = 0
    """How often the device's process was started again in this pod."""

    def __str__(self) -> str:
        if self.device is None:
            return self.uid
        return f"{self.uid}-d{self.device}" + (f"-r{self.life}" if self.life else "")


def read_life(incarnation: str) -> LifeName:
    """Take the name of a life apart. One that names no device is that of a pod with one device."""
    found = _LIFE.fullmatch(incarnation)
    if found is None:
        return LifeName(incarnation)
    return LifeName(found["uid"], int(found["device"]), int(found["life"] or 0))


def worker_names(pod: str, devices: int) -> list[str]:
    """The workers of a pod, by device; ``pod`` is its stem, such as ``w3``."""
    return [pod] if devices == 1 else [f"{pod}-{device}" for device in range(devices)]


def life_name(uid: str, device: int, devices: int, life: int = 0) -> str:
    """The name of a life of the worker on ``device`` of a pod that has ``devices``."""
    return str(LifeName(uid, device if devices > 1 else None, life))


def in_order(worker_id: str) -> tuple[list[int], str]:
    """Sort key that puts w2 before w10, and the workers of a pod side by side."""
    return [int(number) for number in _NUMBER.findall(worker_id)], worker_id
