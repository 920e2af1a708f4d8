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

Under an operator the plan decides how large the batches are, members come and go, and the loop goes on; without one
(``REX_CHANNEL_URL`` unset) the same script trains in this single process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from rex_worker.agreement import VOTE_NUMBERS
from rex_worker.averaging import GradientAverager
from rex_worker.buffers import check_layers
from rex_worker.channel import Introduction
from rex_worker.checkpoint import CheckpointFolder
from rex_worker.devices import Pacer, find_device, memory_bytes, profile_of
from rex_worker.environment import Environment
from rex_worker.errors import UsageError
from rex_worker.evaluation import SharedEvaluation
from rex_worker.gate import LateGate
from rex_worker.keeping import Keeper
from rex_worker.lifetime import Lifetime, log_to_stderr
from rex_worker.link import AloneLink, Link, OperatorLink
from rex_worker.loader import ElasticLoader, Fetch, checked_size
from rex_worker.meeting import Meeting
from rex_worker.optimizer import ElasticOptimizer, ElasticScheduler
from rex_worker.participation import Participation
from rex_worker.protocol import Metrics, Plan, Ready
from rex_worker.replica import Progress, Replica
from rex_worker.sampler import EpochOrder, Position
from rex_worker.timing import clock_of
from rex_worker.training import Training

log = logging.getLogger("rex")

_MAX_METRICS = 16

ModelT = TypeVar("ModelT", bound=torch.nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT")


def init() -> Session:
    """Open this process's session; use it as a context manager around the whole training.

    Raises:
        ConfigurationError: The environment that the worker was started with cannot work.
    """
    return Session(Environment.read())


class Session:
    """This process's part in the training of a job."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
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
        if environment.channel_url is None:
            self._link = AloneLink(environment)
        else:
            log_to_stderr(environment.worker_id)
            meeting = Meeting(environment.address, self.device)
            self._link = OperatorLink(environment, Introduction(memory_bytes(self.device), meeting.port))
        self._keeper = Keeper(self._folder, environment.checkpoint_every, self._link)
        self._participation = Participation(environment, self._link, self.device, meeting, self._keeper.flush)
        self._lifetime = Lifetime(self._link, self._participation, self._keeper)
        self._gate = LateGate()
        self._prepared: tuple[torch.nn.Module, Optimizer, Any] | None = None
        self._loader: ElasticLoader | None = None
        self._batch_size = 0
        self._training: Training | None = None
        self._replica: Replica | None = None
        self._total_epochs = 0

    def __enter__(self) -> Self:
        self._lifetime.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lifetime.end(error)

    # --- the five lines -------------------------------------------------------------------------------------------

    @overload
    def prepare(self, model: ModelT, optimizer: OptimizerT) -> tuple[ModelT, OptimizerT]: ...

    @overload
    def prepare(
        self, model: ModelT, optimizer: OptimizerT, scheduler: SchedulerT
    ) -> tuple[ModelT, OptimizerT, SchedulerT]: ...

    def prepare(self, model: torch.nn.Module, optimizer: Optimizer, scheduler: Any = None) -> Any:
        """Take the model and its optimiser (and a learning-rate scheduler) into the session.

        The model is moved to ``session.device`` and is otherwise the same object; the optimiser (and scheduler) that
        comes back stands for the old one in the loop, with its methods, state and groups.
        """
        if self._prepared is not None:
            raise UsageError("session.prepare was called before; a session trains one model")
        check_layers(model)
        model.to(self.device)
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise UsageError("the optimizer holds parameters that are not the model's; they would not be averaged")
        self._prepared = (model, optimizer, scheduler)
        wrapped = ElasticOptimizer(optimizer, self._gate)
        return (model, wrapped) if scheduler is None else (model, wrapped, ElasticScheduler(scheduler, self._gate))

    def loader(
        self,
        dataset: Any,
        batch_size: int = 32,
        *,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        threads: int = 0,
    ) -> ElasticLoader:
        """Return the iterable of batches.

        Args:
            dataset: Map-style: ``len(dataset)`` samples, ``dataset[i]``.
            batch_size: Used only when no operator plans the batches.
            collate: Makes a batch of a list of samples; torch's ``default_collate`` if absent.
            threads: Read the samples of a batch with so many threads.
        """
        if self._loader is not None:
            raise UsageError("session.loader was called before; a session trains on one dataset")
        checked_size(dataset)
        if batch_size < 1:
            raise UsageError(f"session.loader: batch_size is {batch_size}; it must be at least 1")
        self._batch_size = batch_size
        self._loader = ElasticLoader(self._batches, dataset, collate, threads, self.device)
        return self._loader

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

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of ``loss``, the mean over the batch at hand; takes ``loss.backward()``'s place.

        After the last batch of a step, the parameters' ``grad`` are those of the mean over the whole global batch.
        """
        self._running().backward(loss)

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the step's gradients down to a norm of at most ``max_norm``; between ``backward`` and ``step``.

        Acts on the averaged gradients of the whole step, so only with its last micro-batch.
        """
        self._running().clip_gradients(max_norm)

    def totals(self, dataset: Any, judge: Callable[[Any], Sequence[float]], batch_size: int = 256) -> list[float]:
        """Sum figures over a dataset, each sample once, the work shared out over the group. Every worker must call it.

        Args:
            dataset: Map-style; the samples to judge.
            judge: Takes a collated batch, returns figures that add up over samples, such as counts of correct answers.
                Whole numbers come out the same to the last digit for any number of workers.
            batch_size: Samples per call of ``judge``; as many as memory allows.

        Returns:
            The sums, on every worker.
        """
        reader = ElasticLoader(self._batches, dataset, None, 0, self.device)
        self._running()
        return self._evaluation.totals(reader, judge, batch_size)

    # --- beside the loop --------------------------------------------------------------------------------------------

    def report(self, **values: float) -> None:
        """Report figures of the script, such as ``accuracy=0.97``; rank 0's count, others' are dropped."""
        numbers = {name: float(value) for name, value in values.items()}
        for name in [name for name, value in numbers.items() if not math.isfinite(value)]:
            log.warning("session.report: %s is %s and is left out", name, numbers.pop(name))
        if len(numbers) > _MAX_METRICS:
            raise UsageError(f"session.report takes at most {_MAX_METRICS} figures at once, got {len(numbers)}")
        if numbers and self.is_main:
            self._link.send(Metrics(step=self.step, samples=self.samples, values=numbers))

    def stop(self) -> None:
        """End the training early, on all workers, after the next step."""
        self._participation.finish_early()

    @property
    def is_main(self) -> bool:
        """Whether this is the group's rank 0; in a job False until the first group has formed."""
        term = self._participation.last
        return self._link.alone if term is None else term.group.rank == 0

    @property
    def rank(self) -> int:
        """This worker's place in its present group, or in the last one."""
        term = self._participation.last
        return 0 if term is None else term.group.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the present group, or in the last one."""
        term = self._participation.last
        return 1 if term is None else term.group.size

    @property
    def plan(self) -> Plan | None:
        """The plan that the group runs under; None before the first group."""
        term = self._participation.last
        return None if term is None else term.plan

    @property
    def step(self) -> int:
        """Optimiser steps applied."""
        return 0 if self._replica is None else self._replica.step

    @property
    def samples(self) -> int:
        """Samples applied by all workers together."""
        return 0 if self._replica is None else self._replica.progress.samples

    @property
    def loss(self) -> float:
        """Mean loss over the last step's global batch."""
        return math.nan if self._training is None else self._training.loss

    @property
    def batch_weight(self) -> float:
        """What the batch at hand counts in the mean over the step's global batch; 0 for one that only fills in.

        A worker without a share in an epoch's short last step is given such a batch. A script that keeps its own
        averages over batches weighs with this.
        """
        return 0.0 if self._training is None else self._training.batch_weight

    # --- inside -----------------------------------------------------------------------------------------------------

    def _batches(self, fetch: Fetch) -> Iterator[Any]:
        return self._running().batches(fetch)

    def _running(self) -> Training:
        if self._training is None:
            raise UsageError("training has not begun: loop over session.epochs(...) first")
        return self._training

    def _start(self) -> tuple[Training, Replica]:
        if self._prepared is None or self._loader is None:
            missing = "session.prepare(model, optimizer)" if self._prepared is None else "session.loader(dataset)"
            raise UsageError(f"call {missing} before session.epochs(...)")
        model, optimizer, scheduler = self._prepared
        size = self._loader.size
        replica = Replica(model, optimizer, scheduler, Progress(Position(self._environment.seed)), size)
        training = Training(
            self._participation,
            self._link,
            self._keeper,
            replica,
            GradientAverager(model.named_parameters(), VOTE_NUMBERS, cargo=replica.statistics.cargo),
            EpochOrder(size, pairs=replica.statistics.needs_pairs),
            clock_of(self.device),
            self.device,
            self._pacer,
        )
        self._replica, self._training, self._gate.training = replica, training, training
        self._evaluation = SharedEvaluation(self._participation, replica)
        self._lifetime.begins_training(training, replica, self._total_epochs)
        if isinstance(self._link, AloneLink):
            self._link.found(self._batch_size)
        else:
            ready = Ready(dataset_size=size, total_samples=size * self._total_epochs)
            self._link.standing.ready = ready
            self._link.send(ready)
        return training, replica
