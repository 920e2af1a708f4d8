"""The states of the random generators that a script draws from, as part of the training state.

A resumed training should draw the dropout masks that the undisturbed one would have drawn. So rank 0's generators
(torch's on the CPU and on its device, numpy's and Python's) are kept in each checkpoint and restored when it is read.
Every other worker, and every newcomer, must not draw the same numbers as rank 0: it starts from a seed that is derived
from the job's seed, the step and its rank, so that the same resume draws the same numbers each time.

Only plain numbers are kept: numpy's and Python's states are a list of integers each.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from rex_worker.seeding import seed_generators, seed_of

_MERSENNE = "MT19937"
_PYTHON_VERSION = 3


def capture(device: torch.device) -> dict[str, Any]:
    """The generators' states; ``device``: where the model lives."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    numpy = np.random.get_state(legacy=False)
    if numpy["bit_generator"] == _MERSENNE:  # else the script has put another one there, which is its own affair
        words = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
        state["numpy"] = [words, int(numpy["state"]["pos"]), int(numpy["has_gauss"]), float(numpy["gauss"])]
    version, inner, next_gauss = random.getstate()
    if version == _PYTHON_VERSION:
        state["python"] = [torch.tensor(inner, dtype=torch.int64, device="cpu"), next_gauss]
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators where ``capture`` found them; one whose state was not kept stays as it is.

    Raises:
        ValueError: It is no such state.
    """
    try:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], device)
        if "numpy" in state:
            words, place, has_gauss, gauss = state["numpy"]
            np.random.set_state((_MERSENNE, words.numpy().astype(np.uint32), place, has_gauss, gauss))
        if "python" in state:
            inner, next_gauss = state["python"]
            random.setstate((_PYTHON_VERSION, tuple(inner.tolist()), next_gauss))
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not the states of random generators: {error}") from error


def derive(seed: int, step: int, rank: int) -> None:
    """Start all generators anew, differently on each rank and at each step, and the same each time."""
    derived = seed_of(seed, step, rank)
    torch.manual_seed(derived)  # every device's, too
    seed_generators(derived)
