"""Train the digits example with REX on four emulated devices, then with plain PyTorch, and compare.

Ends with 0 when the run succeeded and its held-out accuracy is at least 95 % and within a point of the plain script's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rex_operator.cli.decisions import read_run
from rex_operator.cli.words import batch, percent

ROOT = Path(__file__).resolve().parent.parent
LEAST, MARGIN = 0.95, 0.01
JUDGED = ("accepted", "rejected", "inconclusive")


def main() -> int:
    """Run the demo; return the exit code."""
    os.chdir(ROOT)
    # One thread a process: small matrices on few cores gain nothing from more, and get in the way of each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = next(f for n in range(1, 10_000) if not (f := Path("runs") / f"demo-{n}").exists())
    say("Training handwritten digits with REX: a100, a100, v100 and t4, emulated (2 to 4 minutes)")
    command = [sys.executable, "-m", "rex_operator.cli", "run", "-f", "examples/digits/rexjob.yaml"]
    code = subprocess.run([*command, "--run-dir", str(folder)], check=False).returncode
    if code != 0:
        return code
    say("The same network with plain PyTorch, one process (under a minute)")
    plain = plain_accuracy()
    summary = json.loads((folder / "summary.json").read_text())
    accuracy = float(summary["metrics"]["accuracy"])
    enough = accuracy >= LEAST and accuracy >= plain - MARGIN
    print(f"\nHeld-out accuracy: {accuracy:.2%} with REX, {plain:.2%} with plain PyTorch")
    print(f"Plan decisions (n/m: batch n in m passes): {counted(summary)}")
    for line in verdicts(folder):
        print(f"  {line}")
    print(f"Report: {(folder / 'report.html').resolve().as_uri()}")
    if not enough:
        print(f"The accuracy is below {LEAST:.0%} or more than a point below plain PyTorch's.", file=sys.stderr)
    return 0 if enough else 1


def say(what: str) -> None:
    """Announce a stage."""
    print(f"\n==> {what}", flush=True)


def plain_accuracy() -> float:
    """Train the plain script and return its last held-out accuracy. Raises ``SystemExit`` when it fails."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "examples/digits/plain.py"], capture_output=True, text=True, check=False)
    found = re.findall(r"held-out accuracy ([0-9.]+)", done.stdout)
    if done.returncode != 0 or not found:
        raise SystemExit(f"examples/digits/plain.py failed:\n{done.stderr[-2000:]}")
    print(f"    done in {time.monotonic() - began:.0f} s")
    return float(found[-1])


def counted(summary: dict[str, Any]) -> str:
    """Tell how many decisions of each kind there were."""
    return ", ".join(f"{count} {kind}" for kind, count in summary["decisions"].items() if count) or "none"


def verdicts(folder: Path) -> list[str]:
    """Tell each judged trial with its evidence, one line each."""
    lines = []
    for _, decision in read_run(folder).decisions:
        if decision.kind not in JUDGED or (evidence := decision.evidence) is None:
            continue
        # An accepted change leads to what was tried, any other verdict leads away from it.
        ends = decision.plan_from, decision.plan_to
        kept, tried = ends if decision.kind == "accepted" else reversed(ends)
        p = min(evidence.p_better, evidence.p_worse)
        lines.append(
            f"{decision.kind:<12} {batch(tried):>5} against {batch(kept):<5} p {p:<8.2g}"
            f" effect {percent(evidence.effect):<7} windows {evidence.n_reference} and {evidence.n_trial} steps"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
