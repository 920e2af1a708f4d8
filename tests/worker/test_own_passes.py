"""Each worker takes its share in its own number of passes: the same mathematics, whatever the others' numbers are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rex_worker.protocol import Plan
from rex_worker.sampler import Outlook, Position, permutation
from rex_worker.session import Session
from tests.worker.together import link_of, plan_of, run_together

SIZE = 43
_generator = torch.Generator().manual_seed(2)
X, Y = torch.randn(SIZE, 3, generator=_generator).double(), torch.randn(SIZE, 1, generator=_generator).double()

shares_and_passes = st.lists(st.tuples(st.integers(1, 14), st.integers(1, 6)), min_size=1, max_size=4)


torch.manual_seed(1)
START = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def network() -> nn.Module:
    """The same for all threads, which share one random generator."""
    return copy.deepcopy(START)


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train(session: Session, plans: dict[int, Plan] | None = None) -> dict[str, Any]:
    """Two epochs; notes each applied step's gradient and parameters, and each pass by (step, rows)."""
    model, passes, gradients, parameters = network(), [], [], []
    with session:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(TensorDataset(X, Y, torch.arange(SIZE)))
        for epoch in session.epochs(2):
            for x, y, rows in loader:
                step = session.step
                if plans and step in plans:
                    link_of(session).directives.receive(plans[step])
                optimizer.zero_grad()
                session.backward(nn.functional.mse_loss(model(x), y))
                averaged = gradient(model)
                passes.append((epoch, step, rows.tolist() if session.batch_weight else []))
                optimizer.step()
                if session.step > step:
                    gradients.append(averaged)
                    parameters.append(weights(model))
    return {"gradients": gradients, "parameters": parameters, "passes": passes, "reports": link_of(session).reports}


def alone(batch: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients and parameters of one process that takes whole batches."""
    model, gradients, parameters = network(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for rows in torch.split(torch.as_tensor(permutation(7, epoch, SIZE)), batch):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(model(X[rows]), Y[rows]))
            gradients.append(gradient(model))
            optimizer.step()
            parameters.append(weights(model))
    return gradients, parameters


def check_alike(result: dict[str, Any], batch: int) -> None:
    gradients, parameters = alone(batch)
    for found, expected in ((result["gradients"], gradients), (result["parameters"], parameters)):
        assert len(found) == len(expected)
        assert all(float((a - b).norm() / b.norm()) < 1e-9 for a, b in zip(found, expected, strict=True))


@given(work=shares_and_passes)
@settings(max_examples=20, deadline=None)
def test_any_shares_in_any_numbers_of_passes_train_as_one_process(work: list[tuple[int, int]]) -> None:
    shares, own = zip(*work, strict=True)
    results = run_together(shares, train, own)
    for rank, result in enumerate(results):
        check_alike(result, sum(shares))
        first = [rows for epoch, step, rows in result["passes"] if (epoch, step) == (0, 0)]
        if sum(shares) <= SIZE:
            assert len(first) == min(own[rank], shares[rank]), "as many passes as the plan gives to this worker"
            assert max(map(len, first)) - min(map(len, first)) <= 1


def test_norms_are_of_each_workers_own_mean_gradient_however_it_was_summed_up() -> None:
    shares, own = [13, 4, 9], [1, 4, 2]
    rows = torch.split(torch.as_tensor(permutation(7, 0, SIZE)[: sum(shares)]), shares)
    for result, part in zip(run_together(shares, train, own), rows, strict=True):
        model = network()
        torch.autograd.backward(nn.functional.mse_loss(model(X[part]), Y[part]))
        assert result["reports"][0].local_grad_sq == pytest.approx(float(gradient(model).square().sum()), rel=1e-9)


@given(
    work=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=3),
    at=st.integers(0, 2),
)
@settings(max_examples=12, deadline=None)
def test_a_change_to_own_passes_at_a_boundary_loses_nothing(work: list[tuple[int, int, int]], at: int) -> None:
    """The plan reaches the workers at different steps; all take it up at the same one."""
    shares, before, after = zip(*work, strict=True)
    second = plan_of(2, shares, after)

    def script(session: Session) -> dict[str, Any]:
        delay = int(session._environment.worker_id[1:])
        return train(session, {at + delay: second})

    results = run_together(shares, script, max(before))
    for result in results:
        check_alike(result, sum(shares))
    versions = [[report.plan_version for report in result["reports"]] for result in results]
    assert all(version == versions[0] for version in versions)
    assert set(versions[0]) <= {1, 2} and versions[0] == sorted(versions[0])
    for epoch in range(2):
        used = [row for result in results for e, _, rows in result["passes"] if e == epoch for row in rows]
        assert sorted(used) == list(range(SIZE)), "each sample once"


@given(
    work=shares_and_passes,
    left=st.integers(1, 60),
    ceilings=st.lists(st.none() | st.integers(1, 9), min_size=4, max_size=4),
)
def test_layouts_agree_on_the_step_whatever_passes_each_worker_runs(
    work: list[tuple[int, int]], left: int, ceilings: list[int | None]
) -> None:
    shares, own = zip(*work, strict=True)
    layouts = [
        Outlook(Position(1, 2, 5), shares, rank, own[rank], ceilings[rank]).lay_out(left) for rank in range(len(shares))
    ]
    assert len({(layout.total, layout.ends_epoch) for layout in layouts}) == 1
    taken = [row for one in layouts for part in one.passes if not part.filler for row in range(part.start, part.stop)]
    assert taken == list(range(5, 5 + min(left, sum(shares)))), "neighbours' parts meet, none overlaps"


def test_the_layout_has_this_workers_own_passes() -> None:
    shares, own = (8, 9, 7), (1, 3, 2)
    sizes = [
        [len(part) for part in Outlook(Position(1), shares, rank, own[rank]).lay_out(100).passes] for rank in range(3)
    ]
    assert sizes == [[8], [3, 3, 3], [4, 3]]
