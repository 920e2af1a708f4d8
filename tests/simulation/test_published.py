"""Published measurements are read as their formats say; what is wrong in a file is named by file and line."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rex_operator.simulation.published import BadData, Row, gavel, lbb, pollux, sia
from tests.published import needs_data, published


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def sia_folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "traces/bert/placements-azure.csv",
        "local_bsz,step_time,sync_time,placement\n8,0.3,0.02,44\n4,0.2,0.01,1\n8,0.4,0.02,1\n8,0.5,0.04,44\n",
    )
    write(tmp_path / "traces/bert/placements-dgx.csv", "local_bsz,step_time,sync_time,placement\n4,9,0,1\n")
    write(tmp_path / "traces/gpt_pmp/placements-rtx.csv", "local_bsz,step_time,sync_time,placement\n1,0.1,0.3,8\n")
    write(
        tmp_path / "traces/bert/scalability-rtx.csv",
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,6,4,0.2,0.01\n",
    )
    return tmp_path


def test_a_table_per_placement_with_ascending_batches_and_means_of_repeats(sia_folder: Path) -> None:
    tables = {table.placement: table for table in sia.tables(sia_folder)}
    assert set(tables) == {"44", "1", "2x6"}
    assert tables["1"].rows == (Row(4, 0.2, 0.01), Row(8, 0.4, 0.02))
    assert tables["1"].device == "v100"
    assert (tables["44"].nodes, tables["44"].replicas) == (2, 8)
    (row,) = tables["44"].rows
    assert row.local_batch == 8
    assert [row.step_s, row.sync_s] == pytest.approx([0.4, 0.03])
    assert (tables["2x6"].nodes, tables["2x6"].replicas, tables["2x6"].device) == (2, 6, "2080ti")


def test_the_noise_scale_of_a_trajectory_is_told_in_samples_of_the_smallest_batch_run(tmp_path: Path) -> None:
    header = "progress,iteration,metric,grad_sqr,grad_var\n"
    write(tmp_path / "traces/tiny/validation-64.csv", header + "10,5,0.1,2.0,4.0\n20,9,0.2,0.0,8.0\n")
    write(tmp_path / "traces/tiny/validation-32.csv", header + "10,10,0.1,2.0,4.0\n")
    base, larger = pollux.trajectories(tmp_path)
    assert (base.batch, base.base_batch, larger.batch, larger.base_batch) == (32, 32, 64, 32)
    assert larger.noise_scale.tolist() == [64.0, math.inf]
    assert larger.progress.tolist() == [10.0, 20.0]


def test_rates_become_step_times_and_a_rate_of_zero_means_that_the_batch_does_not_fit(tmp_path: Path) -> None:
    jobs = {
        "('Net (batch size 64)', 2)": {"null": 4.0, "('Other', 2)": [1.0, 2.0]},
        "('Net (batch size 32)', 2)": {"null": 8.0},
        "('Net (batch size 128)', 2)": {"null": 0.0},
        "('A3C', 1)": {"null": 7.0},
    }
    write(tmp_path / "simulation_throughputs.json", json.dumps({"k80": jobs, "k80_unconsolidated": {}}))
    (table,) = gavel.tables(tmp_path)
    assert (table.model, table.device, table.replicas, table.placement) == ("Net", "k80", 2, "consolidated")
    assert table.rows == (Row(32, 0.125, 0.0), Row(64, 0.25, 0.0))
    assert table.too_large == (128,)


def test_a_record_has_a_column_per_gpu(tmp_path: Path) -> None:
    text = "epoch,iteration,compute_s_0,compute_s_1,comm_s_0,comm_s_1,batch_0,batch_1\n0,0,.2,.3,.2,.1,8,4\n"
    (tmp_path / "net_2GPU_tuned_disturbed_bs12.csv.gz").write_bytes(gzip.compress(text.encode()))
    (record,) = lbb.records(tmp_path)
    assert record.name == "net_2GPU_tuned_disturbed_bs12"
    assert record.tuned and record.disturbed
    assert record.compute_s.tolist() == [[0.2, 0.3]] and record.batch.tolist() == [[8, 4]]
    assert record.step_s == pytest.approx([0.4])


PLACEMENTS = "local_bsz,step_time,sync_time,placement\n4,0.2,0.01,1\n"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("8,fast,0.01,1", "line 3: step_time is 'fast', not a number"),
        ("8,nan,0.01,1", "line 3: step_time is nan, not a finite number above 0"),
        ("8,0.1,0.2,1", "line 3: sync_time 0.2 is more than step_time 0.1"),
        ("8.5,0.1,0.01,1", "line 3: local_bsz is 8.5, not a whole number"),
        ("0,0.1,0.01,1", "line 3: local_bsz is 0, not a finite number of at least 1"),
        ("8,0.1,0.01,4x4", "line 3: placement is '4x4', not a digit of GPUs for each node"),
        ("8,0.1,0.01", "line 3: not 4 cells, as the header has"),
        ("8,0.1,0.01,1,7", "line 3: not 4 cells, as the header has"),
    ],
)
def test_a_wrong_cell_is_named_by_file_and_line(tmp_path: Path, row: str, says: str) -> None:
    path = write(tmp_path / "traces/bert/placements-aws.csv", PLACEMENTS + row + "\n")
    with pytest.raises(BadData) as raised:
        sia.tables(tmp_path)
    assert str(raised.value).startswith(f"{path}, {says}")


def test_a_missing_column_and_a_wrong_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"no traces/.*placements-.*name the folder with Sia's traces"):
        sia.tables(tmp_path)
    with pytest.raises(BadData, match=r"no simulation_throughputs\.json there"):
        gavel.tables(tmp_path)
    write(tmp_path / "traces/bert/placements-aws.csv", "local_bsz,step_time,placement\n")
    with pytest.raises(BadData, match="line 1: no column sync_time; there are local_bsz, step_time, placement"):
        sia.tables(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ('{"k80": {"Net 64": {"null": 1.0}}}', "k80: job 'Net 64' is not"),
        ('{"k80": {"(\'Net (batch size 4)\', 1)": {"null": -1}}}', "null is -1, not a number of steps per second"),
    ],
)
def test_a_wrong_rate_is_named_by_kind_and_job(tmp_path: Path, content: str, says: str) -> None:
    write(tmp_path / "simulation_throughputs.json", content)
    with pytest.raises(BadData, match=says):
        gavel.tables(tmp_path)


def test_progress_that_does_not_grow_is_named(tmp_path: Path) -> None:
    header = "progress,iteration,metric,grad_sqr,grad_var\n"
    write(tmp_path / "traces/tiny/validation-8.csv", header + "10,5,0.1,2,4\n10,9,0.2,1,8\n")
    with pytest.raises(BadData, match=r"validation-8\.csv, line 3: progress is 10, not a finite number above 10"):
        pollux.trajectories(tmp_path)


@needs_data
def test_the_published_tables_are_all_there() -> None:
    tables = sia.tables(published() / "sia")
    alone = [table for table in tables if table.placement == "1"]
    assert len({(table.model, table.device) for table in alone}) == len(alone) == 30
    bert = next(t for t in alone if (t.model, t.device) == ("bert", "t4"))
    assert bert.rows[0].local_batch == 4 and bert.rows[0].step_s == pytest.approx(0.455324, abs=1e-6)
    cifar = next(t for t in alone if (t.model, t.device) == ("cifar10", "a100"))
    assert (cifar.rows[0].local_batch, cifar.rows[-1].local_batch) == (32, 4096)
    assert {t.device for t in tables} == {"t4", "2080ti", "rtx6000", "v100", "a100"}
    assert len({t.model for t in tables}) == 6
    assert {t.device for t in pollux.tables(published() / "pollux")} == {"t4"}


@needs_data
def test_cliffs_of_throughput_are_in_the_tables() -> None:
    """ImageNet on an RTX 6000 loses 24 % of its samples per second from 327 to 400 samples."""
    table = next(
        t for t in sia.tables(published() / "sia") if (t.model, t.device, t.placement) == ("imagenet", "rtx6000", "1")
    )
    rate = {row.local_batch: row.local_batch / row.step_s for row in table.rows}
    assert rate[400] / rate[327] == pytest.approx(1 - 0.243, abs=0.01)


@needs_data
def test_noise_scales_grow_as_published() -> None:
    runs = {(t.model, t.batch): t for t in pollux.trajectories(published() / "pollux")}
    cifar, imagenet = runs["cifar10", 128], runs["imagenet", 200]
    assert cifar.noise_scale[0] == pytest.approx(72, rel=0.02)
    assert cifar.noise_scale[-1] == pytest.approx(3.9e4, rel=0.02)
    assert imagenet.noise_scale[0] == pytest.approx(0.93e3, rel=0.01)
    assert Counter(model for model, _ in runs) == {
        "bert": 6, "cifar10": 6, "deepspeech2": 6, "imagenet": 7, "ncf": 8, "yolov3": 7
    }  # fmt: skip
    assert all(t.progress[-1] - t.iteration[-1] <= 1 for t in runs.values() if t.batch == t.base_batch)


@needs_data
def test_gavel_is_read_whole() -> None:
    tables = gavel.tables(published() / "gavel")
    too_large = [t for t in tables if t.device == "k80" and t.too_large]
    assert {(t.model, t.replicas, t.too_large) for t in too_large} == {("ResNet-50", n, (128,)) for n in (2, 4, 8)}
    v100 = next(t for t in tables if (t.model, t.device, t.replicas) == ("ResNet-18", "v100", 1))
    assert [row.local_batch for row in v100.rows] == [16, 32, 64, 128, 256]
    assert 1 / v100.rows[0].step_s == pytest.approx(32.353, abs=1e-3)


@needs_data
def test_an_even_record_has_equal_batches_all_along(tmp_path: Path) -> None:
    name = "cifar10_resnet18_4GPU_even_bs512_lr0.1_2022-12-14_12-19.csv.gz"
    (tmp_path / name).symlink_to(published() / "lbb" / name)
    (record,) = lbb.records(tmp_path)
    assert not record.tuned and record.batch.shape[1] == 4
    assert np.all(record.batch == 128)
