"""What a step changes beside the parameters, and how it is put back when the step does not count.

A step that is void is taken again. Its forward passes have moved running statistics meanwhile, and random numbers
were drawn; counted twice, they would make a training with losses differ from one without.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Rewind:
    """The model's buffers and torch's random state at one moment.

    Args:
        model: Whose buffers, but for those of layers of the types ``but``, which somebody else takes care of.
        device: Whose random state, beside the host's.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, but: tuple[type[torch.nn.Module], ...] = ()
    ) -> None:
        self._device = device
        modules = [module for module in model.modules() if not isinstance(module, but)]
        self._places = [(module._buffers, name) for module in modules for name in module._buffers]
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._random: list[Tensor] = []

    def mark(self) -> None:
        """Note how everything is now."""
        buffers = [buffer for owner, name in self._places if (buffer := owner[name]) is not None]
        with torch.no_grad():
            if [buffer.shape for buffer in buffers] == [kept.shape for kept in self._kept]:
                _copy(self._kept, buffers)
            else:
                self._kept = [buffer.detach().clone() for buffer in buffers]
        self._buffers = buffers
        self._random = [torch.get_rng_state()]
        if self._device.type == "cuda":
            self._random.append(torch.cuda.get_rng_state(self._device))

    def back(self) -> None:
        """Put everything back to how it was at the last ``mark``."""
        with torch.no_grad():
            _copy(self._buffers, self._kept)
        for state, put in zip(self._random, (torch.set_rng_state, self._set_device_state), strict=False):
            put(state)

    def _set_device_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self._device)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy pairwise, with one call per type: single small copies are what takes time."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        group = kinds.setdefault(target.dtype, ([], []))
        group[0].append(target)
        group[1].append(source)
    for into, out_of in kinds.values():
        torch._foreach_copy_(into, out_of)
