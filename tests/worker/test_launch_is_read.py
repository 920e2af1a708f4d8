"""What a launcher such as torchrun tells a process is read, checked, and refused in a sentence."""

from __future__ import annotations

import pytest

from rex_worker.environment import Environment
from rex_worker.errors import ConfigurationError
from rex_worker.standalone import Launch, _device_kind, _own_address, enter

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def read(**changes: str) -> Launch:
    launch = Launch.read({**TORCHRUN, **changes})
    assert launch is not None
    return launch


def test_torchruns_variables_are_understood() -> None:
    assert read() == Launch(rank=5, size=8, local_rank=1, attempt="2", master="node-a", one_host=False)
    assert read(LOCAL_WORLD_SIZE="8").one_host
    assert read(LOCAL_WORLD_SIZE="", MASTER_ADDR="127.0.0.1").one_host
    assert not read(LOCAL_WORLD_SIZE="").one_host


def test_no_launcher_and_an_operator_leave_the_process_as_it_is() -> None:
    assert Launch.read({}) is None
    assert Launch.read({"RANK": "0"}) is None
    operator = {
        "REX_CHANNEL_URL": "ws://127.0.0.1:1/v1/channel",
        "REX_JOB": "a/b",
        "REX_WORKER_ID": "w0",
        "REX_INCARNATION": "x",
    }
    assert enter(Environment.read(operator), TORCHRUN | operator) is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"RANK": "8"}, "ranks count from 0"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT not"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        read(**changes)


def test_one_kind_of_device_or_one_for_each_rank() -> None:
    assert _device_kind("t4", read()) == "t4"
    assert _device_kind("a,b,c,d,e,f,g,h", read()) == "f"
    assert _device_kind("a,b,c,d,e,f,g,h", read(RANK="0")) == "a"
    with pytest.raises(ConfigurationError, match="each of the 8 ranks"):
        _device_kind("a,b", read())


def test_several_hosts_need_an_address_that_others_can_reach() -> None:
    assert _own_address(read(LOCAL_WORLD_SIZE="8")) == "127.0.0.1"
    with pytest.raises(ConfigurationError, match="set REX_ADDRESS"):
        _own_address(read(MASTER_ADDR="127.0.0.1"))


def test_no_token_is_shown() -> None:
    shown = Environment(job="a/b", worker_id="w0", incarnation="x", device="cpu", token="hidden-away")
    assert "hidden-away" not in repr(shown)
