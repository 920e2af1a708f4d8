"""The checks for policies find what they are there for, and say it in a sentence."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest

from rex_operator.planning.policies import About, Adoption, Base, Policy, Rebalance, Scene
from rex_operator.planning.split import even_split
from rex_operator.testing import check_policy, checks
from rex_operator.testing.policies import ALL


class Mine(Base):
    """A sound policy of somebody's own; the broken ones differ from it by their fault."""

    about: ClassVar[About] = About("mine", "Mine", "nowhere", "Equal shares.", changes=("shares", "batch"))

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        return even_split(scene.ceilings(), batch, accumulation, scene.spec.batch.min_share)


class LosesASample(Mine):
    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        shares = super().shares(scene, batch, accumulation)
        first = next(iter(shares))
        return {**shares, first: max(1, shares[first] - 1)}


class InFractions(Mine):
    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        return {w: float(share) for w, share in super().shares(scene, batch, accumulation).items()}  # type: ignore[misc]


class BlindToMemory(Mine):
    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        return even_split(dict.fromkeys(scene.ceilings()), batch, accumulation, scene.spec.batch.min_share)


class BlindToLeastShare(Mine):
    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        names = [w.worker_id for w in scene.workers]
        return {**dict.fromkeys(names, 1), names[0]: batch - len(names) + 1}


class Unnamed(Mine):
    about: ClassVar[About] = dataclasses.replace(Mine.about, reference=" ")


class Silent(Mine):
    """Takes another batch and does not say that it does."""

    about: ClassVar[About] = dataclasses.replace(Mine.about, changes=("shares",))

    def adopt(self, scene: Scene) -> Adoption | None:
        return Adoption(96, 1, "Because.")


class Moody(Mine):
    """Remembers more than one job: two runs differ."""

    moods = itertools.count(100)

    def adopt(self, scene: Scene) -> Adoption | None:
        return Adoption(next(self.moods), 1, "I feel like it.") if len(scene.steps) >= 10 else None


class Meddler(Mine):
    def rebalance(self, scene: Scene) -> Rebalance | None:
        scene.devices.out_of_memory(scene.workers[0], 400)
        return None


class Restless(Mine):
    """Takes any difference between two workers for one that lasts."""

    def rebalance(self, scene: Scene) -> Rebalance | None:
        plan = scene.running
        if plan is None or not scene.steps:
            return None
        times = np.mean([s.compute_s for s in scene.steps[-10:]], axis=0)
        slow, fast = scene.names[int(times.argmax())], scene.names[int(times.argmin())]
        shares = dict(plan.local_batches)
        if slow == fast or shares[slow] < 2:
            return None
        shares[slow], shares[fast] = shares[slow] - 1, shares[fast] + 1
        return Rebalance(shares, slow, float(times.max() / times.min()))


class Greedy(Mine):
    def adopt(self, scene: Scene) -> Adoption | None:
        plan = scene.running
        return Adoption(2 * plan.global_batch, 1, "More is more.") if plan and plan.global_batch < 256 else None


FAULTS: list[tuple[type[Policy], str, str]] = [
    (LosesASample, "any-batch", "sum to"),
    (InFractions, "sums-and-bounds", "whole numbers"),
    (BlindToMemory, "declared-ceilings", "holds 18"),
    (BlindToLeastShare, "least-share", "below 6"),
    (Unnamed, "says-what-it-is", "About.reference is empty"),
    (Silent, "says-what-it-is", r"batches \[96\] were run, and About.changes lacks 'batch'"),
    (Moody, "deterministic", "different plans"),
    (Meddler, "only-looks", "rebalance changed the scene"),
    (Restless, "keeps-shares-on-noise", "equal devices, and yet"),
    (Greedy, "keeps-batch-on-noise", "More is more"),
    (Mine, "follows-a-slow-worker", "w1 took twice as long"),
]


@pytest.mark.parametrize(("policy", "name", "sentence"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_told_in_a_sentence(policy: type[Policy], name: str, sentence: str) -> None:
    check = next(check for check in checks(policy) if check.name == name)
    with pytest.raises(AssertionError, match=f"policy 'mine' fails {name}: .*{sentence}"):
        check()


def test_a_crash_is_told_with_its_error() -> None:
    class Crashes(Mine):
        def rebalance(self, scene: Scene) -> Rebalance | None:
            raise ZeroDivisionError("oops")

    with pytest.raises(AssertionError, match=r"policy 'mine' fails .* with ZeroDivisionError\('oops'\)"):
        check_policy(Crashes)


def test_a_policy_that_moves_no_shares_need_not_follow_and_one_that_is_exempt_is_let_off() -> None:
    class Fixed(Mine):
        about: ClassVar[About] = dataclasses.replace(Mine.about, changes=(), exempt={"least-share": "by its paper"})

    names = {check.name for check in checks(Fixed)}
    assert names == set(ALL) - {"follows-a-slow-worker", "least-share"}


def test_an_exemption_from_nothing_is_a_mistake() -> None:
    class Misspelt(Mine):
        about: ClassVar[About] = dataclasses.replace(Mine.about, exempt={"least_share": "by its paper"})

    with pytest.raises(AssertionError, match="least_share"):
        checks(Misspelt)


def test_every_check_says_what_it_demands() -> None:
    assert all(check.demand.endswith(".") for check in checks(Mine))
