"""Each missing prerequisite is one sentence that says what it is for and how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import prerequisites, programs
from tests.cluster.providers.existing import given_kubeconfig
from tests.cluster.shell import ClusterError, quiet


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prerequisites, "CNI_FOLDERS", (tmp_path / "cni",))


@pytest.mark.usefixtures("bare_machine")
def test_all_missing_programs_are_named_at_once() -> None:
    with pytest.raises(ClusterError) as raised:
        prerequisites.ensure((*prerequisites.NODES, *prerequisites.IMAGES, prerequisites.GO), quiet)
    lines = str(raised.value).splitlines()
    assert len(lines) == 8
    assert "runc is missing (runs containers): apt-get install runc." in lines
    assert "go is missing (builds Kubernetes, etcd and containerd): install Go 1.26 or newer." in lines


@pytest.mark.usefixtures("bare_machine")
def test_nothing_is_asked_for_when_the_programs_are_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in programs.CONTROL_PLANE:
        (assets / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("REX_TEST_CACHE", str(tmp_path / "cache"))
    assert programs.find(programs.CONTROL_PLANE, quiet) == {name: assets / name for name in programs.CONTROL_PLANE}


def test_given_kubeconfig_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REX_TEST_KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(ClusterError, match="no such file"):
        given_kubeconfig()


def test_default_kubeconfig_of_a_real_cluster_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('{"apiVersion": "v1", "kind": "Config", "current-context": "production"}')
    monkeypatch.delenv("REX_TEST_KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert given_kubeconfig() is None
