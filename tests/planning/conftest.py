"""Property tests are never judged by how long a machine under load takes for an example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rex", deadline=None)
settings.load_profile("rex")
