"""What all tests share: the fixtures of real Kubernetes."""

from __future__ import annotations

from tests.cluster.fixtures import api_server, cluster, say, worker_image
from tests.controller.server import quiet_server, rex_server

__all__ = ["api_server", "cluster", "quiet_server", "rex_server", "say", "worker_image"]
