"""The device that a worker trains on: found, timed and, where asked for, emulated."""

from rex_worker.devices.hardware import find_device, memory_bytes, release_memory
from rex_worker.devices.pacing import Pacer
from rex_worker.devices.profiles import PROFILES, Profile, profile_of

__all__ = ["PROFILES", "Pacer", "Profile", "find_device", "memory_bytes", "profile_of", "release_memory"]
