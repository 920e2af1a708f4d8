"""Runs a RexJob on this machine without Kubernetes."""

from rex_operator.local.errors import BadInput
from rex_operator.local.manifest import load_job
from rex_operator.local.run import LocalRun, Observer, Outcome
from rex_operator.local.start import prepare

__all__ = ["BadInput", "LocalRun", "Observer", "Outcome", "load_job", "prepare"]
