from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rex_worker.errors import UsageError
from rex_worker.state import pack, unpack

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.booleans() | st.none(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    text, tensors = pack(value)
    assert unpack(text, tensors) == value
    assert repr(unpack(text, tensors)) == repr(value), "tuples stay tuples, numbers keep their kind"


def test_optimizer_states_come_back() -> None:
    model = torch.nn.Linear(3, 2)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        optimizer = kind(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        text, tensors = pack({"optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()})
        back = unpack(text, tensors)
        assert back["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
        assert list(back["optimizer"]["state"]) == list(optimizer.state_dict()["state"]), "keys are numbers again"
        assert math.isinf(back["scheduler"]["best"])
        json.loads(text)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": np.float32(1)}]}, r"state.a\[1\].b: a numpy.float32 cannot be kept"),
        ({"a": lambda: 0}, r"state.a: a builtins.function cannot be kept"),
        ({("a", 1): 0}, r"state: a key of type tuple cannot be kept"),
        ({"a": torch.ones(2).to_sparse()}, r"state.a: a torch.sparse_coo tensor"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        pack(value)


@pytest.mark.parametrize("text", ['{"__tensor__": 3}', '{"__map__": 5}', "[", '{"__map__": [[1]]}'])
def test_a_text_that_pack_did_not_write_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(text, [])
