"""What a worker is started with: the manifest's command and values, REX's own, and nothing that could leak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rex_operator.local.environment import Place, read_program, worker_environment
from rex_operator.local.filling import fill
from rex_operator.local.manifest import load_job
from rex_worker.environment import Environment
from tests.local.scene import write_manifest

PLACE = Place("local/tiny", "ws://127.0.0.1:1/v1/channel", Path("/ckpt"), 7, emulate=True)


def environment(file: Path, place: Place = PLACE) -> dict[str, str]:
    job = load_job(file)
    return worker_environment(read_program(job, file), job, place, fill(job.spec)[2], "life-1", Path("/token"))


def with_env(folder: Path, *entries: dict[str, Any]) -> Path:
    file = write_manifest(folder)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] = list(entries)
    file.write_text(yaml.safe_dump(manifest))
    return file


def test_the_worker_understands_it(tmp_path: Path) -> None:
    settings = Environment.read(environment(write_manifest(tmp_path)))
    assert (settings.job, settings.worker_id, settings.incarnation) == ("local/tiny", "w2", "life-1")
    assert (settings.device, settings.pool) == ("t4", "t4")
    assert settings.channel_url == PLACE.channel_url
    assert settings.token_file == Path("/token")
    assert settings.emulate
    assert settings.emulate_scale == 0.2
    assert (settings.checkpoint_dir, settings.checkpoint_every) == (Path("/ckpt"), 20)
    assert settings.seed == 7


def test_without_spec_checkpoint_nothing_is_saved(tmp_path: Path) -> None:
    assert "REX_CHECKPOINT_DIR" not in environment(write_manifest(tmp_path, checkpoint=None))


def test_python_is_this_python(tmp_path: Path) -> None:
    file = write_manifest(tmp_path)
    assert read_program(load_job(file), file).command[0] == sys.executable


def test_the_environment_of_rex_itself_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REX_WORKER_ID", "somebody-else")
    monkeypatch.setenv("REX_DEVICE", "h100")
    env = environment(write_manifest(tmp_path))
    assert env["REX_WORKER_ID"] == "w2"
    assert env["REX_DEVICE"] == "t4"


def test_threads_are_one_unless_said_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(write_manifest(tmp_path))["OMP_NUM_THREADS"] == "1"
    assert environment(write_manifest(tmp_path, env={"OMP_NUM_THREADS": "3"}))["OMP_NUM_THREADS"] == "3"


def test_a_manifest_cannot_take_a_workers_identity(tmp_path: Path) -> None:
    file = with_env(tmp_path, {"name": "REX_JOB", "value": "other/job"})
    assert environment(file)["REX_JOB"] == "local/tiny"
    assert "REX_JOB" in read_program(load_job(file), file).warnings[0]


def test_values_from_secrets_are_left_out_and_said(tmp_path: Path) -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    file = with_env(tmp_path, {"name": "API_KEY", "valueFrom": source}, {"name": "MODE", "value": "fast"})
    assert "API_KEY" not in environment(file)
    assert environment(file)["MODE"] == "fast"
    assert read_program(load_job(file), file).warnings == (
        "env API_KEY: values from elsewhere (valueFrom) are not set in a local run",
    )


def test_c_204_warnings_name_variables_and_never_their_values(tmp_path: Path) -> None:
    file = with_env(tmp_path, {"name": "REX_TOKEN_FILE", "value": "CANARY"})
    assert "CANARY" not in " ".join(read_program(load_job(file), file).warnings)


def test_a_script_is_found_beside_the_manifest_or_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    file = write_manifest(tmp_path, command=["python", "train.py"])
    assert read_program(load_job(file), file).cwd == tmp_path
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("")
    monkeypatch.chdir(elsewhere)
    assert read_program(load_job(file), file).cwd == elsewhere


@pytest.mark.parametrize("dashes", [["--"], []])
def test_the_launcher_of_pods_is_left_out(tmp_path: Path, dashes: list[str]) -> None:
    file = write_manifest(tmp_path)
    manifest = yaml.safe_load(file.read_text())
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    plain = read_program(load_job(file), file)
    container["command"] = ["python", "-m", "rex_worker.launch", *dashes, *container["command"]]
    file.write_text(yaml.safe_dump(manifest))
    assert read_program(load_job(file), file) == plain
