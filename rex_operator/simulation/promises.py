"""What must hold of every plan, whichever policy made it; a simulation stops at the first one that breaks it."""

from __future__ import annotations

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
    for worker, passes in draft.passes.items():
        if worker not in shares or not 1 <= passes < draft.accumulation:
            raise BrokenPromise(f"{passes} passes of {worker}: not of this group, or not 1 to {draft.accumulation - 1}")
    for worker, ceiling in ceilings.items():
        share, passes = shares[worker], draft.passes_of(worker)
        if share < (1 if least == 1 else least * passes):
            raise BrokenPromise(f"{worker} gets {share} samples, below {least} in each of {passes} passes")
        if ceiling is not None and draft.micro_batch(worker) > ceiling:
            raise BrokenPromise(f"{worker} gets {share} in {passes} passes and holds {ceiling}")
