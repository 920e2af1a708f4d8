"""The gradient of the global batch, exact for any uneven split.

Plain averaging over ranks weighs a sample on a small-batch rank more than one on a large-batch rank. Here each
micro-batch's mean-loss gradient enters with weight m/B (m its samples, B the step's), so that the plain sum over
micro-batches and workers is the gradient of the mean over the global batch (Cannikin's weighting, arXiv 2402.05302).

Gradients travel in buckets. During the last backward pass of a step a bucket leaves as soon as its gradients are
complete, while the pass goes on. Buckets always leave in the same order on all workers, whatever order the graph ran
in; each carries one flag per parameter, so that a parameter which nobody used keeps no gradient, as in a single
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from rex_worker.ballot import cast, count, zone_size
from rex_worker.errors import UsageError

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""The first bucket is small: it is complete early and starts the overlap."""
_LOW_PRECISION = (torch.float16, torch.bfloat16)


class Reducer(Protocol):
    """What averaging needs of a group."""

    @property
    def rank(self) -> int:
        """This worker's place."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def all_reduce(self, tensor: Tensor) -> Any:
        """Start summing in place; None when there is nobody to sum with."""


class Averager(Protocol):
    """Makes the gradients of this worker's passes those of the whole step; one implementation per kind of model.

    Order of a step: any number of backward passes, each with its loss weighted so that the sum over passes and workers
    is the step's gradient (up to ``factor``); ``arm`` before the last one (optional: lets communication overlap it);
    ``complete`` after it; ``local_square``; ``launch`` with this worker's vote; the caller waits for ``works``; then
    ``votes``, and ``finish`` or, for a void step, ``reset``. Every worker of the group makes the same calls, whatever
    it has to contribute. Any call that communicates may raise ``GroupLost``; after it only ``reset`` is called.

    An averager is made with ``vote_numbers`` (float64 numbers per vote, which arrive bit for bit) and, if there is one,
    with the ``cargo``: a flat tensor of its caller's, summed over the group with each step. The caller fills it before
    ``launch`` and finds the sum in it after ``finish``; ``reset`` leaves it undefined.
    """

    @property
    def works(self) -> Sequence[Any]:
        """Collectives that were started and must be done before ``votes``; entries may be None."""

    def arm(self, reducer: Reducer) -> None:
        """The step's last backward pass begins."""

    def complete(self, reducer: Reducer) -> None:
        """All passes are done; everything may leave but what carries the vote."""

    def local_square(self, weight: float) -> float | None:
        """|g_i|^2 of this worker's own mean gradient, whose share of the step is ``weight``; None if it is unknown."""

    def launch(self, reducer: Reducer, vote: Sequence[float]) -> None:
        """Send what is left, with this worker's vote and the cargo."""

    def votes(self, reducer: Reducer) -> list[list[float]]:
        """The votes of all ranks, in their order."""

    def finish(self, factor: float = 1.0) -> float:
        """Give the parameters the sum of all gradients times ``factor``; returns the result's |g|^2.

        With ``factor`` 0 every trained parameter gets a gradient of zeros.
        """

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to a norm of at most ``max_norm``; after ``finish``."""

    def has_gradients(self) -> bool:
        """Whether any parameter has a gradient."""

    def reset(self) -> None:
        """Give the step up, at any point: no gradients are left, and nothing in flight can reach the next step."""


@dataclass
class Bucket:
    """Parameters that travel together; ``flat`` holds their gradients, then one flag each, then the votes."""

    names: list[str]
    parameters: list[torch.nn.Parameter]
    flat: Tensor
    gradients: Tensor
    slices: list[Tensor]
    flags: Tensor
    votes: Tensor
    ready: set[int] = field(default_factory=set)


class GradientAverager:
    """Sums the weighted gradients of a model's parameters over a group, overlapping the last backward pass.

    A step is: any number of backward passes; ``arm`` before the last one (optional: without it nothing overlaps);
    ``complete`` after it, then ``launch`` with this worker's vote; ``finish`` once everybody's part has arrived, or
    ``reset`` to give the step up.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        vote_numbers: int,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        named = list(parameters)
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if not trained:
            raise UsageError("the model has no parameter that requires a gradient")
        self._frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        # The graph usually yields the last layers' gradients first.
        self._buckets = _fill_buckets(list(reversed(trained)), bucket_bytes)
        self._vote_numbers = vote_numbers
        self._armed: Reducer | None = None
        self._sealed = 0
        """So many buckets, in their order, are complete."""
        self._works: list[Any] = []
        self._squares: list[Tensor] = []
        for number, bucket in enumerate(self._buckets):
            for place, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(number, place))  # type: ignore[no-untyped-call]

    def _hook(self, number: int, place: int) -> Callable[[Tensor], None]:
        def gradient_is_complete(parameter: Tensor) -> None:
            if self._armed is not None:
                self._collect(number, place, parameter.grad)
                self._launch_complete(self._armed)

        return gradient_is_complete

    def arm(self, reducer: Reducer) -> None:
        """Begin the step's last backward pass: complete buckets leave from now on."""
        self._make_room(reducer)
        self._armed = reducer

    def complete(self, reducer: Reducer) -> None:
        """Fill all buckets that have not left yet, with zeros for what this worker did not use; the last one stays."""
        self._armed = None
        self._make_room(reducer)
        for number in range(self._sealed, len(self._buckets)):
            bucket = self._buckets[number]
            for place, parameter in enumerate(bucket.parameters):
                if place not in bucket.ready and parameter.grad is not None:
                    self._collect(number, place, parameter.grad)
            self._seal(bucket)
            if number < len(self._buckets) - 1:
                self._send(bucket, reducer)
        self._check_frozen()

    def launch(self, reducer: Reducer, vote: Sequence[float]) -> None:
        """Send the last bucket, with this worker's vote; after ``complete``."""
        last = self._buckets[-1]
        cast(last.votes, reducer.size, reducer.rank, vote)
        self._send(last, reducer)

    def votes(self, reducer: Reducer) -> list[list[float]]:
        """The votes of all ranks, in their order; all of ``works`` must be done."""
        return count(self._buckets[-1].votes, reducer.size)

    def has_gradients(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(parameter.grad is not None for bucket in self._buckets for parameter in bucket.parameters)

    @property
    def works(self) -> Sequence[Any]:
        """What has been started and must be waited for before ``finish``."""
        return self._works

    def local_square(self, weight: float) -> float | None:
        """|g_i|^2 of this worker's mean gradient; ``weight`` is its share b_i/B of the step. After ``complete``."""
        if weight <= 0:
            return None
        return float(torch.stack(self._squares).sum()) / weight**2

    def finish(self, factor: float = 1.0) -> float:
        """Write the averaged gradients, times ``factor``, to the parameters; returns |g|^2. ``works`` must be done."""
        total = torch.zeros((), dtype=torch.float64)
        shared = any(work is not None for work in self._works)
        for bucket in self._buckets:
            if factor != 1.0:
                bucket.gradients.mul_(factor)
            if factor == 0.0:
                bucket.flags.fill_(1.0)
            total += _square(bucket.gradients).cpu()
            if shared or factor != 1.0:
                _write_back(bucket)
        self._forget()
        return float(total)

    def clip(self, max_norm: float) -> None:
        """Scale the averaged gradients down to a norm of at most ``max_norm``; after ``finish``."""
        torch.nn.utils.clip_grad_norm_([p for bucket in self._buckets for p in bucket.parameters], max_norm)

    def reset(self) -> None:
        """Give the step up: forget what was sent and clear the gradients."""
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.grad = None
        if self._works:
            # A bucket given up may still be written to by a collective in flight.
            for bucket in self._buckets:
                _lay_out(bucket, len(bucket.votes))
        self._forget()

    def _forget(self) -> None:
        for bucket in self._buckets:
            bucket.ready.clear()
        self._armed, self._sealed, self._works, self._squares = None, 0, [], []

    def _collect(self, number: int, place: int, gradient: Tensor | None) -> None:
        bucket = self._buckets[number]
        if gradient is None:
            return
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"parameter {bucket.names[place]!r} has a sparse gradient; REX averages dense ones: build its layer"
                " with sparse=False"
            )
        if number < self._sealed or place in bucket.ready:
            raise UsageError(
                f"parameter {bucket.names[place]!r} got a gradient twice in a step's last pass; call session.backward"
                " once per batch, on the sum of the losses"
            )
        bucket.slices[place].copy_(gradient.detach().reshape(-1))
        bucket.ready.add(place)

    def _make_room(self, reducer: Reducer) -> None:
        """Lay out the zone for as many votes as the group has members."""
        zone = zone_size(reducer.size, self._vote_numbers)
        if len(self._buckets[-1].votes) != zone:
            _lay_out(self._buckets[-1], zone)

    def _launch_complete(self, reducer: Reducer) -> None:
        while self._sealed < len(self._buckets) - 1:
            bucket = self._buckets[self._sealed]
            if len(bucket.ready) < len(bucket.parameters):
                return
            self._seal(bucket)
            self._send(bucket, reducer)

    def _seal(self, bucket: Bucket) -> None:
        if len(bucket.ready) == len(bucket.parameters):
            bucket.flags.fill_(1.0)
        else:
            for place, part in enumerate(bucket.slices):
                if place not in bucket.ready:
                    part.zero_()
                bucket.flags[place] = float(place in bucket.ready)
        self._squares.append(_square(bucket.gradients))
        self._sealed += 1

    def _send(self, bucket: Bucket, reducer: Reducer) -> None:
        self._works.append(reducer.all_reduce(bucket.flat))

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise UsageError(
                    f"parameter {name!r} was frozen at session.prepare and now has a gradient; prepare the model with"
                    " everything that will ever be trained requiring a gradient"
                )


def _write_back(bucket: Bucket) -> None:
    """Give the parameters their averaged gradients; none to those that nobody used."""
    targets, sources = [], []
    for parameter, part, used in zip(bucket.parameters, bucket.slices, bucket.flags.tolist(), strict=True):
        if not used:
            parameter.grad = None
        elif parameter.grad is None:
            parameter.grad = part.view_as(parameter).clone()
        else:
            targets.append(parameter.grad)
            sources.append(part.view_as(parameter))
    if targets:
        torch._foreach_copy_(targets, sources)


def _square(values: Tensor) -> Tensor:
    precise = torch.float32 if values.dtype in _LOW_PRECISION else values.dtype
    norm: Tensor = torch.linalg.vector_norm(values, dtype=precise)
    return norm.double().square()


def _fill_buckets(named: list[tuple[str, torch.nn.Parameter]], bucket_bytes: int) -> list[Bucket]:
    kinds: dict[tuple[torch.dtype, torch.device], list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.device), []).append((name, parameter))
    buckets = []
    for members in kinds.values():
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes)
        group: list[tuple[str, torch.nn.Parameter]] = []
        size = 0
        for name, parameter in members:
            group.append((name, parameter))
            size += parameter.numel() * parameter.element_size()
            if size >= limit:
                buckets.append(_bucket(group))
                group, size, limit = [], 0, bucket_bytes
        if group:
            buckets.append(_bucket(group))
    return buckets


def _bucket(members: list[tuple[str, torch.nn.Parameter]]) -> Bucket:
    empty = torch.empty(0)
    bucket = Bucket(
        [name for name, _ in members], [parameter for _, parameter in members], empty, empty, [], empty, empty
    )
    _lay_out(bucket)
    return bucket


def _lay_out(bucket: Bucket, votes: int = 0) -> None:
    sizes = [parameter.numel() for parameter in bucket.parameters]
    first = bucket.parameters[0]
    bucket.flat = torch.zeros(sum(sizes) + len(sizes) + votes, dtype=first.dtype, device=first.device)
    bucket.gradients = bucket.flat[: sum(sizes)]
    *bucket.slices, bucket.flags, bucket.votes = torch.split(bucket.flat, [*sizes, len(sizes), votes])
