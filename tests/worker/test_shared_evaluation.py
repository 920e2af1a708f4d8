"""C-108: an evaluation is the same to the last digit for any number of workers and any shares."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from rex_worker.errors import UsageError
from rex_worker.session import Session
from tests.worker.together import run_together

TRAINED = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))


class Texts(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Held-out texts of unlike lengths."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self.texts = [torch.randn(1 + number % 13, 4, generator=generator) for number in range(size)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.texts[index]


def padded(samples: Sequence[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers (n,), tokens (n, longest, 4), and which of them are there (n, longest)."""
    lengths = torch.tensor([len(text) for _, text in samples])
    tokens = nn.utils.rnn.pad_sequence([text for _, text in samples], batch_first=True)
    there = torch.arange(tokens.shape[1]) < lengths[:, None]
    return torch.tensor([index for index, _ in samples]), tokens, there


def evaluate(
    shares: list[int],
    held_out: Any,
    judge: Callable[[nn.Module, Any], list[float]],
    batch_size: int | None,
    **options: Any,
) -> list[list[float]]:
    """What each worker gets."""

    def script(session: Session) -> list[float]:
        model: nn.Module = nn.Linear(4, 1)
        nn.utils.vector_to_parameters(torch.linspace(-0.7, 0.9, 5), model.parameters())
        with session:
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = session.loader(TRAINED, batch_size=8)
            for _ in session.epochs(1):
                for x, y in loader:
                    session.backward(0.0 * nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                totals = session.totals(held_out, lambda batch: judge(model, batch), batch_size, **options)
        return totals

    return run_together(shares, script)


def losses(model: nn.Module, batch: Any) -> list[float]:
    index, tokens, there = batch
    found = model(tokens).squeeze(2).tanh().sub(0.3).square()[there]
    return [float(found.sum()), float(there.sum()), float(found.double().sum() / 3), len(index)]


@given(
    shares=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    size=st.integers(1, 150),
    batch_size=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_c_108_sums_of_losses_are_the_same_to_the_last_digit(shares: list[int], size: int, batch_size: int) -> None:
    held_out = Texts(size)
    judged: list[int] = []

    def judge(model: nn.Module, batch: Any) -> list[float]:
        judged.extend(batch[0].tolist())
        return losses(model, batch)

    (alone,) = evaluate([1], held_out, losses, batch_size, collate=padded)
    assert evaluate(shares, held_out, judge, batch_size, collate=padded) == [alone] * len(shares)
    assert Counter(judged) == Counter(range(size)), "each sample once"
    assert alone[1] == sum(map(len, held_out.texts)) and alone[3] == size


def test_the_work_is_shared_in_the_plans_proportions() -> None:
    sizes: list[int] = []

    def judge(model: nn.Module, batch: Any) -> list[float]:
        sizes.append(threading.get_ident())
        return losses(model, batch)

    evaluate([30, 10], Texts(400), judge, 10, collate=padded)
    assert sorted(Counter(sizes).values()) == [10, 30]


def test_figures_that_are_not_finite_come_out_so_on_every_worker() -> None:
    held_out = TensorDataset(torch.arange(40))
    found = evaluate([3, 5], held_out, lambda model, batch: [math.inf if 3 in batch[0] else 1.0, 2.0], 5)
    assert found == [[math.inf, 16.0]] * 2
    found = evaluate([3, 5], held_out, lambda model, batch: [math.nan if 3 in batch[0] else 1.0], 5)
    assert all(math.isnan(total) for (total,) in found)


def test_wrong_uses_say_what_to_do() -> None:
    with pytest.raises(UsageError, match="judge returned 1 figures for a batch, then 2"):
        evaluate([1], TensorDataset(torch.arange(7)), lambda model, batch: [1.0] * (1 + (0 not in batch[0])), 4)
    with pytest.raises(UsageError, match="is needed here, not Stream"):
        evaluate([1], Stream(), losses, 4)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1
