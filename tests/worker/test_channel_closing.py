from __future__ import annotations

from pathlib import Path

from rex_worker.channel import Channel, Introduction, Standing
from rex_worker.directives import Directives
from rex_worker.environment import Environment
from rex_worker.protocol import Left


class Silent(Channel):
    """Has nothing to say."""

    def _run(self) -> None:
        self._loop.close()


def test_a_channel_whose_thread_has_ended_can_still_be_told_and_closed(tmp_path: Path) -> None:
    """Its thread ends by itself as soon as all is said, at any moment of the closing process' own calls."""
    token = tmp_path / "token"
    token.write_text("t")
    environment = Environment.read(
        {
            "REX_CHANNEL_URL": "ws://127.0.0.1:9/v1/channel",
            "REX_JOB": "ns/job",
            "REX_WORKER_ID": "w0",
            "REX_INCARNATION": "one",
            "REX_TOKEN_FILE": str(token),
        }
    )
    channel = Silent(environment, Introduction(0, 1), Directives(), Standing())
    channel._thread.join()
    channel.send(Left(reason="finished"))
    assert channel.close(1.0)
