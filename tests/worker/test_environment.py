from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch

from rex_worker.environment import Environment
from rex_worker.errors import ConfigurationError
from rex_worker.meeting import Meeting, interface_of
from tests.worker.operator_double import ROOT

JOB = {"REX_JOB": "default/digits", "REX_WORKER_ID": "w3", "REX_INCARNATION": "uid-1"}


def test_no_channel_means_a_single_process() -> None:
    read = Environment.read({})
    assert read.channel_url is None and read.checkpoint_dir is None and not read.emulate


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"REX_CHANNEL_URL": "http://x"}, "must look like wss://host:port"),
        ({"REX_CHANNEL_URL": "ws://operator.rex.svc:8443/v1/channel"}, "plain ws is only for this machine itself"),
        ({"REX_CHANNEL_URL": "ws://10.0.0.1/"}, "plain ws is only for this machine itself"),
        ({"REX_CHANNEL_URL": "wss://operator/", "REX_WORKER_ID": ""}, "REX_WORKER_ID is not set"),
        ({"REX_EMULATE_SCALE": "fast"}, "REX_EMULATE_SCALE is 'fast'; it must be a number"),
        ({"REX_EMULATE_SCALE": "nan"}, "REX_EMULATE_SCALE is 'nan'"),
        ({"REX_CHECKPOINT_EVERY": "0"}, "REX_CHECKPOINT_EVERY is '0'; it must be a whole number from 1"),
        ({"REX_CHECKPOINT_EVERY": "1.5"}, "it must be a whole number"),
        ({"REX_JOB_SEED": "-1"}, "REX_JOB_SEED is '-1'"),
        ({"REX_CHECKPOINT_DIR": "a\0b"}, "REX_CHECKPOINT_DIR is not a path"),
        ({"REX_TOKEN_FILE": "x" * 5000}, "REX_TOKEN_FILE is not a path"),
        (
            {"REX_CHANNEL_URL": "wss://operator/", "REX_DEVICES_PER_POD": "4"},
            "needs a process for each device.*python -m rex_worker.launch",
        ),
        ({"REX_EXITS": "1,,2"}, "REX_EXITS is '1,,2'; it must be a list of exit codes"),
        ({"REX_EXITS": "256"}, "REX_EXITS is '256'"),
    ],
)
def test_each_fault_names_its_variable(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Environment.read({**JOB, **variables})


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/", "ws://[::1]:1/", "ws://localhost/", "wss://operator.rex.svc/"])
def test_encrypted_or_on_this_machine_is_fine(url: str) -> None:
    assert Environment.read({**JOB, "REX_CHANNEL_URL": url}).channel_url == url


def test_c_086_the_interface_is_that_of_the_advertised_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None, "nobody has a documentation address"
    with pytest.raises(ConfigurationError, match="does not resolve"):
        interface_of("no such name")
    assert interface_of(socket.gethostbyname("localhost")) == "lo"


def test_the_store_listens_on_the_advertised_address_only() -> None:
    meeting = Meeting("127.0.0.1", torch.device("cpu"))
    socket.create_connection(("127.0.0.1", meeting.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", meeting.port), timeout=5)
    with pytest.raises(ConfigurationError, match="this host cannot listen on"):
        Meeting("192.0.2.1", torch.device("cpu"))


def test_the_protocol_needs_neither_torch_nor_aiohttp() -> None:
    code = "import sys, rex_worker.protocol; print({'torch', 'aiohttp', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
