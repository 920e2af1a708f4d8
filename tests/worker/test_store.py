from __future__ import annotations

import threading

import pytest
from torch._C._distributed_c10d import HashStore, Store

from rex_worker.errors import GroupLost
from rex_worker.store import PatientStore


class Silent:
    """A store whose server is frozen: it accepts questions and never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._never = threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.asked.set()
        return self._never.wait()


def test_a_member_that_gave_the_group_up_is_heard_by_one_that_waits() -> None:
    shared = HashStore()
    here, there = PatientStore(shared, lambda: False), PatientStore(shared, lambda: False)
    assert not here.announced("open")
    there.give_up()
    with pytest.raises(GroupLost, match="another member"):
        while not here.announced("open"):
            pass


def test_what_was_announced_before_the_loss_still_counts() -> None:
    shared = HashStore()
    here, there = PatientStore(shared, lambda: False), PatientStore(shared, lambda: False)
    there.announce("final")
    there.give_up()
    assert here.announced("final")


def test_a_frozen_store_holds_nobody_once_a_newer_generation_is_named() -> None:
    silent = Silent()
    frozen: Store = silent  # type: ignore[assignment]
    store = PatientStore(frozen, silent.asked.is_set, patience_s=0)
    with pytest.raises(GroupLost, match="newer generation"):
        store.announced("open")
    store.give_up()  # does not wait either


def test_a_broken_store_is_a_lost_group() -> None:
    class Broken:
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("Connection reset by peer\nException raised from somewhere")

    broken: Store = Broken()  # type: ignore[assignment]
    with pytest.raises(GroupLost, match=r"Connection reset by peer$"):
        PatientStore(broken, lambda: False).add("arrived")
