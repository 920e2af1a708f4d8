"""The one place that says which versions the test cluster is made of.

A change here changes ``KEY`` and thereby the folder that the programs are cached in, so that an old cache is never
mistaken for the new versions.
"""

from __future__ import annotations

import hashlib

KUBERNETES = "v1.36.3"
KUBERNETES_STAGING = "v0.36.3"
"""Version of the ``k8s.io/*`` modules that Kubernetes is published as."""
ETCD = "v3.6.16"
CONTAINERD = "v2.2.9"
HELM = "v3.21.4"
COREDNS = "v1.15.0"
KWOK = "v0.8.0"
GO_LANGUAGE = "1.26.0"

PAUSE_IMAGE = "registry.local/rex-test-pause:1"

KEY = hashlib.sha256(
    repr(("recipe 1", KUBERNETES, KUBERNETES_STAGING, ETCD, CONTAINERD, HELM, COREDNS, KWOK, GO_LANGUAGE)).encode()
).hexdigest()[:12]
