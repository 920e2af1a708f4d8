"""Which parameters a worker's passes used.

FSDP2 sends zeros for a parameter that a worker did not use, and a sum of zeros looks like a gradient: with weight decay
or momentum the optimiser would move what nobody used. What was used is known where gradients are accumulated: on the
gathered parameters, which a module holds while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rex_worker.sharding.dressing import Form


class Usage:
    """Watches the trained parameters of a model whose ``modules`` were just sharded."""

    def __init__(self, forms: Sequence[Form], modules: Sequence[nn.Module]) -> None:
        self._unseen = list(forms)
        self._seen: set[str] = set()
        self._used: set[str] = set()
        self._handles = [module.register_forward_pre_hook(self._look) for module in modules]

    def used(self, name: str) -> bool | None:
        """Whether a parameter got a gradient since ``clear``; None if its module was never called."""
        return name in self._used if name in self._seen else None

    def clear(self) -> None:
        """A step begins."""
        self._used.clear()

    def close(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _look(self, module: nn.Module, arguments: Any) -> None:
        """A module begins: what it gathered is there, and stays the same object from now on."""
        unseen = []
        for form in self._unseen:
            parameter = form.parameter()
            if isinstance(parameter, DTensor):
                unseen.append(form)
                continue
            self._seen.add(form.name)
            parameter.register_post_accumulate_grad_hook(self._note(form.name))  # type: ignore[no-untyped-call]
        self._unseen = unseen
        if not unseen:
            self.close()

    def _note(self, name: str) -> Callable[[Tensor], None]:
        def gradient_is_there(parameter: Tensor) -> None:
            self._used.add(name)

        return gradient_is_there
