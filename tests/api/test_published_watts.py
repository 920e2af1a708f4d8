"""Devices are found in the catalogue by the names that people and drivers give them, and by no others."""

from __future__ import annotations

import re

import pytest

from rex_operator.api.watts import CATALOGUE, KNOWN, published


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("t4", 70),
        ("Tesla T4", 70),
        ("NVIDIA GeForce RTX 2080 Ti", 250),
        ("2080ti", 250),
        ("Tesla V100-SXM2-16GB", 300),
        ("Tesla V100-PCIE-16GB", 250),
        ("NVIDIA A100-SXM4-80GB", 400),
        ("NVIDIA A100-PCIE-40GB", 250),
        ("a10", 150),
        ("a10g", 300),
        ("L4", 72),
        ("nvidia-l40s", 350),
        ("NVIDIA H100 80GB HBM3", 700),
        ("NVIDIA H100 PCIe", 350),
        ("Tesla K80", 150),
    ],
)
def test_a_name_finds_its_device(name: str, watts: float) -> None:
    found = published(name)
    assert found is not None
    assert found.max_watts == watts
    assert 0 < found.idle < watts


@pytest.mark.parametrize("name", ["", "cpu", "t40", "xt4", "a1000", "abacus", "2080", "l400"])
def test_other_names_find_nothing(name: str) -> None:
    assert published(name) is None
    assert re.search(KNOWN, name) is None


def test_every_entry_is_reachable_and_has_a_source() -> None:
    assert all(entry.source for entry in CATALOGUE)
    plain = [entry for entry in CATALOGUE if re.fullmatch(r"[a-z0-9]+", entry.pattern)]
    assert [published(entry.pattern) for entry in plain] == plain
