"""Plays a worker under the launcher: writes down what it was started with, then does what its orders file says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

NAMES = (
    "REX_WORKER_ID",
    "REX_INCARNATION",
    "REX_EXITS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "REX_DEVICES_PER_POD",
)


def main() -> None:
    folder = Path(sys.argv[1])
    incarnation = os.environ["REX_INCARNATION"]
    told = {"pid": os.getpid(), **{name: os.environ.get(name) for name in NAMES}}

    def leave(number: int, frame: object) -> None:
        (folder / f"{incarnation}.left").touch()
        sys.exit(0)

    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, leave)
    if "unreached" not in sys.argv:
        Path(os.environ["REX_REACHED_FILE"]).touch()
    part = folder / f"{incarnation}.part"
    part.write_text(json.dumps(told))
    part.rename(folder / f"{incarnation}.json")
    order = folder / f"{os.environ['REX_WORKER_ID']}.exit"
    while not order.exists():
        time.sleep(0.02)
    code = int(order.read_text())
    order.unlink()
    sys.exit(code)


if __name__ == "__main__":
    main()
