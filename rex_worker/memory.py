"""Running out of device memory: by which names it goes, and how much is used.

Only one of torch's errors says plainly that the device's memory is full. Libraries below it answer the same fullness
with errors of their own, some of which they also give for other reasons; the host's memory runs out in the same words;
and a layer that cannot work on a single sample fails just where the smallest batch would. Whoever takes one for the
other either ends a training that could go on in smaller passes, or learns a memory ceiling that is none.
"""

from __future__ import annotations

from typing import Protocol

import torch

_NAMES = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "HIP error: out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
    "cudaErrorMemoryAllocation",
    "Failed to CUDA calloc",
    "Cuda failure 'out of memory'",
    "Cuda failure 2 'out of memory'",
)
"""What torch, its libraries and NCCL say when the device's memory is full, and never otherwise."""
_AMBIGUOUS = (
    "CUDNN_STATUS_NOT_SUPPORTED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Unable to find a valid cuDNN algorithm",
    "GET was unable to find an engine to execute this computation",
)
"""What they also say when there is no room for their workspace."""
_HOST_NAMES = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
_SCARCE = 0.7
"""Of the device's memory; once so much was in use, an ambiguous error is taken for a lack of memory."""


def is_out_of_memory(error: BaseException, device: torch.device | None = None, *, scarce: bool = True) -> bool:
    """Whether ``error`` says that the memory of ``device`` (any, if None) is full, so that less would fit.

    The host's memory is the device's only where the device is the CPU: on a GPU its end is another fault. Unless memory
    is ``scarce`` (much of it was in use), errors of several meanings do not count.
    """
    on_host = device is None or device.type == "cpu"
    if isinstance(error, torch.OutOfMemoryError) or (on_host and isinstance(error, MemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    names = _NAMES + (_AMBIGUOUS if scarce else ()) + (_HOST_NAMES if on_host else ())
    return any(name in text for name in names)


class Meter(Protocol):
    """What can be read of a device's memory, in bytes."""

    total: int
    """Of the device; 0 when it has none of its own."""

    def restart(self) -> None:
        """Let the peak begin anew."""

    def used(self) -> int:
        """What is in use now."""

    def peak(self) -> int:
        """The most that was in use since ``restart``."""

    def room(self) -> int:
        """What this process could have in use at most, others on the device considered."""


class NoMeter:
    """For a device without memory of its own: the host's is shared, and not this process's to measure."""

    total = 0

    def restart(self) -> None:
        """Nothing to do."""

    def used(self) -> int:
        """Not known."""
        return 0

    def peak(self) -> int:
        """Not known."""
        return 0

    def room(self) -> int:
        """Not known."""
        return 0


class CudaMeter:
    """Reads the allocator's own counters, which takes no look at the device itself; only ``room`` asks the driver."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.total = int(torch.cuda.get_device_properties(device).total_memory)

    def restart(self) -> None:
        """Let the peak begin anew; it is the process's only one, so a script that reads it sees this step's."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def used(self) -> int:
        """Bytes in tensors."""
        return int(self._counters()["current"])

    def peak(self) -> int:
        """Most bytes in tensors since ``restart``."""
        return int(self._counters()["peak"])

    def room(self) -> int:
        """What is free, and what this process's allocator holds; no more than the script allows the process."""
        free, total = torch.cuda.mem_get_info(self._device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # torch 2.6 cannot tell
        allowed = total * (1.0 if fraction is None else fraction(self._device))
        return min(int(allowed), int(free) + int(torch.cuda.memory_reserved(self._device)))

    def _counters(self) -> dict[str, int]:
        counters: dict[str, int] = torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"]
        return counters


def meter_of(device: torch.device) -> Meter:
    """The meter that fits a device."""
    return CudaMeter(device) if device.type == "cuda" else NoMeter()


def is_scarce(meter: Meter) -> bool:
    """Whether much of the memory was in use since the meter's last restart; True where nobody can tell."""
    return meter.total == 0 or meter.peak() > _SCARCE * meter.total
