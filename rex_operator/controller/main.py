"""Entry of the operator process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from rex_operator.controller import logs
from rex_operator.controller.kube import KubeError
from rex_operator.controller.operator import operate
from rex_operator.controller.settings import read_settings

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator with these flags (default: the process's own); returns the exit status."""
    settings = read_settings(arguments)
    logs.set_up(settings.log_level)
    try:
        status = asyncio.run(operate(settings))
    except KubeError as error:
        logger.error("The operator could not start: %s", error)
        status = 1
    except Exception:
        logger.exception("The operator could not start")
        status = 1
    if status:
        # Threads of libraries must not keep a process alive that no longer leads.
        sys.stderr.flush()
        os._exit(status)
    return status
