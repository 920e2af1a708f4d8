"""The five lines that turn a plain PyTorch loop into an elastic one.

    import rex_worker as rex

    with rex.init() as session:                                # 1
        model, optimizer = session.prepare(model, optimizer)   # 2
        loader = session.loader(dataset)                       # 3
        for epoch in session.epochs(10):                       # 4
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                session.backward(loss)                         # 5
                optimizer.step()

Under an operator the plan decides how large the batches are, members come and go, and the loop goes on. Started by
torchrun, the processes bring their own planner along (``rex_worker.standalone``). Started by hand, the same script
trains in this single process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from rex_worker.channel import Introduction
from rex_worker.checkpoint import CheckpointFolder
from rex_worker.devices import Pacer, find_device, memory_bytes, profile_of
from rex_worker.environment import Environment
from rex_worker.errors import UsageError
from rex_worker.evaluation import SharedEvaluation
from rex_worker.gate import LateGate
from rex_worker.headroom import guarded
from rex_worker.keeping import Keeper
from rex_worker.lifetime import Lifetime, log_to_stderr
from rex_worker.link import AloneLink, Link, OperatorLink
from rex_worker.loader import ElasticLoader, MapSource, Source
from rex_worker.meeting import Meeting
from rex_worker.participation import Participation
from rex_worker.preparation import Prepared
from rex_worker.protocol import Metrics, Ready
from rex_worker.rates import Rates, is_adaptive
from rex_worker.recipe import Recipe, checked_size, recipe
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import Position
from rex_worker.standalone import Standalone, enter
from rex_worker.streams import StreamSource
from rex_worker.timing import clock_of
from rex_worker.training import Training
from rex_worker.whereabouts import Whereabouts

if TYPE_CHECKING:
    from rex_worker.sharding import ShardPolicy

log = logging.getLogger("rex")

_MAX_METRICS = 16
_JUDGED_BATCH = 256

ModelT = TypeVar("ModelT", bound=torch.nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT")


def init() -> Session:
    """Open this process's session; use it as a context manager around the whole training.

    Raises:
        ConfigurationError: The environment that the worker was started with cannot work.
    """
    environment = Environment.read()
    standalone = enter(environment)
    return Session(environment) if standalone is None else Session(standalone.environment, standalone)


class Session(Whereabouts):
    """This process's part in the training of a job."""

    def __init__(self, environment: Environment, standalone: Standalone | None = None) -> None:
        self._environment = environment
        self._launched = 1 if standalone is None else standalone.launch.size
        self._pacer = Pacer(profile_of(environment.device), environment.emulate_scale) if environment.emulate else None
        self._folder = (
            CheckpointFolder(environment.checkpoint_dir, environment.checkpoint_keep)
            if environment.checkpoint_dir is not None
            else None
        )
        self.device = find_device(environment.emulate)
        """Where the model and the batches live."""
        self._link: Link
        meeting = None
        if environment.channel_url is None and standalone is None:
            self._link = AloneLink(environment)
        else:
            log_to_stderr(environment.worker_id)
            meeting = Meeting(environment.address, self.device)
            introduction = Introduction(memory_bytes(self.device), meeting.port)
            self._link = (standalone.link if standalone else partial(OperatorLink, environment))(introduction)
        self._keeper = Keeper(self._folder, environment.checkpoint_every, self._link)
        self._participation = Participation(environment, self._link, self.device, meeting, self._keeper.flush)
        self._lifetime = Lifetime(self._link, self._participation, self._keeper)
        self._gate = LateGate()
        self._prepared: Prepared | None = None
        self._recipe: Recipe | None = None
        self._source: Source | None = None
        self._evaluation: SharedEvaluation | None = None
        self._training: Training | None = None
        self._replica: Replica | None = None
        self._total_epochs = 0

    def __enter__(self) -> Self:
        self._lifetime.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._lifetime.end(error)
        finally:
            for reads in (self._source, self._evaluation):
                if reads is not None:
                    reads.close()

    # --- the five lines -------------------------------------------------------------------------------------------

    @overload
    def prepare(
        self, model: ModelT, optimizer: OptimizerT, *, shard: ShardPolicy | None = None, comm_hook: Any = None
    ) -> tuple[ModelT, OptimizerT]: ...

    @overload
    def prepare(
        self,
        model: ModelT,
        optimizer: OptimizerT,
        scheduler: SchedulerT,
        *,
        schedule_clock: Literal["samples", "updates"] = "samples",
        shard: ShardPolicy | None = None,
        comm_hook: Any = None,
    ) -> tuple[ModelT, OptimizerT, SchedulerT]: ...

    @overload
    def prepare(
        self, model: ModelT, optimizer: OptimizerT, *, scaler: GradScaler, comm_hook: Any = None
    ) -> tuple[ModelT, OptimizerT, GradScaler]: ...

    @overload
    def prepare(
        self,
        model: ModelT,
        optimizer: OptimizerT,
        scheduler: SchedulerT,
        *,
        schedule_clock: Literal["samples", "updates"] = "samples",
        scaler: GradScaler,
        comm_hook: Any = None,
    ) -> tuple[ModelT, OptimizerT, SchedulerT, GradScaler]: ...

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scheduler: Any = None,
        *,
        schedule_clock: Literal["samples", "updates"] = "samples",
        shard: ShardPolicy | None = None,
        scaler: GradScaler | None = None,
        comm_hook: Any = None,
    ) -> Any:
        """Take the model and its optimiser (and a learning-rate scheduler) into the session.

        The model is moved to ``session.device`` and is otherwise the same object; the optimiser (and scheduler) that
        comes back stands for the old one in the loop, with its methods, state and groups.

        A scheduler that is stepped in the loop moves on by ``samples``: set it up for the updates that a run with
        ``batch.initial`` makes, and it stands at the same rate after the same samples, whatever batches the plans ask
        for. With ``schedule_clock="updates"`` it moves on by one with each update.

        With ``shard`` no worker holds the whole model. It is called as ``shard(model, mesh)`` for each group of workers
        anew, and applies ``torch.distributed.fsdp.fully_shard(part, mesh=mesh)`` to the model's parts, and last to the
        model itself. The model stays in host memory until then, and is the same object ever after; its parameters are
        not. From then on every call of the model is a work of all workers together.

        A ``scaler`` comes back last, and goes on as in PyTorch's recipe, with ``session.backward(scaler.scale(loss))``.
        With ``comm_hook`` ``"fp16"`` or ``"bf16"`` gradients travel in that type, as with DDP's hooks of that name.
        """
        if self._prepared is not None:
            raise UsageError("session.prepare was called before; a session trains one model")
        self._prepared = Prepared.take(
            self._gate, self.device, model, optimizer, scheduler, schedule_clock, shard, scaler, comm_hook
        )
        if shard is not None and self._folder is None and not self._link.alone:
            log.warning("a sharded model without spec.checkpoint: the loss of one worker ends the training")
        return self._prepared.handed_back

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        shuffle: bool | None = None,
        num_workers: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
    ) -> ElasticLoader:
        """Return the iterable of batches.

        Args:
            dataset: Map-style (``len(dataset)`` samples, ``dataset[i]``), or a stream: an ``IterableDataset``, or
                anything whose ``__iter__`` starts anew and gives the same samples on every worker. Or a torch
                ``DataLoader``, of which all but the choice of samples is taken over; what is given here goes before it.
            batch_size: Used only when no operator plans the batches; 32 if absent.
            collate: Makes a batch of a list of samples; torch's ``default_collate`` if absent.
            shuffle: Another order in each epoch (as if absent), or the dataset's own order. A stream has its own.
            num_workers: Processes that read ahead; 0 if absent: the training process reads.
            prefetch: Micro-batches that each process reads ahead; 2 if absent.
            pin_memory: Read into pinned memory; where there is CUDA, if absent.
            worker_init_fn: Called in each reading process, with its number, before it reads.
            multiprocessing_context: How the processes start ("fork", "spawn"); as torch's ``DataLoader``.

        Raises:
            UsageError: Something cannot be honoured, such as a ``DataLoader`` with a sampler of its own.
        """
        if self._recipe is not None:
            raise UsageError("session.loader was called before; a session trains on one dataset")
        self._recipe = recipe(
            dataset,
            batch_size=batch_size,
            collate=collate,
            shuffle=shuffle,
            num_workers=num_workers,
            prefetch=prefetch,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
        )
        return ElasticLoader(self._batches, self._recipe, self.initial_batch)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, joining the job's group before the first."""
        if count < 1:
            raise UsageError(f"session.epochs({count}): at least one epoch is needed")
        if self._training is not None:
            raise UsageError("session.epochs was called before; a session has one loop over epochs")
        self._total_epochs = count
        training, replica = self._start()
        training.settle()
        while not replica.progress.finished and (epoch := replica.progress.position.epoch) < count:
            replica.overtaken = False
            training.loop_epoch = epoch
            yield epoch
            training.loop_epoch = None
            if replica.progress.position.epoch == epoch and not replica.progress.finished:
                self._epoch_left_early(epoch, replica)
            training.settle()

    def _epoch_left_early(self, epoch: int, replica: Replica) -> None:
        if self.world_size > 1 or replica.progress.position.offset == 0:
            raise UsageError(
                f"epoch {epoch} was not trained to its end: loop over all of session.loader(...) in each epoch; to end"
                " the training early call session.stop()"
            )
        position = replica.progress.position
        replica.progress = replace(replica.progress, position=Position(position.seed, epoch + 1, 0))

    def backward(self, loss: Tensor, weight: float | Tensor | None = None) -> None:
        """Run the backward pass of ``loss``, the mean over the batch at hand; takes ``loss.backward()``'s place.

        After the last batch of a step, the parameters' ``grad`` are those of the mean over the whole global batch.

        Args:
            loss: One number. With a gradient scaler what ``scaler.scale`` returned.
            weight: How many units (tokens, boxes, ...) of this batch ``loss`` is the mean over, where it is not its
                samples. The step's mean is then over all units of the global batch. A batch may have none; a step
                without any gets gradients of zero. For all batches or for none.
        """
        self._running().backward(loss, None if weight is None else _checked_weight(weight))

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the step's gradients down to a norm of at most ``max_norm``; between ``backward`` and ``step``.

        Acts on the averaged gradients of the whole step, so only with its last micro-batch.
        """
        self._running().clip_gradients(max_norm)

    def totals(
        self,
        dataset: Any,
        judge: Callable[[Any], Sequence[float]],
        batch_size: int | None = None,
        *,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        num_workers: int | None = None,
    ) -> list[float]:
        """Sum figures over a dataset, each sample once, the work shared out over the group. Every worker must call it.

        Args:
            dataset: Map-style; the samples to judge. Or a ``DataLoader`` of them.
            judge: Takes a collated batch, returns figures that add up over samples, such as the number of correct
                answers, the sum of losses and the number of tokens. The sums are the same to the last
                digit for any workers and shares, if the device computes the same figures for the same batch.
            batch_size: Samples per call of ``judge``, 256 if absent; a multiple of it is what workers share out.
            collate: As in ``loader``.
            num_workers: As in ``loader``; the processes are kept for the next call with the same dataset.

        Returns:
            The sums, on every worker.
        """
        self._running()
        if batch_size is None and not isinstance(dataset, DataLoader):
            batch_size = _JUDGED_BATCH
        settled = recipe(dataset, batch_size=batch_size, collate=collate, num_workers=num_workers)
        checked_size(settled.dataset)
        if self._evaluation is None:
            raise UsageError("training has not begun: loop over session.epochs(...) first")
        return self._evaluation.totals(settled, judge)

    # --- beside the loop --------------------------------------------------------------------------------------------

    def report(self, **values: float) -> None:
        """Report figures of the script, such as ``accuracy=0.97``; rank 0's count, others' are dropped."""
        numbers = {name: float(value) for name, value in values.items()}
        for name in [name for name, value in numbers.items() if not math.isfinite(value)]:
            log.warning("session.report: %s is %s and is left out", name, numbers.pop(name))
        if len(numbers) > _MAX_METRICS:
            raise UsageError(f"session.report takes at most {_MAX_METRICS} figures at once, got {len(numbers)}")
        if self._replica is not None and self._replica.astray:
            log.warning("session.report: a peer was lost meanwhile; figures of the sharded model are left out")
        elif numbers and self.is_main:
            self._link.send(Metrics(step=self.step, samples=self.samples, values=numbers))

    def stop(self) -> None:
        """End the training early, on all workers, after the next step."""
        self._participation.finish_early()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Any]:
        return self._running().batches()

    def _running(self) -> Training:
        if self._training is None:
            raise UsageError("training has not begun: loop over session.epochs(...) first")
        return self._training

    def _start(self) -> tuple[Training, Replica]:
        if self._prepared is None or self._recipe is None:
            missing = "session.prepare(model, optimizer)" if self._prepared is None else "session.loader(dataset)"
            raise UsageError(f"call {missing} before session.epochs(...)")
        prepared, optimizer = self._prepared, self._prepared.optimizer
        source: Source
        if self._recipe.streams:
            source = StreamSource(self._recipe, self.device)
        else:
            source = MapSource(self._recipe, self.device, self._total_epochs)
        self._source = source
        rates = Rates(optimizer)
        replica, averager = prepared.hold(Progress(Position(self._environment.seed)), source.size, rates, self.device)
        worker_id, together = self._environment.worker_id, averager.together
        guard, headroom = guarded(prepared.model, self.device, self._pacer, worker_id, self._link, together=together)
        training = Training(
            self._participation,
            self._link,
            self._keeper,
            replica,
            averager,
            source,
            clock_of(self.device),
            self.device,
            self._pacer,
            headroom,
            rates,
            prepared.scaler,
        )
        guard.passes = training
        self._replica, self._training, self._gate.training = replica, training, training
        self._evaluation = SharedEvaluation(self._participation, replica, self.device)
        self._lifetime.begins_training(training, replica, self._total_epochs)
        length = self._recipe.length
        samples, adaptive = length * self._total_epochs, is_adaptive(optimizer)
        ready = Ready(dataset_size=length, total_samples=samples, adaptive=adaptive, equal_passes=together)
        self._link.begin(self._recipe.batch_size, ready)
        return training, replica


def _checked_weight(weight: float | Tensor) -> float:
    units = float(weight)
    if not math.isfinite(units) or units < 0:
        raise UsageError(f"session.backward: weight is {units}; it counts units (tokens, boxes, ...), 0 or more")
    return units
