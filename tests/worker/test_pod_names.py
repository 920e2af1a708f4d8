"""The names of a pod's workers and of their lives: told apart without fail, and legal on the channel."""

from __future__ import annotations

import random
import uuid

from hypothesis import given
from hypothesis import strategies as st

from rex_worker.pod import MAX_DEVICES, LifeName, in_order, life_name, read_life, worker_names
from rex_worker.protocol import Hello

uids = st.uuids(version=4).map(str)


@given(uids, st.integers(1, MAX_DEVICES), st.integers(0, 99), st.data())
def test_a_life_is_read_as_it_was_named(uid: str, devices: int, life: int, data: st.DataObject) -> None:
    device = data.draw(st.integers(0, devices - 1))
    name = life_name(uid, device, devices, life)
    expected = LifeName(uid, device, life) if devices > 1 else None
    assert expected is None or read_life(name) == expected
    Hello(
        job="a/b",
        worker_id=worker_names("w1023", devices)[device],
        incarnation=name,
        device="a100",
        address="127.0.0.1",
        store_port=1,
    )


@given(uids)
def test_the_uid_of_a_pod_with_one_device_is_no_other_name(uid: str) -> None:
    assert read_life(uid) == LifeName(uid)
    assert life_name(uid, 0, 1) == uid


def test_workers_stand_in_the_order_of_their_pods() -> None:
    names = [name for pod, devices in (("w0", 1), ("w2", 12), ("w10", 2)) for name in worker_names(pod, devices)]
    shuffled = random.Random(uuid.UUID(int=7).int).sample(names, len(names))
    assert sorted(shuffled, key=in_order) == names
