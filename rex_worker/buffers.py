"""Batch normalisation when the batch lies on several workers, in several passes.

Its layers keep running statistics of the batches that they saw. Left alone, each worker's would follow its own samples,
and what a checkpoint or an evaluation gets would depend on who was rank 0. Here a step is one update of them, as it is
for one process: each pass starts from the step's own statistics, and the changes of all passes of all workers are
averaged by their samples. They travel with the gradients. A pass that counts for nothing changes nothing, and a void
step leaves all as it was.

A mean is so that of the global batch exactly. A variance is the mean of the passes' unbiased variances: unbiased, too.
A layer cannot normalise over a single value. Passes of one sample are avoided; where there is no way around, a layer
that would get one value per channel uses its running statistics for that pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.hooks import RemovableHandle


class RunningStatistics:
    """The running statistics of a model's normalisation layers, kept alike on all workers."""

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, _NormBase)]
        self._batch_norms = [layer for layer in layers if isinstance(layer, _BatchNorm)]
        pairs = [value for layer in layers for value in (layer.running_mean, layer.running_var)]
        self._values = [value for value in pairs if value is not None]
        counts = [layer.num_batches_tracked for layer in layers]
        self._counts = [count for count in counts if count is not None]
        self._handles: list[RemovableHandle] = []
        self.cargo: Tensor | None = None
        """This worker's part of the step's change, to be summed over the group; None when there is nothing to sum."""
        if self._values:
            self._prepare()

    def _prepare(self) -> None:
        first = self._values[0]
        double = any(value.dtype is torch.float64 for value in self._values)
        self._dtype = torch.float64 if double else torch.float32
        self._sizes = [value.numel() for value in self._values]
        self.cargo = torch.zeros(sum(self._sizes) + len(self._counts), dtype=self._dtype, device=first.device)
        self._base = self._start = self._read()

    @property
    def tensors(self) -> list[Tensor]:
        """The statistics themselves, the same on all workers between steps."""
        return [*self._values, *self._counts]

    @property
    def needs_pairs(self) -> bool:
        """Whether the model has layers that cannot train on a single sample."""
        return bool(self._batch_norms)

    def agreed(self) -> None:
        """The present values are the same on all workers: changes are counted from here."""
        if self.cargo is not None:
            self._base = self._read()

    # --- one step ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins."""
        if self.cargo is not None:
            self._start = self._read()
            self.cargo.zero_()

    def pass_begins(self, samples: int) -> None:
        """A pass of so many samples begins; one sample alone may need help."""
        if samples == 1:
            for layer in self._batch_norms:
                spared = _Spared()
                self._handles.append(layer.register_forward_pre_hook(spared.before))
                self._handles.append(layer.register_forward_hook(spared.after, always_call=True))

    def pass_ends(self, weight: float) -> None:
        """Take down what the pass changed, as ``weight`` of the step, and go back to the step's start.

        Not before the backward pass: autograd refuses to use what changed since the forward pass.
        """
        self._help_no_more()
        if self.cargo is not None:
            if weight > 0:
                values, counts = self._read()
                change = torch.cat([values - self._base[0], (counts - self._base[1]).to(self._dtype)])
                self.cargo.add_(change, alpha=weight)
            self._write(*self._start)

    def put_back(self) -> None:
        """The step is void: all is as it was at its start."""
        self._help_no_more()
        if self.cargo is not None:
            self._write(*self._start)

    def take_over(self) -> None:
        """The step is complete: add the change, which ``cargo`` holds the sum of by now."""
        if self.cargo is not None:
            values, counts = self._base
            changes, counted = torch.split(self.cargo, [len(values), len(counts)])
            self._base = values + changes, counts + counted.round().to(torch.int64)
            self._write(*self._base)

    def _help_no_more(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _read(self) -> tuple[Tensor, Tensor]:
        values = torch.cat([value.reshape(-1) for value in self._values]).to(self._dtype)
        counts = torch.stack(self._counts) if self._counts else torch.zeros(0, dtype=torch.int64, device=values.device)
        return values, counts

    def _write(self, values: Tensor, counts: Tensor) -> None:
        parts = zip(torch.split(values, self._sizes), self._values, strict=True)
        torch._foreach_copy_(self._values, [part.view_as(value) for part, value in parts])
        if self._counts:
            torch._foreach_copy_(self._counts, list(counts.unbind()))


class _Spared:
    """Lets a layer normalise with its running statistics where a pass has one value per channel."""

    def __init__(self) -> None:
        self._spared = False

    def before(self, layer: Any, inputs: tuple[Any, ...]) -> None:
        x = inputs[0] if inputs else None
        one = isinstance(x, Tensor) and x.dim() > 1 and x.numel() == x.size(1)
        if one and layer.training and layer.running_mean is not None:
            layer.training, self._spared = False, True

    def after(self, layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._spared:
            layer.training, self._spared = True, False
