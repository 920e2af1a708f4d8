"""Randomness that hangs on the sample, not on the process that happens to read it.

A random crop drawn from a process's own generator differs with every split of the batch, so that no two runs can be
compared and a step taken again is another step. Reader processes therefore seed the three usual generators
(``random``, NumPy's and torch's) before each sample, from the job's seed, the epoch and the sample. The same sample
in the same epoch is then the same tensor for any workers, shares and processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def seed_of(*place: int) -> int:
    """Derive a seed, below 2**63, from whole numbers; other numbers give an unrelated one."""
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=8).digest(), "big") >> 1


def seed_generators(seed: int) -> None:
    """Seed ``random``, NumPy's and torch's default generator on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextmanager
def own_generators() -> Iterator[None]:
    """Let the block use the three generators and give them back as they were."""
    kept = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.default_generator.set_state(kept[2])
