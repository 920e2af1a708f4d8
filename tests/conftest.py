"""What all tests share: the fixtures of real Kubernetes."""

from __future__ import annotations

from tests.cluster.fixtures import api_server, cluster, say, worker_image
from tests.controller.server import rex_server

__all__ = ["api_server", "cluster", "rex_server", "say", "worker_image"]
