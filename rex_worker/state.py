"""Training state as plain tensors and one JSON text, for the wire and for the disk.

State dictionaries of torch nest tensors in dictionaries, lists and numbers. Pickle would carry them, and run
whatever a stranger put there. ``pack`` takes the tensors out and writes the rest as JSON, in which only what JSON
has (and tuples, and keys that are numbers) can occur; ``unpack`` puts both together again.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from rex_worker.errors import UsageError

_TENSOR, _TUPLE, _MAP = "__tensor__", "__tuple__", "__map__"
_ROOT = "state"
_MAX_DEPTH = 64


def pack(state: Any) -> tuple[str, list[Tensor]]:
    """Split ``state`` into a JSON text and its tensors (not copied, detached).

    Raises:
        UsageError: Something in it is neither a tensor nor plain data; the message says where it is.
    """
    found = _Found(named=False)
    return json.dumps(_pack(state, found, _ROOT, 0)), list(found.tensors.values())


def pack_named(state: Any) -> tuple[str, dict[str, Tensor]]:
    """As ``pack``, but each tensor is known by its place in ``state``, such as ``model.0.weight``."""
    found = _Found(named=True)
    return json.dumps(_pack(state, found, _ROOT, 0)), found.tensors


def unpack(text: str, tensors: list[Tensor] | dict[str, Tensor]) -> Any:
    """Undo ``pack`` or ``pack_named``. Raises ``ValueError`` on anything that they would not write."""
    try:
        return _unpack(json.loads(text), tensors)
    except (KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"not a packed state: {type(error).__name__}: {error}") from error


class _Found:
    """The tensors met so far, by their names."""

    def __init__(self, named: bool) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._named = named

    def add(self, path: str, tensor: Tensor) -> int | str:
        """Note a tensor; returns what stands for it in the text."""
        name, index = path.removeprefix(f"{_ROOT}."), len(self.tensors)
        if name in self.tensors or "~" in name or name.startswith("__"):  # {1: a} and {"1": b} have the same path
            name = f"{name}~{index}"
        self.tensors[name] = tensor
        return name if self._named else index


def _pack(value: Any, found: _Found, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UsageError(f"{path[:200]}: nested too deeply")
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            kind = value.dtype if value.is_quantized else value.layout
            raise UsageError(f"{path}: a {kind} tensor; only dense ones of plain numbers can be kept")
        return {_TENSOR: found.add(path, value.detach())}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_pack(item, found, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [_pack(item, found, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        return _pack_dict(value, found, path, depth)
    raise UsageError(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot be kept; state may hold tensors,"
        " numbers, strings, None, lists, tuples and dictionaries"
    )


def _pack_dict(value: dict[Any, Any], found: _Found, path: str, depth: int) -> Any:
    plain = all(type(key) is str and not key.startswith("__") for key in value)
    if plain:
        return {key: _pack(item, found, f"{path}.{key}", depth + 1) for key, item in value.items()}
    pairs = []
    for key, item in value.items():
        if key is not None and type(key) not in (bool, int, float, str):
            raise UsageError(f"{path}: a key of type {type(key).__qualname__} cannot be kept")
        pairs.append([key, _pack(item, found, f"{path}.{key}", depth + 1)])
    return {_MAP: pairs}


def _unpack(value: Any, tensors: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(_unpack(item, tensors) for item in value[_TUPLE])
    if _MAP in value:
        return {key: _unpack(item, tensors) for key, item in value[_MAP]}
    return {key: _unpack(item, tensors) for key, item in value.items()}
