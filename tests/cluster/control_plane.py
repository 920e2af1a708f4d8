"""etcd, API server, controller manager and scheduler of one test cluster.

Two settings use it: behind loopback on free ports for tests that need no nodes (and no root), and inside a cluster's
own network for kubelets. Every start waits for the answer of the thing started; what does not answer is reported with
the end of its log.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster import processes
from tests.cluster.network import SERVICE_SUBNET
from tests.cluster.ports import quiet_port
from tests.cluster.processes import Process

CONTEXT = "rex-test"
_START_SECONDS = 90


@dataclass(frozen=True)
class Ports:
    """Where the parts listen."""

    etcd: int = 2379
    etcd_peer: int = 2380
    api: int = 6443

    @classmethod
    def free(cls) -> Ports:
        """Ports that nobody uses now on loopback."""
        found: set[int] = set()
        while len(found) < 3:
            found.add(quiet_port())
        return cls(*found)


@dataclass
class ControlPlane:
    """A control plane that keeps its state in ``folder``. ``address`` is where clients find the API server."""

    folder: Path
    programs: Mapping[str, Path]
    address: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    enter: list[str] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def certificate(self) -> Path:
        """The API server's certificate, which signs itself."""
        return self.folder / "certificates" / "apiserver.crt"

    def start(self, *, scheduler: bool) -> None:
        """Start all parts. Raises ``ClusterError`` when one does not answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        _write_private(self.folder / "tokens.csv", f"{token},admin,admin,system:masters\n")
        self._make_service_account_key()
        self._start_etcd()
        self._start_api_server(token)
        self._write_kubeconfig(token)
        manager = self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.folder}/service-accounts.key",
            f"--root-ca-file={self.certificate}",
            "--use-service-account-credentials=true",
            "--controllers=*,-nodeipam,-cloud-node-lifecycle",
            "--leader-elect=false",
            "--secure-port=0",
            "--node-monitor-grace-period=20s",
        )
        if scheduler:
            self._spawn("kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        # A service account is the first thing that a pod needs of the controller manager.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        processes.await_healthy(manager, lambda: self._lacks(token, account), _START_SECONDS)

    def _start_etcd(self) -> None:
        url, peer = f"http://127.0.0.1:{self.ports.etcd}", f"http://127.0.0.1:{self.ports.etcd_peer}"
        self._spawn(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _start_api_server(self, token: str) -> None:
        alone = self.address == "127.0.0.1"
        server = self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--secure-port={self.ports.api}",
            f"--bind-address={'127.0.0.1' if alone else '0.0.0.0'}",
            f"--advertise-address={self.address}",
            # The endpoints of the `kubernetes` service may not be loopback addresses; without pods nobody asks.
            f"--endpoint-reconciler-type={'none' if alone else 'lease'}",
            f"--cert-dir={self.folder}/certificates",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/service-accounts.pub",
            f"--service-account-signing-key-file={self.folder}/service-accounts.key",
            f"--service-cluster-ip-range={SERVICE_SUBNET}",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        processes.await_healthy(server, lambda: self._lacks(token, "/readyz"), _START_SECONDS)

    def _lacks(self, token: str, path: str) -> str | None:
        """Why the API server does not answer ``path`` with 200, or None when it does."""
        if not self.certificate.exists():
            return "no certificate yet"
        url = f"https://{self.address}:{self.ports.api}{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            context = ssl.create_default_context(cafile=str(self.certificate))
            with urllib.request.urlopen(request, timeout=5, context=context):
                return None
        except urllib.error.HTTPError as error:
            with error:
                return f"{path}: {error.code} {error.read(2000).decode(errors='replace')}"
        except OSError as error:
            return f"{path}: {error}"

    def _spawn(self, name: str, *arguments: str) -> Process:
        return processes.spawn(name, [*self.enter, self.programs[name], *arguments], self.folder)

    def _make_service_account_key(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        _write_private(self.folder / "service-accounts.key", private.decode())
        (self.folder / "service-accounts.pub").write_bytes(public)

    def _write_kubeconfig(self, token: str) -> None:
        server = {
            "server": f"https://{self.address}:{self.ports.api}",
            "certificate-authority": str(self.certificate),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": server}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": "admin"}}],
            "current-context": CONTEXT,
        }
        _write_private(self.kubeconfig, json.dumps(config, indent=1))


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
