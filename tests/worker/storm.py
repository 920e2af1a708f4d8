"""Random elastic events on real worker processes, as an operator would meet and answer them.

Everything that may happen to a group happens here: plans change, workers join, leave, are told to go, die or freeze,
rank 0 like any other, two at once, one while another joins. Which, when and to whom is drawn from a seed. The global
batch stays the same, so that the run must end with the parameters of a plain loop that nothing ever happened to.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import torch
from torch import nn

from rex_worker.protocol import Drain, Leaving
from rex_worker.sampler import permutation
from tests.worker import ledger_script
from tests.worker.ledger import SCRIPT, Ledgers
from tests.worker.operator_double import Operator, Worker, make_plan

SAMPLES = 503
GLOBAL_BATCH = 60
SEED = 7
"""The job's, as the scripted operator sets it."""
WEIGHTS = 11
_MOST = 5
_RUN = {"REX_EMULATE": "1", "EPOCHS": "1000000", "SAMPLES": str(SAMPLES), "WEIGHTS": str(WEIGHTS)}


class Storm:
    """A job of one to five workers, and what happens to it."""

    script = SCRIPT
    environment: Mapping[str, str] = {"REX_EMULATE_SCALE": "0.3"}
    rtol, atol = 1e-9, 1e-11
    """How near the end must be to that of the plain loop."""

    def __init__(self, rex: Operator, ledgers: Ledgers, seed: int) -> None:
        self._rex = rex
        self._ledgers = ledgers
        self._random = random.Random(seed)
        self._generation = 0
        self._version = 0
        self._lives = 0
        self._group: list[Worker] = []
        self._gone: list[Worker] = []
        self.told: list[str] = []
        """What happened, in order."""

    async def begin(self, workers: int = 3) -> None:
        """Start the first group."""
        self._group = [await self._start(f"w{place}") for place in range(workers)]
        await self._form(self._group)

    async def strike(self) -> None:
        """Let one thing happen, and wait until the job trains on."""
        events: list[Callable[[], Awaitable[None]]] = [self._new_plan]
        if len(self._group) < _MOST:
            events += [self._join, self._join_while_one_dies]
        if len(self._group) > 1:
            events += [self._leave, self._told_to_go, self._kill_rank_0, self._kill_any, self._freeze]
        if len(self._group) > 2:
            events += [self._kill_two]
        event = self._random.choice(events)
        self.told.append(event.__name__.strip("_"))
        await event()
        await self._step_on()

    async def end(self) -> None:
        """Let the training end, and check all of it."""
        self._ledgers.enough()
        assert await self._rex.ended(*self._group) == [0] * len(self._group)
        self._ledgers.check_exactly_once(SAMPLES)
        (step,) = {entry["step"] for entry in self._ledgers.kind("end")}
        undisturbed = plain_parameters(step, *self.beginning())
        for entry in self._ledgers.kind("end"):
            found = torch.tensor(entry["parameters"], dtype=torch.float64)
            torch.testing.assert_close(found, undisturbed, rtol=self.rtol, atol=self.atol)

    def kept(self) -> Mapping[str, str]:
        """Environment about checkpoints."""
        return {}

    def beginning(self) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
        """Data, model and optimiser as the script makes them."""
        ledger_script.SIZE, ledger_script.DTYPE = SAMPLES, torch.float64
        model = ledger_script.build(WEIGHTS, torch.float64)
        return ledger_script.Numbered(), model, torch.optim.Adam(model.parameters(), lr=1e-3)

    # --- events -----------------------------------------------------------------------------------------------------

    async def _new_plan(self) -> None:
        self._version += 1
        shares, most = self._shares(self._group), self._random.choice([1, 1, 2, 3])
        own = {worker_id: self._random.randint(1, most) for worker_id in shares}
        plan = make_plan(self._generation, self._version, shares, accumulation=most, passes=own)
        await self._rex.send(plan, *self._group)
        await self._rex.acknowledged(self._version, *self._group)

    async def _join(self) -> None:
        await self._form([*self._group, await self._start(self._free_name())])

    async def _leave(self) -> None:
        leaver = self._random.choice(self._group)
        await self._rex.send(Drain(reason="smaller"), leaver)
        await self._let_go(leaver)

    async def _told_to_go(self) -> None:
        leaver = self._random.choice(self._group)
        leaver.signal(signal.SIGTERM)
        await self._rex.until("Leaving", lambda: bool(leaver.said(Leaving)))
        await self._let_go(leaver)

    async def _let_go(self, leaver: Worker) -> None:
        stay = [worker for worker in self._group if worker is not leaver]
        await self._form(stay, leaver)
        assert await self._rex.ended(leaver) == [0]

    async def _kill_rank_0(self) -> None:
        await self._kill(self._group[:1])

    async def _kill_any(self) -> None:
        await self._kill([self._random.choice(self._group)])

    async def _kill_two(self) -> None:
        await self._kill(self._random.sample(self._group, 2))

    async def _kill(self, victims: list[Worker]) -> None:
        await self._die(victims)
        await self._form([worker for worker in self._group if worker not in victims])

    async def _join_while_one_dies(self) -> None:
        newcomer = await self._start(self._free_name())
        if len(self._group) > 1:
            victim = self._random.choice(self._group)
            await self._die([victim])
            self._group.remove(victim)
        await self._form([*self._group, newcomer])

    async def _freeze(self) -> None:
        frozen = self._random.choice(self._group)
        frozen.signal(signal.SIGSTOP)
        await self._form([worker for worker in self._group if worker is not frozen])
        await self._die([frozen])

    async def _die(self, victims: list[Worker]) -> None:
        # The survivors notice it within a step, or, where they wait for each other, with the next membership.
        for victim in victims:
            victim.signal(signal.SIGKILL)
        assert await self._rex.ended(*victims) == [-signal.SIGKILL] * len(victims)

    # --- the operator's part ----------------------------------------------------------------------------------------

    async def _start(self, name: str) -> Worker:
        self._lives += 1
        reading = str(self._lives % 2)  # every other worker has a process that reads ahead, if its script can
        run = {**_RUN, "NUM_WORKERS": reading, **self.environment, **self.kept()}
        worker = await self._rex.start(name, self.script, **self._ledgers.variables(f"{name}-{self._lives}", **run))
        await self._rex.ready(worker)
        return worker

    def _free_name(self) -> str:
        taken = {worker.worker_id for worker in self._group}
        return next(f"w{place}" for place in range(_MOST + 1) if f"w{place}" not in taken)

    async def _form(self, workers: list[Worker], *also: Worker) -> None:
        self._generation += 1
        self._version += 1
        self._group = self._random.sample(workers, len(workers))  # ranks are anybody's
        shares = self._shares(self._group)
        await self._rex.form(self._generation, shares, *also, version=self._version, collective_timeout_s=60)
        await self._rex.acknowledged(self._version, *self._group)

    def _shares(self, workers: list[Worker]) -> Mapping[str, int]:
        cuts = sorted(self._random.sample(range(1, GLOBAL_BATCH), len(workers) - 1))
        ends = zip([0, *cuts], [*cuts, GLOBAL_BATCH], strict=True)
        return {worker.worker_id: end - start for worker, (start, end) in zip(workers, ends, strict=True)}

    async def _step_on(self) -> None:
        step = max(worker.last_step for worker in self._group)
        await self._rex.reached(step + self._random.randint(1, 12), *self._group)


def plain_parameters(steps: int, data: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Parameters of the same training in a plain loop, after so many steps: shape (parameters,), float64."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    done, epoch = 0, 0
    while done < steps:
        for rows in torch.split(torch.from_numpy(permutation(SEED, epoch, SAMPLES)), GLOBAL_BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(data.x[rows]), data.y[rows]))
            optimizer.step()
            done += 1
            if done == steps:
                break
        else:
            scheduler.step()
        epoch += 1
    return nn.utils.parameters_to_vector(model.parameters()).detach()
