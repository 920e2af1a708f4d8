"""Train the network of the DYNAMIX-style policy by PPO on random clusters; print its numbers as the module that ships.

Each episode is a job on two to eight devices whose time is fixed + each x samples, with random speeds, fixed costs,
exchange costs and noise scales that grow; now and then one becomes slow or recovers. All workers share the network. The
reward is the change of the logarithm of goodput, half as a whole and half by each worker's own part in it, less a
little for a share that is touched. Random clusters only: none of the benchmarks' tables is seen. The last line (on
stderr) tells what the most likely actions reach on clusters that were not trained on, relative to the best split of the
best batch.

    python -m benchmarks.dynamix_training > rex_operator/planning/policies/dynamix_network.py
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rex_operator.planning.policies.dynamix import FACTORS, FEATURES, USUAL_ELASTICITY, elasticities, features

Array = npt.NDArray[np.float64]

HIDDEN, ACTIONS = 12, len(FACTORS)
EPISODES, LENGTH = 96, 30
DISCOUNT, TRACE, CLIP, RATE, ENTROPY = 0.9, 0.9, 0.2, 3e-3, 0.01
TOUCH = 0.004
"""Price of touching a share."""
SEED = 20251009


@dataclass
class Clusters:
    """Many jobs at once; arrays are (jobs,) or (jobs, workers)."""

    rng: np.random.Generator
    workers: int
    jobs: int = EPISODES

    def __post_init__(self) -> None:
        rng, shape = self.rng, (self.jobs, self.workers)
        unlike = rng.uniform(0, 1, (self.jobs, 1))
        self.each = 2 ** (rng.uniform(-2.5, 0, shape) * unlike)
        self.fixed = self.each * 2 ** rng.uniform(0, 5.5, (self.jobs, 1)) * rng.uniform(0.8, 1.2, shape)
        self.initial = np.rint(self.workers * 2 ** rng.uniform(2.5, 6, self.jobs))
        self.most = self.initial * 2 ** rng.uniform(0, 6, self.jobs)
        self.phi = self.initial * 2 ** rng.uniform(-2, 5, self.jobs)
        self.growth = 2 ** rng.uniform(0, 0.15, self.jobs)
        self.slow = np.ones(shape)
        self.shares = np.repeat(self.initial[:, None] / self.workers, self.workers, axis=1)
        self.exchange = self.true_times().max(axis=1) * rng.uniform(0.01, 0.6, self.jobs)
        self.elasticity = np.full(shape, USUAL_ELASTICITY)
        self.gain = np.zeros(self.jobs)
        self.before: tuple[Array, Array] | None = None

    def true_times(self) -> Array:
        """Return the workers' seconds of compute, without noise."""
        return np.asarray((self.fixed + self.each * self.shares) * self.slow)

    def goodput(self) -> Array:
        """Return the useful samples per second of each job."""
        return np.asarray(self._goodput(self.shares[:, None, :])[:, 0])

    def _goodput(self, shares: Array) -> Array:
        """Return the goodput of several shares of each job, (jobs, shares), from (jobs, shares, workers)."""
        fixed, each = (table[:, None, :] * self.slow[:, None, :] for table in (self.fixed, self.each))
        batch = shares.sum(axis=2)
        phi, initial = self.phi[:, None], self.initial[:, None]
        seconds = (fixed + each * shares).max(axis=2) + self.exchange[:, None]
        return np.asarray(batch * (phi + initial) / (phi + batch) / seconds)

    def credit(self, factors: Array) -> Array:
        """Return how much of the gain is each worker's: against the same move without its own part in it."""
        own = np.eye(self.workers, dtype=bool)
        without = self._bounded(self.shares[:, None, :] * np.where(own, 1.0, factors[:, None, :]))
        together = self._bounded(self.shares[:, None, :] * factors[:, None, :])
        return np.asarray(np.log(self._goodput(together) / self._goodput(without)))

    def _bounded(self, wanted: Array) -> Array:
        batch = wanted.sum(axis=2)
        return np.asarray(wanted * (np.clip(batch, self.workers, self.most[:, None]) / batch)[..., None])

    def observe(self) -> Array:
        """Return what the network sees, measured with noise."""
        times = self.true_times() * np.exp(0.01 * self.rng.normal(size=self.shares.shape))
        now = (self.shares.copy(), times)
        if self.before is not None:
            self.elasticity = elasticities(self.elasticity, self.before, now)
        self.before = now
        phi = self.phi * np.exp(0.2 * self.rng.normal(size=self.jobs))
        step_s = times.max(axis=1) + self.exchange
        return features(times, self.shares, step_s, phi, self.most, self.elasticity, self.gain)

    def act(self, actions: npt.NDArray[np.int64]) -> Array:
        """Turn the shares, let time pass, and return each worker's reward."""
        before, credit = self.goodput(), self.credit(FACTORS[actions])
        self.shares = np.maximum(np.rint(self._bounded((self.shares * FACTORS[actions])[:, None, :])[:, 0]), 1)
        self.gain = np.log(self.goodput() / before)
        self.phi = self.phi * self.growth
        change = self.rng.random(self.jobs) < 0.03
        who = self.rng.integers(self.workers, size=self.jobs)
        rows = np.flatnonzero(change)
        slowed = self.slow[rows, who[rows]] > 1
        self.slow[rows, who[rows]] = np.where(slowed, 1.0, self.rng.uniform(1.3, 3, rows.size))
        return np.asarray((self.gain[:, None] + credit) / 2 - TOUCH * (actions != ACTIONS // 2))

    def best(self) -> Array:
        """The goodput of the best split of the best batch, fractions allowed."""
        found = np.zeros(self.jobs)
        each, fixed = self.each * self.slow, self.fixed * self.slow
        for factor in np.geomspace(1 / 16, 64, 80):
            batch = np.clip(self.initial * factor, self.workers, self.most)
            low, high = np.zeros(self.jobs), (fixed + each * batch[:, None]).max(axis=1)
            for _ in range(50):
                middle = (low + high) / 2
                enough = np.maximum((middle[:, None] - fixed) / each, 1).sum(axis=1) >= batch
                low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            useful = batch * (self.phi + self.initial) / (self.phi + batch)
            slowest = np.maximum(high, (fixed + each).max(axis=1))
            found = np.maximum(found, useful / (slowest + self.exchange))
        return found


class Network:
    """Two layers; the last column of the second is the critic. Adam (Kingma & Ba 2015)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.hidden = np.vstack([rng.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES), np.zeros((1, HIDDEN))])
        self.out = np.vstack([0.1 * rng.normal(size=(HIDDEN, ACTIONS + 1)) / np.sqrt(HIDDEN), np.zeros(ACTIONS + 1)])
        self._moments = [np.zeros_like(t) for t in (self.hidden, self.hidden, self.out, self.out)]
        self._updates = 0

    def forward(self, seen: Array) -> tuple[Array, Array, Array]:
        """Return the hidden layer, the chance of each action, and the critic's value."""
        inner = np.tanh(seen @ self.hidden[:-1] + self.hidden[-1])
        both = inner @ self.out[:-1] + self.out[-1]
        shifted = both[..., :-1] - both[..., :-1].max(axis=-1, keepdims=True)
        chances = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
        return inner, chances, both[..., -1]

    def update(self, seen: Array, inner: Array, pull: Array, rate: float) -> None:
        """Descend, given the gradient with respect to the outputs, (samples, ACTIONS + 1)."""
        back = pull @ self.out[:-1].T * (1 - inner**2)
        slopes = [
            np.vstack([seen.T @ back, back.sum(axis=0)]) / len(seen),
            np.vstack([inner.T @ pull, pull.sum(axis=0)]) / len(seen),
        ]
        self._updates += 1
        for i, (weights, slope) in enumerate(zip((self.hidden, self.out), slopes, strict=True)):
            first, second = self._moments[2 * i], self._moments[2 * i + 1]
            first = self._moments[2 * i] = 0.9 * first + 0.1 * slope
            second = self._moments[2 * i + 1] = 0.999 * second + 0.001 * slope**2
            scale = np.sqrt(second / (1 - 0.999**self._updates)) + 1e-8
            weights -= rate * first / (1 - 0.9**self._updates) / scale


def rollout(network: Network, clusters: Clusters, rng: np.random.Generator) -> tuple[Array, ...]:
    """Play one episode of each job; return seen, actions, chances of them, advantages and returns, flattened."""
    seen, taken, chance, value, reward = [], [], [], [], []
    for _ in range(LENGTH):
        now = clusters.observe()
        _, chances, critic = network.forward(now)
        actions = (chances.cumsum(axis=-1) > rng.random((*chances.shape[:-1], 1))).argmax(axis=-1)
        seen.append(now)
        taken.append(actions)
        chance.append(np.take_along_axis(chances, actions[..., None], axis=-1)[..., 0])
        value.append(critic)
        reward.append(clusters.act(actions))
    value.append(network.forward(clusters.observe())[2])
    advantage, running = [], np.zeros_like(value[0])
    for t in reversed(range(LENGTH)):
        running = reward[t] + DISCOUNT * value[t + 1] - value[t] + DISCOUNT * TRACE * running
        advantage.append(running)
    gains = np.stack(advantage[::-1])
    return (
        np.stack(seen).reshape(-1, FEATURES),
        np.stack(taken).reshape(-1),
        np.stack(chance).reshape(-1),
        gains.reshape(-1),
        (gains + np.stack(value[:-1])).reshape(-1),
    )


def learn(network: Network, played: tuple[Array, ...], rng: np.random.Generator, rate: float) -> None:
    """Four passes of the clipped objective (Schulman et al. 2017)."""
    seen, taken, chance, gains, returns = played
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    for _ in range(4):
        for part in np.array_split(rng.permutation(len(seen)), 4):
            inner, chances, critic = network.forward(seen[part])
            chosen = np.eye(ACTIONS)[taken[part].astype(int)]
            now = (chances * chosen).sum(axis=1)
            ratio, gain = now / chance[part], gains[part]
            free = ~(((gain > 0) & (ratio > 1 + CLIP)) | ((gain < 0) & (ratio < 1 - CLIP)))
            logs = np.log(chances + 1e-12)
            surprise = -(chances * logs).sum(axis=1, keepdims=True)
            pull = -(free * gain * ratio)[:, None] * (chosen - chances)
            pull += ENTROPY * chances * (logs + surprise)
            network.update(seen[part], inner, np.hstack([pull, 0.5 * (critic - returns[part])[:, None]]), rate)


def reached(network: Network, seed: int) -> float:
    """Return the median share of the best goodput that the most likely actions reach on unseen clusters."""
    shares = []
    for workers in (2, 4, 8):
        clusters = Clusters(np.random.default_rng(seed + workers), workers)
        for _ in range(LENGTH):
            clusters.act(network.forward(clusters.observe())[1].argmax(axis=-1))
        shares += (clusters.goodput() / clusters.best()).tolist()
    return float(np.median(shares))


def main() -> None:
    """Train, and print the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=900, help="episodes of all jobs (default: 900)")
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(SEED)
    network = Network(rng)
    for i in range(rounds):
        clusters = Clusters(rng, (2, 3, 4, 6, 8)[i % 5])
        learn(network, rollout(network, clusters, rng), rng, RATE * (1 - i / rounds))
        if i % 20 == 0:
            print(f"round {i}: {reached(network, 1):.3f} of the best goodput", file=sys.stderr)
    print('"""The numbers of the DYNAMIX-style policy\'s network, as `benchmarks.dynamix_training` printed them."""\n')
    print("from __future__ import annotations\n\nimport numpy as np\n")
    for name, table in (("HIDDEN", network.hidden), ("OUT", network.out[:, :-1])):
        print(f"{name} = np.array(\n    [")
        for row in table:
            print(f"        [{', '.join(f'{x:.3f}' for x in row)}],")
        print("    ]\n)")
    print(json.dumps({"rounds": rounds, "of_best_goodput": round(reached(network, 2), 3)}), file=sys.stderr)


if __name__ == "__main__":
    main()
