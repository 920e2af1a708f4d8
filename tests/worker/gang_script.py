"""The ledger script, as a launcher starts it: the same command for all ranks, so each finds its ledger by its rank.

LEDGERS: folder. DIE_AT: the last rank kills itself after this step, in the launcher's first attempt.
"""

from __future__ import annotations

import os
import signal

ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
LAST = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
os.environ["LEDGER"] = f"{os.environ['LEDGERS']}/w{os.environ['RANK']}-{ATTEMPT}.ledger"

from tests.worker import ledger_script  # noqa: E402 - it opens its ledger when it is imported


def die_after(step: int) -> None:
    real = ledger_script.note

    def note(kind: str, **fields: object) -> None:
        real(kind, **fields)
        if kind == "applied" and fields["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger_script.note = note


if __name__ == "__main__":
    if LAST and ATTEMPT == "0" and "DIE_AT" in os.environ:
        die_after(int(os.environ["DIE_AT"]))
    ledger_script.main()
