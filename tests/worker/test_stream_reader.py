"""How a stream is read on, forward, and anew; and what its checksum sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rex_worker.errors import Desynchronised, UsageError
from rex_worker.recipe import recipe
from rex_worker.sampler import Outlook, Position
from rex_worker.streams import StreamReader, StreamSource, Task, checksum

CPU = torch.device("cpu")


class Lines:
    """Anything that can be iterated anew is a stream."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.opened = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        size = self.sizes[min(self.opened, len(self.sizes) - 1)]
        self.opened += 1
        for number in range(size):
            self.read += 1
            yield number


def source(dataset: Any) -> StreamSource:
    return StreamSource(recipe(dataset, collate=list), CPU)


def at(offset: int, *batches: int, rank: int = 0, epoch: int = 0) -> Outlook:
    return Outlook(Position(1, epoch, offset), batches or (10,), rank)


def test_a_newcomer_reads_forward_and_keeps_nothing_of_it() -> None:
    lines = Lines(1000)
    stream = source(lines)
    stream.lay_out(at(900, 10))
    assert stream.fetch(0) == list(range(900, 910))
    assert lines.read == 911 and len(stream._reader._kept) == 11


def test_a_smaller_offset_reads_anew() -> None:
    lines = Lines(100)
    stream = source(lines)
    for offset in (50, 60, 20):
        stream.lay_out(at(offset, 10))
        assert stream.fetch(0) == list(range(offset, offset + 10))
    assert lines.opened == 2


def test_an_empty_stream_is_named() -> None:
    with pytest.raises(UsageError, match="the stream gave no sample in epoch 0"):
        source(Lines(0)).lay_out(at(0))


def test_a_stream_that_became_shorter_is_named() -> None:
    stream = source(Lines(100, 40))
    stream.lay_out(at(80, 10))
    with pytest.raises(Desynchronised, match="ended after 40 samples in epoch 1, but 60 of it were used"):
        stream.lay_out(at(60, epoch=1))


def test_a_worker_without_a_share_in_the_last_step_gets_a_sample_that_is_there() -> None:
    stream = source(Lines(21))
    layout = stream.lay_out(at(20, 5, 5, 5, rank=2))
    assert (layout.share, layout.total, layout.ends_epoch) == (0, 1, True)
    assert stream.fetch(0) == [20, 20]


def test_a_reader_gives_up_what_is_no_longer_wanted_and_goes_on_later() -> None:
    reader = StreamReader(Lines(100), list)
    left = iter([True] * 5)
    assert reader.read(Task(at(50), 0, 50), lambda: next(left, False)) is None
    reading = reader.read(Task(at(50), 0, 50), lambda: True)
    assert reading is not None and reading[1] == list(range(50, 60))
    assert reader.dataset.opened == 1


def test_a_guess_beyond_the_end_is_no_error() -> None:
    reader = StreamReader(Lines(15), list)
    assert reader.read(Task(at(20), 0, 10), lambda: True) is None
    reading = reader.read(Task(at(10), 0, 10), lambda: True)
    assert reading is not None and reading[0].ends_epoch and reading[1] == list(range(10, 15))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(first=plain, second=plain)
@settings(max_examples=200)
def test_unlike_samples_have_unlike_checksums(first: Any, second: Any) -> None:
    assert 0 <= checksum(first) < 2**32
    assert (checksum(first) == checksum(second)) == (repr(first) == repr(second))


def test_a_checksum_sees_tensors_and_arrays_by_value_and_shape() -> None:
    samples = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.ones(4),
        torch.ones(4, dtype=torch.bfloat16),
        torch.tensor(1),
        np.ones(3),
        np.ones((3, 1)),
        {"x": torch.ones(4)},
        (torch.ones(4), "a"),
    ]
    assert len({checksum(sample) for sample in samples}) == len(samples)
    assert checksum(torch.ones(3, 4).t()) == checksum(torch.ones(4, 3))
    assert checksum(object()) == checksum(object()), "what cannot be compared is passed over"
