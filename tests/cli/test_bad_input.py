"""Bad input: a clear error, exit code 2, and nothing started, changed or lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rex_operator.cli.app import app
from tests.local.scene import write_manifest


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rex(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def refused(words: tuple[str, ...], folder: Path) -> str:
    """Run a command that must be refused; return what it says."""
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    code, output = rex(*words)
    assert code == 2, output
    assert output.startswith("error: ")
    assert "Traceback" not in output
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before, "nothing was changed"
    return output


def edited(folder: Path, edit: Callable[[dict[str, Any]], None]) -> str:
    """Write a valid manifest, spoil it, and return what ``rex run`` and ``rex validate`` both say of it."""
    file = write_manifest(folder)
    manifest = yaml.safe_load(file.read_text())
    edit(manifest)
    file.write_text(yaml.safe_dump(manifest))
    says = refused(("run", "-f", "job.yaml"), folder)
    assert refused(("validate", "-f", "job.yaml"), folder) == says
    return says


def test_an_unknown_field(tmp_path: Path) -> None:
    says = edited(tmp_path, lambda m: m["spec"]["batch"].update(inital=64))
    assert "spec.batch.inital: unknown field; check the spelling" in says


def test_a_wrong_type(tmp_path: Path) -> None:
    says = edited(tmp_path, lambda m: m["spec"]["workers"].update(max="many"))
    assert "spec.workers.max" in says
    assert "integer" in says


def test_min_greater_than_max(tmp_path: Path) -> None:
    says = edited(tmp_path, lambda m: m["spec"]["workers"].update(min=9, max=3))
    assert "spec.workers: min (9) is greater than max (3)" in says


def test_a_batch_that_cannot_be_split(tmp_path: Path) -> None:
    says = edited(tmp_path, lambda m: m["spec"].update(batch={"initial": 1, "min": 1, "max": 1}))
    assert "batch.max (1) cannot be split over workers.min (2)" in says


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    def spoil(manifest: dict[str, Any]) -> None:
        manifest["spec"]["batch"]["max"] = 0
        manifest["spec"]["sync"] = {"mode": "psychic"}

    says = edited(tmp_path, spoil)
    assert "spec.batch.max" in says
    assert "spec.sync.mode" in says


def test_no_container_named_trainer(tmp_path: Path) -> None:
    says = edited(tmp_path, lambda m: m["spec"]["template"]["spec"]["containers"][0].update(name="main"))
    assert "no container is named 'trainer'" in says


def test_a_missing_image_matters_in_a_cluster_only(tmp_path: Path) -> None:
    file = write_manifest(tmp_path)
    manifest = yaml.safe_load(file.read_text())
    del manifest["spec"]["template"]["spec"]["containers"][0]["image"]
    file.write_text(yaml.safe_dump(manifest))
    assert "image: missing" in refused(("validate", "-f", "job.yaml"), tmp_path)


def test_no_such_file(tmp_path: Path) -> None:
    assert "nowhere.yaml: no such file" in refused(("run", "-f", "nowhere.yaml"), tmp_path)


def test_yaml_that_is_none_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: RexJob\nspec: {batch: [\n")
    assert "not valid YAML at line 3" in refused(("run", "-f", "job.yaml"), tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("kind: RexJob\n---\nkind: RexJob\n", "2 documents"),
        ("- a\n- b\n", "not a RexJob"),
        ("a: !!python/object/apply:os.system [id]\n", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
    ids=["empty", "several", "list", "object", "nul"],
)
def test_what_is_no_single_job(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert says in refused(("run", "-f", "job.yaml"), tmp_path)


def test_a_folder_for_a_file(tmp_path: Path) -> None:
    assert "cannot be read" in refused(("run", "-f", str(tmp_path)), tmp_path)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["python", "nowhere.py"], "'nowhere.py' is not found"),
        (["no-such-program"], "'no-such-program' is not found"),
        ([7], "must be a list of strings"),
    ],
    ids=["script", "program", "number"],
)
def test_a_command_that_cannot_be_started(tmp_path: Path, command: list[Any], says: str) -> None:
    write_manifest(tmp_path, command=command)
    assert says in refused(("run", "-f", "job.yaml"), tmp_path)


def test_no_command(tmp_path: Path) -> None:
    file = write_manifest(tmp_path)
    manifest = yaml.safe_load(file.read_text())
    del manifest["spec"]["template"]["spec"]["containers"][0]["command"]
    file.write_text(yaml.safe_dump(manifest))
    assert "no command" in refused(("run", "-f", "job.yaml"), tmp_path)


def test_a_checkpoint_folder_that_is_not_writable(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file where a folder should be")
    says = refused(("run", "-f", "job.yaml", "--run-dir", "run"), tmp_path)
    assert "checkpoint folder run/checkpoints is not writable" in says


def test_a_run_folder_that_is_not_writable(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    (tmp_path / "taken").write_text("a file")
    says = refused(("run", "-f", "job.yaml", "--run-dir", "taken/run"), tmp_path)
    assert "run folder taken/run is not writable" in says


def test_a_state_that_is_damaged_is_not_thrown_away(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text('{"job": "tiny", "saved"')
    says = refused(("run", "-f", "job.yaml", "--run-dir", "run"), tmp_path)
    assert "is damaged; start over with --fresh" in says


def test_a_folder_of_another_job(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text('{"job": "other"}')
    assert "holds a run of job 'other'" in refused(("run", "-f", "job.yaml", "--run-dir", "run"), tmp_path)


@pytest.mark.parametrize("command", ["report", "explain"])
def test_a_folder_without_a_record(tmp_path: Path, command: str) -> None:
    assert "no run is recorded there" in refused((command, str(tmp_path)), tmp_path)
