"""Records as a run writes them: a plausible one, drawn from a small model of four unlike devices."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DEVICES = {"w0": ("a100", 0.0003), "w1": ("a100", 0.0003), "w2": ("v100", 0.0005), "w3": ("t4", 0.0011)}
BASE_S = 0.004
DATASET = 1437


def write(folder: Path, lines: Iterable[dict[str, Any] | str | bytes]) -> Path:
    """Write a record into a folder; text and bytes go in as they are."""
    with (folder / "record.jsonl").open("wb") as file:
        for line in lines:
            raw = json.dumps(line) if isinstance(line, dict) else line
            file.write((raw.encode() if isinstance(raw, str) else raw) + b"\n")
    return folder


class Run:
    """A little training run that writes itself down."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.lines: list[dict[str, Any]] = []
        self.t, self.step, self.samples, self.version = 1.2, 0, 0, 0
        self.local: dict[str, int] = {}
        self.devices = {worker: device for worker, (device, _) in DEVICES.items()}
        self.say("start", job="digits", devices=self.devices, resumed=False)
        self.say("event", event="started", message="4 workers (a100, a100, v100, t4) started")

    def say(self, kind: str, **fields: Any) -> None:
        self.lines.append({"t": round(self.t, 3), "kind": kind, **fields})

    def plan(self, local: dict[str, int]) -> None:
        self.version += 1
        self.local = local
        batch = sum(local.values())
        self.say("plan", generation=1, version=self.version, global_batch=batch, accumulation=1, local_batches=local)

    def train(self, steps: int) -> None:
        batch = sum(self.local.values())
        for _ in range(steps):
            self.step += 1
            self.samples += batch
            compute = {
                w: (BASE_S + DEVICES[w][1] * share) * self.random.lognormvariate(0, 0.05)
                for w, share in self.local.items()
            }
            took = max(compute.values()) + 0.003
            self.t += took
            noise = 90 + 0.03 * self.samples / 10
            efficiency = (noise + 64) / (noise + batch)
            self.say(
                "step",
                step=self.step,
                samples=self.samples,
                epoch=self.samples // DATASET,
                version=self.version,
                global_batch=batch,
                local_batches=self.local,
                compute_s=compute,
                wait_s={w: took - 0.003 - value for w, value in compute.items()},
                comm_s=dict.fromkeys(compute, 0.003),
                step_s=took,
                loss=2.3 * math.exp(-self.samples / 6000) * self.random.lognormvariate(0, 0.2) + 0.03,
                samples_per_s=batch / took,
                goodput=batch / took * efficiency,
                noise_scale=noise,
            )
            if self.step % 20 == 0:
                accuracy = 0.975 - 0.875 * math.exp(-self.samples / 5000) + self.random.gauss(0, 0.003)
                self.say("metrics", step=self.step, samples=self.samples, values={"accuracy": min(1.0, accuracy)})

    def decide(self, verdict: str, before: dict[str, int], after: dict[str, int], reason: str, **more: Any) -> None:
        def shape(local: dict[str, int]) -> dict[str, Any]:
            return {
                "global_batch": sum(local.values()),
                "accumulation": 1,
                "local_batches": local,
                "learning_rate_factor": 1.0,
            }

        body = {"time_s": self.t, "step": self.step, "samples": self.samples, "kind": verdict, "reason": reason}
        self.say("decision", decision={**body, "plan_from": shape(before), "plan_to": shape(after), **more})


def evidence(p_better: float, p_worse: float, effect: float, half: float, a12: float, trial: int) -> dict[str, Any]:
    return {
        "p_better": p_better,
        "p_worse": p_worse,
        "effect": effect,
        "interval": [effect - half, effect + half],
        "a12": a12,
        "n_reference": 60,
        "n_trial": trial,
        "look": 1 if trial < 60 else 2,
        "block": 1,
        "alpha": 0.025,
    }


def plausible(seed: int = 7) -> list[dict[str, Any]]:
    """A run with a re-balance, three trials (one of each verdict), a lost worker and a good end."""
    run = Run(seed)
    members = [{"worker_id": w, "incarnation": f"i-{w}", "address": "127.0.0.1", "store_port": 1} for w in DEVICES]
    run.say("membership", generation=1, members=members)
    even = dict.fromkeys(DEVICES, 16)
    run.plan(even)
    run.train(70)
    fair = {"w0": 23, "w1": 23, "w2": 12, "w3": 6}
    run.decide("rebalanced", even, fair, "w3 (t4) computes 2.4 times as long as w0 (a100); shares moved.")
    run.plan(fair)
    run.train(80)
    larger = {"w0": 70, "w1": 70, "w2": 36, "w3": 16}
    considered = [
        {"global_batch": 192, "accumulation": 1, "expected_gain": 0.38, "ei": 0.3, "chance": 0.9, "trial_s": 4.0},
        {"global_batch": 128, "accumulation": 2, "expected_gain": 0.11, "ei": 0.05, "chance": 0.4, "trial_s": 4.0},
    ]
    run.decide("trial-started", fair, larger, "Expected gain 38 % at 192.", expectation=0.38, candidates=considered)
    run.plan(larger)
    run.train(40)
    better = evidence(2.1e-9, 1.0, 0.341, 0.05, 0.97, 40)
    run.decide("accepted", fair, larger, "Shown to be better.", evidence=better, expectation=0.38)
    run.train(60)
    huge = {"w0": 190, "w1": 190, "w2": 96, "w3": 36}
    run.decide("trial-started", larger, huge, "Expected gain 9 % at 512.", expectation=0.09)
    run.plan(huge)
    run.train(40)
    worse = {**evidence(1.0, 4.2e-5, -0.123, 0.06, 0.18, 40), "switchback": True, "drift": 0.01}
    cost = {"steps": 81, "seconds": 3.2, "samples": -512.0}
    run.decide("rejected", huge, larger, "Shown to be worse.", evidence=worse, expectation=0.09, cost=cost)
    run.plan(larger)
    run.train(60)
    other = {"w0": 76, "w1": 76, "w2": 40, "w3": 16}
    run.decide("trial-started", larger, other, "Expected gain 3 % at 208.", expectation=0.03)
    run.plan(other)
    run.train(80)
    run.decide(
        "inconclusive",
        other,
        larger,
        "No difference beyond the margin.",
        evidence=evidence(0.31, 0.24, 0.011, 0.03, 0.53, 80),
        expectation=0.03,
    )
    run.plan(larger)
    run.train(60)
    run.say("event", event="lost", message="w1 left without a word; 3 of 4 workers go on")
    rest = {"w0": 110, "w2": 56, "w3": 26}
    run.decide("membership", larger, rest, "3 workers remain; the batch is kept.")
    run.say("membership", generation=2, members=[m for m in members if m["worker_id"] != "w1"])
    run.plan(rest)
    run.train(120)
    run.say("end", success=True, reason="Finished", message="All workers finished.", summary={})
    return run.lines
