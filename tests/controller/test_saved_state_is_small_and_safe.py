"""What is kept in the API server unpacks into what was saved, and nothing else unpacks at all."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from rex_operator.controller.memory import pack, unpack
from rex_operator.jobs import MAX_SAVED_BYTES, Coordinator, SavedState
from tests.controller.pictures import spec


def test_a_state_comes_back() -> None:
    state = Coordinator("team/digits", spec(), np.random.default_rng(0), 0.0).saved()
    assert unpack(pack(state)) == state


def test_c_203_a_bomb_is_refused_before_it_is_large() -> None:
    bomb = base64.b64encode(zlib.compress(b" " * (50 * MAX_SAVED_BYTES))).decode()
    with pytest.raises(ValueError, match="too long"):
        unpack(bomb)


@pytest.mark.parametrize("text", ["", "!!", "AAAA", base64.b64encode(zlib.compress(b'{"generation": -1}')).decode()])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(text)


def test_c_212_code_is_data() -> None:
    canary = b'{"planner": {"__reduce__": "os.system"}}'
    try:
        unpack(base64.b64encode(zlib.compress(canary)).decode())
    except ValueError:
        return
    assert unpack(base64.b64encode(zlib.compress(b"{}")).decode()) == SavedState()
