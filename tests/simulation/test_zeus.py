"""Zeus's power traces are read as they are published, and what is wrong in them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rex_operator.simulation.published import BadData
from rex_operator.simulation.published.zeus import Drawn, profiles, unlimited

HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"


def traces(folder: Path, *lines: str, device: str = "v100") -> Path:
    (folder / f"summary_power_{device}.csv").write_text(HEADER + "\n".join(lines) + "\n")
    return folder


def test_a_profile_per_device_job_and_limit(tmp_path: Path) -> None:
    traces(tmp_path, "d,n,64,adam,250,9.5,180.5", "d,n,32,adam,250,12,150", "d,n,32,adam,100,20,95")
    traces(tmp_path, "d,n,32,sgd,300,11,140", device="a40")
    found = profiles(tmp_path)
    assert [(p.device, p.job, p.limit) for p in found] == [
        ("a40", "d/n/sgd", 300.0),
        ("v100", "d/n/adam", 250.0),
        ("v100", "d/n/adam", 100.0),
    ]
    assert found[1].rows == (Drawn(32, 12.0, 150.0), Drawn(64, 9.5, 180.5))
    assert [(p.device, p.limit) for p in unlimited(found)] == [("a40", 300.0), ("v100", 250.0)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("d,n,0,adam,250,9.5,180", "batch_size is 0"),
        ("d,n,8,adam,250,nan,180", "time_per_epoch is nan"),
        ("d,n,8,adam,250,9.5,-1", "average_power is -1"),
        ("d,n,8,adam,250,9.5", "not 7 cells"),
        ("d,n,32,adam,250,9.5,180", "batch 32 of d/n/adam at 250 W stands there twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(BadData, match=f"summary_power_v100.csv, line 3: {says}"):
        profiles(traces(tmp_path, "d,n,32,adam,250,12,150", line))


def test_another_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="name the folder with Zeus's traces"):
        profiles(tmp_path)
