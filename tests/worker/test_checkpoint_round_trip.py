"""Any state comes back from the disk as it was, and no bit of a checkpoint changes unseen."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rex_worker
from rex_worker.checkpoint import CheckpointDamaged, CheckpointFolder, read_model_state, snapshot
from rex_worker.manifest import Manifest
from rex_worker.staging import Stager

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    tensor = torch.tensor(list(raw), dtype=torch.uint8).view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else tensor


keys = st.text(max_size=6) | st.integers(-3, 3) | st.sampled_from(["1", "a.b", "a", "~", "a~1", "__metadata__"])
states = st.recursive(
    tensors() | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        alike = isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and bits(a) == bits(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@settings(max_examples=150, deadline=None)
@given(states)
def test_any_state_comes_back_bit_for_bit(state: Any) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = CheckpointFolder(Path(path), keep=1)
        folder.save(snapshot(state, 3, 30))
        loaded, step = folder.load_newest() or (None, 0)
    assert step == 3 and same(loaded, state)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept")
    folder = CheckpointFolder(path, keep=5)
    for step in (10, 20):
        model = {"weights": torch.randn(3, 5), "bias": torch.arange(4).bfloat16()}
        folder.save(snapshot({"model": model, "step": step, "rates": (0.1, None)}, step, step * 10))
    return path


FILES = ["manifest.json", "state.json", "part-00000.safetensors"]


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=200, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_c_113_no_bit_changes_unseen(kept: Path, name: str, place: float, bit: int, cut: bool) -> None:
    file = kept / "step-000000000020" / name
    content = file.read_bytes()
    at = int(place * len(content))
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    file.write_bytes(content[:at] if cut else bytes(changed))
    try:
        with pytest.warns(CheckpointDamaged, match="step-000000000020 cannot be used"):
            loaded, step = CheckpointFolder(kept, keep=5).load_newest() or ({}, 0)
        assert step == 10 and loaded["step"] == 10
        with pytest.raises(ValueError, match=r".+"):
            read_model_state(kept / "step-000000000020")
    finally:
        file.write_bytes(content)


def test_the_documented_lines_read_the_weights_without_rex(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    CheckpointFolder(tmp_path, keep=5).save(snapshot({"model": dict(model.state_dict()), "step": 1200}, 1200, 0))
    text = (Path(rex_worker.__file__).parents[1] / "docs" / "worker.md").read_text()
    (lines,) = [block for block in text.split("```") if block.startswith("python\nimport json, pathlib, torch")]
    found: dict[str, Any] = {}
    exec(lines.removeprefix("python").replace('Path("step-', f'Path("{tmp_path}/step-'), found)
    weights = found["weights"]
    assert list(weights) == list(model.state_dict()) == list(read_model_state(tmp_path))
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    model.load_state_dict(read_model_state(tmp_path / "step-000000001200"))


def test_reading_the_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        read_model_state(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no whole checkpoint"):
        read_model_state(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"part-00000.safetensors": {', '"../../secret": {', "is no file of a checkpoint"),
        ('"torch.float32"', '"load"', "is no type of numbers"),
        ('"bytes": ', '"bytes": -', "is no count"),
        ('"format": 2', '"format": 3', "format 3; this build reads 2"),
        ('"state.json": {', '"part-00001.safetensors": {', "state.json is missing"),
    ],
)
def test_c_211_a_sealed_manifest_is_still_not_trusted(kept: Path, old: str, new: str, complaint: str) -> None:
    text = (kept / "step-000000000020" / "manifest.json").read_text()
    assert old in text
    with pytest.raises(ValueError, match=complaint):
        Manifest.decode(sealed(json.loads(text.replace(old, new, 1))))


def test_boxes_outside_of_tensor_or_file_are_refused(kept: Path) -> None:
    text = (kept / "step-000000000020" / "manifest.json").read_text()
    for box, complaint in [
        ([[0, 0], [3, 5], "part-00000.safetensors", 10**9], "outside of its file"),
        ([[1, 0], [3, 5], "part-00000.safetensors", 0], "outside of the tensor"),
        ([[0, 0], [2, 5], "part-00000.safetensors", 0], "do not fill the tensor"),
        ([[0], [15], "part-00000.safetensors", 0], "outside of the tensor"),
        ([[0, 0], [3, 5], "elsewhere", 0], "not a manifest"),
    ]:
        body = json.loads(text)
        body["tensors"]["model.weights"]["boxes"] = [box]
        with pytest.raises(ValueError, match=complaint):
            Manifest.decode(sealed(body))


def sealed(body: dict[str, Any]) -> str:
    """``body`` with the right digest, as somebody would write it who means harm."""
    from rex_worker.manifest import _digest, _dump

    body.pop("seal")
    return _dump({**body, "seal": _digest(body)})


def test_memory_of_released_snapshots_is_used_again() -> None:
    stager, state = Stager(), {"a": torch.ones(1000), "b": torch.ones(10)}
    first = stager.take(state, 1, 1)
    places = {name: tensor.data_ptr() for name, tensor in first.tensors.items()}
    second = stager.take(state, 2, 2)
    assert all(tensor.data_ptr() != places[name] for name, tensor in second.tensors.items())
    stager.release(first)
    state["a"].fill_(7.0)
    state["b"] = torch.zeros(11)  # has grown
    third = stager.take(state, 3, 3)
    assert third.tensors["a"].data_ptr() == places["a"] and torch.equal(third.tensors["a"], state["a"])
    assert third.tensors["b"].shape == (11,) and torch.equal(second.tensors["a"], torch.ones(1000))


def test_a_scripts_default_device_changes_nothing(tmp_path: Path) -> None:
    state = {"weights": torch.arange(6.0).reshape(2, 3), "scalar": torch.tensor(2.0)}
    folder = CheckpointFolder(tmp_path, keep=1)
    with torch.device("meta"):  # tensors made here without a device hold nothing
        folder.save(snapshot(state, 1, 1))
        loaded, _ = folder.load_newest() or ({}, 0)
    assert same(loaded, state)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_copy_off_a_gpu_is_page_locked_and_complete() -> None:
    stager, weights = Stager(), torch.randn(1 << 20, device="cuda")
    expected = weights.cpu()
    taken = stager.take({"w": weights}, 1, 1)
    weights.zero_()
    assert taken.tensors["w"].is_pinned() and torch.equal(taken.tensors["w"], expected)


def test_nothing_of_a_checkpoint_is_a_pickle(kept: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in FILES:
            raw = (kept / "step-000000000020" / name).read_bytes()
            assert not raw.startswith(b"\x80") and b"PK\x03\x04" not in raw, "neither a pickle nor torch's archive"
