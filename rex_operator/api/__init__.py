"""The RexJob: what users write, checked and typed, and what REX says about it."""

from rex_operator.api.job import API_VERSION, GROUP, KIND, PLURAL, VERSION, InvalidJob, RexJob
from rex_operator.api.spec import Pool, RexJobSpec
from rex_operator.api.status import JobStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "InvalidJob",
    "JobStatus",
    "Pool",
    "RexJob",
    "RexJobSpec",
]
