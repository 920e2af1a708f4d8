"""Which real device this process has. A worker has one: its pod shows it exactly one accelerator, or none."""

from __future__ import annotations

import torch


def find_device(emulate: bool) -> torch.device:
    """The accelerator of this process, else the CPU; an emulated device is always paced on the CPU."""
    if not emulate and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def memory_bytes(device: torch.device) -> int:
    """Size of the device's own memory; 0 for the CPU, whose memory is shared with the rest of the host."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def release_memory(device: torch.device) -> None:
    """Give back what an out-of-memory pass left behind. Call outside the ``except``: its traceback pins tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
