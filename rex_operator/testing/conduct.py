"""Checks of how a policy behaves: openly, repeatably, on evidence, and when a worker becomes slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rex_operator.planning import PlannerState
from rex_operator.planning.policies import About, Adoption, Policy, Rebalance, Rung, Scene
from rex_operator.planning.search import SearchRequest
from rex_operator.planning.trial import Look, Trial
from rex_operator.planning.verdict import Judgement
from rex_operator.planning.windows import GroupStep
from rex_operator.simulation.job import Job
from rex_operator.testing.scenes import ALIKE, Make, demand, job, spec, train


def says_what_it_is(make: Make) -> None:
    """Name, reference and rule are told, and a policy changes nothing that it does not say it changes."""
    about = make().about
    for field in ("name", "title", "reference", "rule"):
        demand(getattr(about, field).strip(), f"About.{field} is empty")
    running = train(job(make), 300)
    first = running.drafts[0]
    other = {d.global_batch for d in running.drafts} - {first.global_batch}
    demand("batch" in about.changes or not other, f"batches {sorted(other)} were run, and About.changes lacks 'batch'")
    moved = [d for d in running.planner.decisions if d.kind == "rebalanced"]
    demand("shares" in about.changes or not moved, "shares were moved, and About.changes lacks 'shares'")


def deterministic(make: Make) -> None:
    """The same job twice, with the same seed: the same plans and decisions."""
    first, second = (train(job(make, seed=3), 250) for _ in range(2))
    demand(first.drafts == second.drafts, "two runs of one job had different plans")
    demand(
        list(first.planner.decisions) == list(second.planner.decisions), "two runs of one job told different reasons"
    )


class _Watched:
    """A policy whose scenes are compared before and after each question."""

    about: ClassVar[About]

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.about = policy.about  # type: ignore[misc]

    def restarted(self) -> None:
        self._policy.restarted()

    def shares(self, scene: Scene, batch: int, accumulation: int) -> dict[str, int]:
        before = _picture(scene)
        answer = self._policy.shares(scene, batch, accumulation)
        _unchanged("shares", before, scene)
        return answer

    def passes(self, scene: Scene, shares: Mapping[str, int], accumulation: int) -> dict[str, int]:
        before = _picture(scene)
        answer = self._policy.passes(scene, shares, accumulation)
        _unchanged("passes", before, scene)
        return answer

    def rebalance(self, scene: Scene) -> Rebalance | None:
        before = _picture(scene)
        answer = self._policy.rebalance(scene)
        _unchanged("rebalance", before, scene)
        return answer

    def adopt(self, scene: Scene) -> Adoption | None:
        before = _picture(scene)
        answer = self._policy.adopt(scene)
        _unchanged("adopt", before, scene)
        return answer

    def search(self, scene: Scene, number: int) -> SearchRequest | None:
        before = _picture(scene)
        answer = self._policy.search(scene, number)
        _unchanged("search", before, scene)
        return answer

    def climb(self, scene: Scene, trial: Trial) -> Rung | None:
        before = _picture(scene)
        answer = self._policy.climb(scene, trial)
        _unchanged("climb", before, scene)
        return answer

    def due(self, trial: Trial, steps: Sequence[GroupStep]) -> Look | None:
        return self._policy.due(trial, steps)

    def judge(self, trial: Trial, look: Look, steps: Sequence[GroupStep]) -> Judgement:
        return self._policy.judge(trial, look, steps)


def _picture(scene: Scene) -> tuple[object, ...]:
    shares = dict(scene.running.local_batches) if scene.running is not None else None
    sums = float(sum(step.compute_s.sum() + step.step_s for step in scene.steps))
    return scene.devices.state(), scene.cooldown.state(), shares, len(scene.steps), sums


def _unchanged(question: str, before: tuple[object, ...], scene: Scene) -> None:
    demand(_picture(scene) == before, f"{question} changed the scene that it was given")


def only_looks(make: Make) -> None:
    """A policy changes nothing in the scene that it is shown."""
    train(job(lambda: _Watched(make())), 200)


def saved_state(make: Make) -> None:
    """Planning goes on from what was kept: the same batch, nothing forgotten, nothing refused."""
    running = train(job(make), 250)
    kept = PlannerState.model_validate_json(running.planner.state().model_dump_json())
    again = job(make, seed=1, saved=kept)
    batch, told = again.drafts[-1].global_batch, [d.reason for d in again.planner.decisions]
    demand(batch == kept.global_batch, f"batch {batch} goes on from {kept.global_batch}")
    demand(told[: len(kept.decisions)] == [d.reason for d in kept.decisions], "kept decisions are forgotten")
    train(again, 150)


def keeps_shares_on_noise(make: Make) -> None:
    """Equal devices and noise, correlated from step to step: no shares move."""
    running = train(job(make, ALIKE, noise=0.02, correlation=0.5), 600)
    moved = [d.reason for d in running.planner.decisions if d.kind == "rebalanced"]
    demand(not moved, f"equal devices, and yet: {moved[0] if moved else ''}")


class _Level:
    """A device that takes the same time per sample at any size, so that no batch has more throughput than another."""

    kind, most = "level", None

    def seconds(self, samples: float) -> float:
        return 0.0012 * samples


def keeps_batch_on_noise(make: Make) -> None:
    """Where no batch is better than the one that runs, it is kept.

    All have the same throughput, and the gradients have so little noise that a larger one would only waste samples.
    """
    wanted = spec(low=64, objective="throughput")
    for seed in range(2):
        running = job(
            make, (_Level(),) * 4, wanted, seed=seed, correlation=0.5, overhead_s=0.0, noise_scale=lambda _: 8.0
        )
        train(running, 500)
        kept = [d.reason for d in running.planner.decisions if d.kind in ("accepted", "adopted")]
        demand(not kept, f"no batch is better, and yet: {kept[0] if kept else ''}")


def follows_a_slow_worker(make: Make) -> None:
    """A worker that becomes twice as slow gets less, and more again when it recovers."""
    running = train(job(make, ALIKE, spec(initial=128)), 200)
    before = _part(running, "w1")
    running.slow["w1"] = 2.0
    train(running, 400)
    during = _part(running, "w1")
    demand(
        during < 0.8 * before, f"w1 took twice as long for 400 steps; its part went from {before:.3f} to {during:.3f}"
    )
    running.slow.clear()
    train(running, 400)
    after = _part(running, "w1")
    demand(after > 1.15 * during, f"w1 had recovered for 400 steps; its part went from {during:.3f} to {after:.3f}")


def _part(running: Job, worker: str) -> float:
    plan = running.drafts[-1]
    return plan.local_batches[worker] / plan.global_batch
