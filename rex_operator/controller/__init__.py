"""The operator on a cluster: watches RexJobs, keeps their workers, and runs their brains."""

from rex_operator.controller.main import main

__all__ = ["main"]
