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
from typing import Any, Protocol

import torch
from torch import Tensor

from rex_worker.ballot import cast, count, zone_size
from rex_worker.buckets import BUCKET_BYTES, Bucket, fill_buckets
from rex_worker.errors import UsageError


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

    @property
    def together(self) -> bool:
        """Whether the workers run each pass together, so that one without samples for it must run it all the same."""

    def common_ceiling(self, reducer: Reducer, own: int | None) -> int | None:
        """The largest micro-batch of the coming step, where this worker's memory holds ``own``; None: any."""

    def arm(self, reducer: Reducer) -> None:
        """The step's last backward pass begins."""

    def pass_ends(self, weight: float) -> None:
        """A backward pass of so much of the step is done."""

    def give_way(self) -> None:
        """This worker cannot do its part of the step, and will vote so; before ``complete``."""

    def waited_s(self) -> float:
        """Seconds of the step's passes that went by in collectives, waiting for the others or communicating."""

    def complete(self, reducer: Reducer) -> None:
        """All passes are done; everything may leave but what carries the vote."""

    def square_so_far(self) -> Tensor | None:
        """|g|^2 of the gradients that have been added up on this worker; None if it is unknown. Between two passes."""

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


class GradientAverager:
    """Averages the gradients of a plain model's parameters, whole on each worker; see ``Averager``.

    Args:
        parameters: Of the model, by name; those that require no gradient must never get one.
        vote_numbers: Numbers per vote.
        bucket_bytes: About as large a bucket is.
        cargo: Shape (n,); rides in the last bucket where that has its type, else it takes a collective of its own.
        wire: Type that gradients travel in, if not their own. Flags, votes and cargo arrive unharmed all the same, and
            the norms of ``local_square`` are of the gradients as they were computed.
    """

    together = False

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        vote_numbers: int,
        bucket_bytes: int = BUCKET_BYTES,
        cargo: Tensor | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        named = list(parameters)
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if not trained:
            raise UsageError("the model has no parameter that requires a gradient")
        self._frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        # The graph usually yields the last layers' gradients first.
        self._buckets = fill_buckets(list(reversed(trained)), bucket_bytes)
        self._last = self._buckets[-1]
        self._vote_numbers = vote_numbers
        self._cargo = cargo
        self._parcel: Tensor | None = None
        """The cargo in a collective of its own."""
        self._wire = wire
        like = self._last.flat
        self._rides = cargo is not None and wire is None and (cargo.dtype, cargo.device) == (like.dtype, like.device)
        self._armed: Reducer | None = None
        self._sealed = 0
        """So many buckets, in their order, are complete."""
        self._works: list[Any] = []
        self._norms: list[Tensor] = []
        for number, bucket in enumerate(self._buckets):
            for place, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(number, place))  # type: ignore[no-untyped-call]

    def _hook(self, number: int, place: int) -> Callable[[Tensor], None]:
        bucket = self._buckets[number]
        ready, last = bucket.ready, number == len(self._buckets) - 1

        def gradient_is_complete(parameter: Tensor) -> None:
            reducer = self._armed
            if reducer is None:
                return
            self._check(bucket, place, parameter)
            ready.add(place)
            if number == self._sealed and not last and bucket.full():
                self._launch_complete(reducer)

        return gradient_is_complete

    def common_ceiling(self, reducer: Reducer, own: int | None) -> int | None:
        """Each worker's own."""
        return own

    def pass_ends(self, weight: float) -> None:
        """Nothing: gradients add up on the parameters."""

    def square_so_far(self) -> Tensor | None:
        """|g|^2 of the gradients that have been added up on the parameters."""
        gradients = [p.grad for bucket in self._buckets for p in bucket.parameters if p.grad is not None]
        if not gradients or any(gradient.layout is not torch.strided for gradient in gradients):
            return None
        return torch.nn.utils.get_total_norm(gradients).double() ** 2

    def waited_s(self) -> float:
        """None: what leaves during a pass is not waited for."""
        return 0.0

    def give_way(self) -> None:
        """Nothing: this worker takes part with zeros."""

    def arm(self, reducer: Reducer) -> None:
        """Begin the step's last backward pass: complete buckets leave from now on."""
        self._make_room(reducer)
        self._armed = reducer

    def complete(self, reducer: Reducer) -> None:
        """Fill all buckets that have not left yet, with zeros for what this worker did not use; the last one stays."""
        self._armed = None
        self._make_room(reducer)
        for bucket in self._buckets[self._sealed :]:
            for place, parameter in enumerate(bucket.parameters):
                if place not in bucket.ready and parameter.grad is not None:
                    self._check(bucket, place, parameter)
                    bucket.ready.add(place)
            self._seal(bucket)
            if bucket is not self._last:
                self._send(bucket, reducer)
        self._check_frozen()

    def launch(self, reducer: Reducer, vote: Sequence[float]) -> None:
        """Send the last bucket, with this worker's vote and the cargo; after ``complete``."""
        cast(self._last.votes, reducer.rank, vote)
        if self._cargo is not None and self._rides:
            self._last.cargo.copy_(self._cargo)
        elif self._cargo is not None:
            self._parcel = self._cargo.clone()
            self._works.append(reducer.all_reduce(self._parcel))
        self._send(self._last, reducer)

    def votes(self, reducer: Reducer) -> list[list[float]]:
        """The votes of all ranks, in their order; all of ``works`` must be done."""
        zone = self._last.wire[self._last.wire.numel() - self._last.votes.numel() :]
        return count(zone, reducer.size)

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
        return _sum_of_squares(self._norms) / weight**2

    def finish(self, factor: float = 1.0) -> float:
        """Write the averaged gradients, times ``factor``, to the parameters; returns |g|^2. ``works`` must be done."""
        changed = factor != 1.0 or any(work is not None for work in self._works)
        for bucket in self._buckets:
            if bucket.wire is not bucket.flat:
                bucket.flat.copy_(bucket.wire)
            if factor != 1.0:
                bucket.gradients.mul_(factor)
            if factor == 0.0:
                bucket.flags.fill_(1.0)
        # Alone, what was sent is what came back.
        square = _sum_of_squares([bucket.norm() for bucket in self._buckets] if changed else self._norms)
        if changed:
            used = iter(torch.cat([bucket.flags for bucket in self._buckets]).tolist())
            for bucket in self._buckets:
                bucket.write_back(used)
        if self._cargo is not None:
            self._cargo.copy_(self._last.cargo if self._parcel is None else self._parcel)
        self._forget()
        return square

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
                bucket.lay_out(len(bucket.cargo), len(bucket.votes))
        self._forget()

    def _forget(self) -> None:
        for bucket in self._buckets:
            bucket.ready.clear()
            bucket.wire = bucket.flat
        self._armed, self._sealed, self._works, self._norms, self._parcel = None, 0, [], [], None

    def _check(self, bucket: Bucket, place: int, parameter: Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise UsageError(
                f"parameter {bucket.names[place]!r} has a sparse gradient; REX averages dense ones: build its layer"
                " with sparse=False"
            )
        if place in bucket.ready:
            raise UsageError(
                f"parameter {bucket.names[place]!r} got a gradient twice in a step's last pass; call session.backward"
                " once per batch, on the sum of the losses"
            )

    def _make_room(self, reducer: Reducer) -> None:
        """Lay out the zone for as many votes as the group has members."""
        zone = zone_size(reducer.size, self._vote_numbers)
        if len(self._last.votes) != zone:
            self._last.lay_out(self._cargo.numel() if self._cargo is not None and self._rides else 0, zone)

    def _launch_complete(self, reducer: Reducer) -> None:
        while (bucket := self._buckets[self._sealed]) is not self._last and bucket.full():
            self._seal(bucket)
            self._send(bucket, reducer)

    def _seal(self, bucket: Bucket) -> None:
        bucket.fill()
        self._norms.append(bucket.norm())
        self._sealed += 1

    def _send(self, bucket: Bucket, reducer: Reducer) -> None:
        if self._wire is not None and reducer.size > 1 and self._wire.itemsize < bucket.flat.itemsize:
            bucket.wire = bucket.flat.to(self._wire)
        self._works.append(reducer.all_reduce(bucket.wire))

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise UsageError(
                    f"parameter {name!r} was frozen at session.prepare and now has a gradient; prepare the model with"
                    " everything that will ever be trained requiring a gradient"
                )


def _sum_of_squares(norms: Sequence[Tensor]) -> float:
    numbers: list[float] = torch.stack(list(norms)).tolist()
    return sum(number * number for number in numbers)
