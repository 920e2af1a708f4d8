"""Who is on the other end: a seam, because a cluster and a single machine know it in different ways.

A session speaks for exactly one life of one worker. Whoever authenticates says which; what the worker claims in its
Hello must agree with it, and is otherwise worth nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from rex_worker.protocol import Hello


@dataclass(frozen=True)
class Identity:
    """One life of one worker of one job (``namespace/name``)."""

    job: str
    worker_id: str
    incarnation: str

    @classmethod
    def claimed(cls, hello: Hello) -> Identity:
        """What the worker says it is."""
        return cls(hello.job, hello.worker_id, hello.incarnation)

    def __str__(self) -> str:
        return f"{self.job} {self.worker_id} ({self.incarnation})"


class Refused(Exception):
    """The sender is not let in. The message is told to the sender and logged: it must hold no secret."""


Authenticator: TypeAlias = Callable[[str, Hello], Awaitable[Identity]]
"""From bearer token and Hello to the proven identity; raises ``Refused``."""


class StaticTokens:
    """Authenticates by a random token per life, as ``rex run`` hands them out."""

    def __init__(self) -> None:
        self._tokens: dict[Identity, str] = {}

    def allow(self, identity: Identity, token: str) -> None:
        """Let this life in with ``token``."""
        self._tokens[identity] = token

    def revoke(self, identity: Identity) -> None:
        """Let this life in no more."""
        self._tokens.pop(identity, None)

    async def __call__(self, token: str, hello: Hello) -> Identity:
        """Return the identity that the token belongs to. Raises ``Refused``."""
        identity = Identity.claimed(hello)
        expected = self._tokens.get(identity, "")
        if not expected or not hmac.compare_digest(expected.encode(), token.encode()):
            raise Refused("unknown token for this worker")
        return identity
