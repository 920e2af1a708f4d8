"""Which folder a run gets: the interrupted one, a new one, and never one that would be overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from rex_operator.local.errors import BadInput
from rex_operator.local.rundir import RunDirectory, RunState, choose_directory


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def leave(path: str, *, ended: bool) -> None:
    """Make a folder as an earlier run leaves it."""
    directory = RunDirectory(Path(path))
    directory.path.mkdir(parents=True)
    directory.save(RunState(job="digits", ended=ended, success=ended or None))


def chosen(given: str | None = None, *, fresh: bool = False) -> str:
    return str(choose_directory("digits", Path(given) if given else None, fresh=fresh).path)


def test_the_first_run() -> None:
    assert chosen() == "runs/digits-1"


def test_after_a_run_that_ended_the_next_number() -> None:
    leave("runs/digits-1", ended=True)
    leave("runs/digits-10", ended=True)
    assert chosen() == "runs/digits-11"


def test_an_interrupted_run_is_continued() -> None:
    leave("runs/digits-1", ended=True)
    leave("runs/digits-2", ended=False)
    assert chosen() == "runs/digits-2"


def test_fresh_starts_over_and_leaves_the_interrupted_run_alone() -> None:
    leave("runs/digits-2", ended=False)
    assert chosen(fresh=True) == "runs/digits-3"
    assert RunDirectory(Path("runs/digits-2")).load() is not None


def test_another_job_of_a_longer_name_is_not_ours() -> None:
    leave("runs/digits-big-7", ended=False)
    assert chosen() == "runs/digits-1"


def test_a_given_folder_is_continued_or_refused() -> None:
    leave("a", ended=False)
    leave("b", ended=True)
    assert chosen("a") == "a"
    with pytest.raises(BadInput, match="has ended"):
        chosen("b")


def test_fresh_moves_a_given_folder_aside_and_deletes_nothing() -> None:
    leave("a", ended=True)
    assert chosen("a", fresh=True) == "a"
    assert not Path("a").exists()
    assert RunDirectory(Path("a-before-1")).load() is not None
    leave("a", ended=True)
    chosen("a", fresh=True)
    assert Path("a-before-2").is_dir()


def test_two_runs_never_share_a_folder() -> None:
    first, second = RunDirectory(Path("a")), RunDirectory(Path("a"))
    first.open(checkpoints=False)
    with pytest.raises(BadInput, match="in use by another rex run"):
        second.open(checkpoints=False)
    first.close()
    second.open(checkpoints=False)
    second.close()


def test_state_is_replaced_whole() -> None:
    directory = RunDirectory(Path("a"))
    directory.open(checkpoints=False)
    directory.save(RunState(job="digits", charged=1))
    directory.save(RunState(job="digits", charged=2))
    loaded = directory.load()
    assert loaded is not None
    assert loaded.charged == 2
    assert not list(Path("a").glob("*.part"))
    directory.close()
