"""A cluster that somebody gives: the tests use it and leave it running.

``$REX_TEST_KUBECONFIG`` is always followed. ``$KUBECONFIG`` is followed only when its current context is plainly a
throw-away cluster: the tests install an operator, label nodes and invent GPUs, which nobody wants in a production
cluster that happens to be the shell's default.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

from tests.cluster import programs
from tests.cluster.control_plane import CONTEXT
from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.providers.base import Cluster, equip
from tests.cluster.shell import ClusterError, Say, run

_THROW_AWAY = (CONTEXT, "kind-", "minikube", "k3d-")


def given_kubeconfig() -> Path | None:
    """The kubeconfig that the environment gives. Raises ``ClusterError`` when that file is not there."""
    given = os.environ.get("REX_TEST_KUBECONFIG")
    if given:
        if not Path(given).is_file():
            raise ClusterError(f"REX_TEST_KUBECONFIG={given}: no such file; unset it to have a cluster made.")
        return Path(given).absolute()
    default = os.environ.get("KUBECONFIG", "")
    if not Path(default).is_file() or not shutil.which("kubectl"):
        return None
    try:
        context = run("kubectl", "config", "current-context").strip()
    except ClusterError:
        return None
    return Path(default).absolute() if context.startswith(_THROW_AWAY) else None


class ExistingCluster(Cluster):
    """The cluster of a kubeconfig, of which nothing is known but its API.

    Images must be there already, or loadable by the command in ``$REX_TEST_LOAD_IMAGE`` (it gets the archive's path).
    """

    reaches_nodes: ClassVar[bool] = False

    def __init__(self, kubeconfig: Path, say: Say) -> None:
        self.kubectl = Kubectl(programs.find(["kubectl"], say)["kubectl"], kubeconfig)
        equip(self.kubectl, self.node_names())

    def load_image(self, archive: Path) -> None:
        """Give the archive to ``$REX_TEST_LOAD_IMAGE``."""
        command = os.environ.get("REX_TEST_LOAD_IMAGE")
        if not command:
            raise ClusterError(
                f"this cluster's nodes cannot be reached to load {archive.name}: set REX_TEST_LOAD_IMAGE to a program"
                " that loads an OCI archive, or unset REX_TEST_KUBECONFIG."
            )
        run(command, archive, timeout=600)

    def kill_container(self, pod: Object, container: str) -> None:
        """Not possible without the nodes; tests look at ``reaches_nodes`` first."""
        raise ClusterError(f"cannot kill {container} of {pod['metadata']['name']}: the nodes cannot be reached")

    def cut_off(self, pod: Object, container: str) -> None:
        """Not possible either."""
        raise ClusterError(f"cannot cut {pod['metadata']['name']} off: the nodes cannot be reached")

    def diagnose(self) -> str:
        """Nothing but the API is known."""
        return ""

    def stop(self) -> None:
        """Leaves the cluster as it is: it is not ours."""
