"""The life of one job: generations, plans, restarts and the end. Pure; two shells carry out what it decides."""

from rex_operator.jobs.actions import Action, Ended, RunSearch, Save, Send
from rex_operator.jobs.coordinator import Coordinator
from rex_operator.jobs.failures import Verdict, judge, restart_delay
from rex_operator.jobs.life import Target
from rex_operator.jobs.saved import MAX_SAVED_BYTES, SavedMember, SavedState
from rex_operator.jobs.steps import GroupStep
from rex_operator.jobs.view import JobView, Phase, WorkerRow, WorkerState

__all__ = [
    "MAX_SAVED_BYTES",
    "Action",
    "Coordinator",
    "Ended",
    "GroupStep",
    "JobView",
    "Phase",
    "RunSearch",
    "Save",
    "SavedMember",
    "SavedState",
    "Send",
    "Target",
    "Verdict",
    "WorkerRow",
    "WorkerState",
    "judge",
    "restart_delay",
]
