"""The RexJob: what users write, checked and typed."""

from rex_operator.api.job import API_VERSION, GROUP, KIND, PLURAL, VERSION, InvalidJob, RexJob
from rex_operator.api.spec import Pool, RexJobSpec

__all__ = ["API_VERSION", "GROUP", "KIND", "PLURAL", "VERSION", "InvalidJob", "Pool", "RexJob", "RexJobSpec"]
