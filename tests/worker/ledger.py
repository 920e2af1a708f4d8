"""Reads the ledgers of a run and proves that each sample was used in exactly one applied step per epoch."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("ledger_script.py")


class Ledgers:
    """The ledgers of all lives of all workers, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def variables(self, name: str, **more: str) -> dict[str, str]:
        """Environment that makes the script keep the ledger ``name``."""
        return {"LEDGER": str(self.folder / f"{name}.ledger"), "ENOUGH": str(self.folder / "enough"), **more}

    def entries(self, name: str = "*") -> list[dict[str, Any]]:
        files = sorted(self.folder.glob(f"{name}.ledger"))
        # A line without its end is being written by a worker that lives, or was by one that was killed.
        return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]

    def kind(self, kind: str, name: str = "*") -> list[dict[str, Any]]:
        return [entry for entry in self.entries(name) if entry["kind"] == kind]

    def used(self) -> dict[int, Counter[int]]:
        """How often each sample was used in applied steps, by epoch.

        A step counts with the generation that applied it (the last one, if it was applied again after a step back), and
        with its last attempt there; of a worker that died in it, the batches that it was handed count.
        """
        applied: dict[int, int] = {}
        for entry in self.kind("applied"):
            applied[entry["step"]] = max(entry["generation"], applied.get(entry["step"], 0))
        counts: dict[int, Counter[int]] = defaultdict(Counter)
        for file in self.folder.glob("*.ledger"):
            attempts: dict[tuple[int, int], set[int]] = {}
            for entry in self.kind("batch", file.stem):
                if applied.get(entry["step"]) == entry["generation"]:
                    batch, attempt = set(entry["indices"]), attempts.get((entry["epoch"], entry["step"]), set())
                    assert len(batch) == len(entry["indices"])
                    # A step that is taken again begins with samples that its last attempt had, too.
                    attempts[entry["epoch"], entry["step"]] = batch if batch & attempt else batch | attempt
            for (epoch, _), indices in attempts.items():
                counts[epoch].update(indices)
        return counts

    def enough(self) -> None:
        """Let the scripts end their training after the step at hand."""
        (self.folder / "enough").touch()

    def check_exactly_once(self, size: int) -> None:
        """Every epoch that was begun: no sample twice; every one before the last: none missing."""
        used = self.used()
        assert sorted(used) == list(range(len(used)))
        for epoch, counts in used.items():
            assert set(counts.values()) == {1}, f"epoch {epoch}: samples were used more than once"
            if epoch < len(used) - 1:
                assert len(counts) == size, f"epoch {epoch}: {size - len(counts)} samples were never used"
        samples = {entry["samples"] for entry in self.kind("end")}
        assert samples == {sum(len(counts) for counts in used.values())}

    def check_same_end(self, *names: str) -> None:
        ends = [entry for name in names for entry in self.kind("end", name)]
        assert len(ends) == len(names)
        assert len({(end["step"], end["digest"], end["rate"]) for end in ends}) == 1, ends
