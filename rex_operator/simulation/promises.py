"""What must hold of every plan, whichever policy made it; a simulation stops at the first one that breaks it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rex_operator.api.spec import BatchRange
from rex_operator.planning import PlanDraft


class BrokenPromise(AssertionError):
    """A plan that no worker may ever get; the message says which promise it breaks."""


def check(draft: PlanDraft, bounds: BatchRange, ceilings: Mapping[str, int | None]) -> None:
    """Raise ``BrokenPromise`` unless the plan shares its whole batch among exactly these workers, within all bounds.

    ``ceilings``: declared samples per micro-batch of each worker; None: any. (I7)
    """
    shares, least = draft.local_batches, bounds.min_share
    if set(shares) != set(ceilings):
        raise BrokenPromise(f"the plan is for {sorted(shares)}, the group is {sorted(ceilings)}")
    if sum(shares.values()) != draft.global_batch:
        raise BrokenPromise(f"shares {dict(shares)} sum to {sum(shares.values())}, not to {draft.global_batch}")
    if not bounds.min <= draft.global_batch <= bounds.max:
        raise BrokenPromise(f"batch {draft.global_batch} is outside {bounds.min}..{bounds.max}")
    if min(shares.values()) < (1 if least == 1 else least * draft.accumulation):
        raise BrokenPromise(f"a share of {dict(shares)} is below {least} in each of {draft.accumulation} passes")
    for worker, ceiling in ceilings.items():
        if ceiling is not None and math.ceil(shares[worker] / draft.accumulation) > ceiling:
            raise BrokenPromise(f"{worker} gets {shares[worker]} in {draft.accumulation} passes and holds {ceiling}")
