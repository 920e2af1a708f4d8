"""What becomes of Adam when the batch changes: keep its moments, set them back to step 0, or shorten their memory?

Noisy quadratics (curvature and noise over decades, differently in each coordinate) are trained by torch's Adam until
the loss stands still. Then the batch becomes four times larger, four times smaller, or larger for 200 updates, as in a
trial that is rolled back; the rate goes with the square root, climbing as the worker lets it. Told are the largest
update of the next 100 against the usual one before, and the mean loss over the next 1000 updates against that of the
same run without any change of batch, as medians over seeds.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from rex_worker.protocol import Plan
from rex_worker.rates import Rates

INITIAL, SETTLE, AFTER, SIZE, AGE = 256, 3000, 1000, 400, 20
RATE = 3e-3
PATHS = {
    "4 x larger": [1024] * AFTER,
    "4 x smaller": [64] * AFTER,
    "larger for 200": [1024] * 200 + [INITIAL] * (AFTER - 200),
}
TREATMENTS: dict[str, int | None] = {"keep": None, "step 0": 0, f"age {AGE}": AGE}


def train(path: Sequence[int], age: int | None, seed: int) -> tuple[list[float], list[float]]:
    """Return losses and sizes of the updates, beginning 100 updates before the path; ``age``: given to the moments."""
    random = torch.Generator().manual_seed(seed)
    curvature = 10 ** -torch.rand(SIZE, generator=random)
    noise = 10 ** (3 * torch.rand(SIZE, generator=random) - 1.5)
    weights = torch.nn.Parameter(torch.zeros(SIZE))
    adam = torch.optim.Adam([weights], lr=RATE)
    rates = Rates(adam)
    losses, moves = [], []
    last = INITIAL
    for batch in [*[INITIAL] * SETTLE, *path]:
        if batch != last and age is not None:
            _make_younger(adam, weights, age)
        last = batch
        plan = Plan(
            generation=1,
            version=1,
            global_batch=batch,
            local_batches={"w0": batch},
            learning_rate_factor=math.sqrt(batch / INITIAL),
        )
        before = weights.detach().clone()
        weights.grad = curvature * before + noise * torch.randn(SIZE, generator=random) / math.sqrt(batch)
        adam.param_groups[0]["lr"] = RATE * rates.factor(plan, 0)
        adam.step()
        rates.applied(plan)
        losses.append(0.5 * float(curvature @ before.square()))
        moves.append(float((weights.detach() - before).norm()))
    return losses[SETTLE - 100 :], moves[SETTLE - 100 :]


def _make_younger(adam: torch.optim.Adam, weights: torch.nn.Parameter, age: int) -> None:
    """Keep the estimates, but let them count as after ``age`` updates; 0 forgets them."""
    state, old = adam.state[weights], float(adam.state[weights]["step"])
    if old > age:
        for name, beta in zip(("exp_avg", "exp_avg_sq"), adam.param_groups[0]["betas"], strict=True):
            state[name].mul_((1 - beta**age) / (1 - beta**old))
        state["step"].fill_(age)


def main() -> None:
    """Run all paths and treatments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of five")
    seeds = range(1 if parser.parse_args().quick else 5)
    torch.set_num_threads(1)
    console, results = Console(), {}
    table = Table(title=f"after {SETTLE} updates with a batch of {INITIAL}")
    for name in ("batch", "moments", "largest update", "mean loss"):
        table.add_column(name, justify="right" if " " in name else "left")
    unchanged = [sum(train([INITIAL] * AFTER, None, seed)[0][100:]) for seed in seeds]
    for path, batches in PATHS.items():
        for treatment, age in TREATMENTS.items():
            jumps, losses = [], []
            for seed in seeds:
                loss, moves = train(batches, age, seed)
                jumps.append(max(moves[100:200]) / (sum(moves[:100]) / 100))
                losses.append(sum(loss[100:]) / unchanged[seed])
            results[f"{path}, {treatment}"] = {"largest_update": median(jumps), "mean_loss": median(losses)}
            table.add_row(path, treatment, f"x {median(jumps):.2f}", f"x {median(losses):.3f}")
    console.print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
