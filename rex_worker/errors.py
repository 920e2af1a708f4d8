"""What can go wrong in a training process, in words that tell the user what to do.

``RexError`` is the root, so that a script can tell REX's own complaints from those of its model:

* ``ConfigurationError``: the environment or a folder is not usable; nothing was trained.
* ``UsageError``: the script calls REX in a way that cannot be right.
* ``CheckpointMissing``: state that was once committed cannot be found; REX never starts over silently.
* ``Desynchronised``: two workers of one group would have run different steps.

``GroupLost`` is no error of the user's: a peer is gone. It never leaves the library.
"""

from __future__ import annotations


class RexError(RuntimeError):
    """Root of what REX raises in a training process."""


class ConfigurationError(RexError):
    """The process was started with settings that cannot work."""


class UsageError(RexError):
    """The training script uses REX in a way that cannot be right."""


class CheckpointMissing(RexError):
    """A checkpoint was committed before, but neither a live worker nor the folder has it."""


class Desynchronised(RexError):
    """The workers of one group do not stand at the same step; going on would train different models."""


class GroupLost(Exception):
    """A collective failed or was given up because the group is no more; the step in flight is void."""


class Departed(SystemExit):
    """The worker has left its job as planned: unwinds the script and ends the process with ``code``."""


def first_line(error: BaseException) -> str:
    """What an error says, without torch's pages of stack behind it."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
