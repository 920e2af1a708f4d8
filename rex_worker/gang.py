"""The links of workers that a launcher has started: one leads the planner along, the others follow; or nobody plans."""

from __future__ import annotations

import json
import logging
import subprocess
import time

from torch._C._distributed_c10d import Store

from rex_worker.channel import Introduction, Standing
from rex_worker.directives import Directives
from rex_worker.environment import Environment
from rex_worker.errors import ConfigurationError, RexError
from rex_worker.link import OperatorLink
from rex_worker.patience import pauses
from rex_worker.protocol import GroupLost, Member, Membership, Message, Plan, Ready, StepReport

log = logging.getLogger("rex.standalone")

JOB_FAILED = 3
"""Exit code of a planner whose job has failed."""
_GOODBYE_S = 5.0
"""How long rank 0 waits for its planner to write down the end; one that still serves others is left to them."""


class LedLink(OperatorLink):
    """Rank 0's link: its planner runs beside it, and learns from it when to begin."""

    def __init__(
        self, environment: Environment, introduction: Introduction, planner: subprocess.Popen[str], store: Store
    ) -> None:
        super().__init__(environment, introduction)
        self._store = store  # held, as it may be this process that serves it for the ranks that are still to come
        self._planner: subprocess.Popen[str] | None = planner

    def begin(self, batch_size: int, ready: Ready) -> None:
        """Tell the planner what the script asked for, then that this worker is ready."""
        assert self._planner is not None and self._planner.stdin is not None  # noqa: S101
        begin = {"batch_size": batch_size, "dataset_size": ready.dataset_size}
        try:
            self._planner.stdin.write(json.dumps(begin) + "\n")
            self._planner.stdin.flush()
        except OSError:
            raise ConfigurationError("the planner has ended before the training began; see what it said") from None
        super().begin(batch_size, ready)

    def close(self, timeout: float) -> bool:
        """Hang up and let the planner end. Raises ``RexError`` when it has ended the job as failed."""
        said = super().close(timeout)
        planner, self._planner = self._planner, None
        if planner is None or planner.stdin is None or planner.stdout is None:
            return said
        planner.stdin.close()
        planner.stdout.close()
        try:
            code = planner.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            return said
        if code == JOB_FAILED:
            raise RexError("the planner ended the job; what it said stands above, after 'rex planner:'")
        if code:
            log.warning("the planner was lost (exit code %d); the training went on under its last plan", code)
        return said


class EvenLink:
    """Nobody plans: the workers meet in the launcher's store and keep the shares that their scripts asked for."""

    alone = False

    def __init__(
        self, environment: Environment, introduction: Introduction, store: Store, rank: int, size: int
    ) -> None:
        self.directives = Directives()
        self.standing = Standing()
        self._environment, self._introduction = environment, introduction
        self._store, self._rank, self._size = store, rank, size

    def begin(self, batch_size: int, ready: Ready) -> None:
        """Form the one group that there will be."""
        me, port = self._environment, self._introduction.store_port
        mine = {"id": me.worker_id, "address": me.address, "port": port, "batch": batch_size}
        self._store.set(str(self._rank), json.dumps(mine))
        everybody = [json.loads(self._read(str(rank))) for rank in range(self._size)]
        members = [
            Member(worker_id=one["id"], incarnation=me.incarnation, address=one["address"], store_port=one["port"])
            for one in everybody
        ]
        shares = {one["id"]: one["batch"] for one in everybody}
        plan = Plan(generation=1, version=1, global_batch=sum(shares.values()), local_batches=shares)
        self.directives.receive(Membership(generation=1, members=members, plan=plan))

    def _read(self, key: str) -> bytes:
        for pause in pauses():
            if self._store.check([key]):
                break
            time.sleep(pause)
        return self._store.get(key)

    def send(self, message: Message) -> None:
        """Nobody listens. Raises ``RexError`` for the loss of the group, which nobody can form anew."""
        if isinstance(message, GroupLost):
            raise RexError(
                f"a worker was lost after step {message.step}, and without a planner the others cannot go on; start all"
                " of them again (torchrun --max-restarts does), and set REX_CHECKPOINT_DIR to go on from a checkpoint"
            )

    def report(self, generation: int, report: StepReport) -> None:
        """Nobody listens."""

    def close(self, timeout: float) -> bool:
        """Nothing is open."""
        return True
