"""The planner of processes that somebody else has started (torchrun, mpirun, a shell): started by their rank 0.

    python -m rex_operator.local.standalone

It speaks with rank 0 over its standard input and output, one JSON object a line, so that no secret stands in a command
line or in the environment. In: ``Order``; out: ``Answer``; in, once model and data are built: ``Begin``. The end of its
input means that rank 0 is gone. Exit code 0: the training ended as it should, or was left; 3: the
job has failed; 1: the planner itself has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any


def main() -> int:
    """Answer rank 0's order, then serve the workers to their end."""
    logging.basicConfig(level=logging.WARNING, format="rex planner: %(message)s", stream=sys.stderr)
    try:
        from rex_operator.local.errors import BadInput
        from rex_operator.local.gang import Order, serve
    except ImportError as error:
        _say({"missing": error.name or str(error)})
        return 1
    logging.getLogger("rex_operator.local.gang").setLevel(logging.INFO)
    line = sys.stdin.readline()
    if not line:
        return 0
    try:
        return asyncio.run(serve(Order.model_validate_json(line), _say))
    except BadInput as error:
        _say({"error": str(error)})
        return 1


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
