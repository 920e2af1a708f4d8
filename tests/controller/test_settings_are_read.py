"""Flags go before environment, and a bad one is named."""

from __future__ import annotations

import pytest

from rex_operator.controller.settings import read_settings


def test_a_flag_goes_before_the_environment() -> None:
    env = {"REX_OPERATOR_LOG_LEVEL": "debug", "REX_OPERATOR_CHANNEL_PORT": "1", "POD_NAMESPACE": "ours"}
    made = read_settings(["--channel-port=9443"], env)
    assert (made.log_level, made.channel_port, made.namespace) == ("debug", 9443, "ours")
    assert made.url == "wss://rex-channel.ours.svc:9443/v1/channel"


def test_namespaces_are_a_list() -> None:
    assert read_settings(["--watch-namespaces=b, a,,b"], {}).watched == ("a", "b")


def test_the_certificate_is_good_for_what_workers_are_told() -> None:
    assert "example.org" in read_settings(["--channel-url=wss://example.org:1/v1/channel"], {}).certificate_hosts


@pytest.mark.parametrize("flag", ["--channel-port=x", "--leader-elect=perhaps", "--log-level=loud", "--unknown=1"])
def test_a_bad_flag_is_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings([flag], {})
    assert flag.split("=")[0] in capsys.readouterr().err
