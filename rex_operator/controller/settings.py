"""How one operator process is set up: flags first, then environment, then defaults that suit the shipped manifests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rex_operator.channel import PATH

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Settings:
    """What an operator process needs to know."""

    namespace: str
    """Its own: for the Lease, the certificates and the channel's endpoints."""
    watched: tuple[str, ...] = ()
    """Namespaces whose jobs it runs; empty: all."""
    identity: str = "rex-operator"
    pod_ip: str = ""
    """Where workers reach this process; empty outside a cluster: then no EndpointSlice is written."""
    channel_host: str = "0.0.0.0"  # noqa: S104  workers come from other nodes
    channel_port: int = 8443
    channel_service: str = "rex-channel"
    channel_url: str = ""
    certificate_secret: str = "rex-channel-tls"  # noqa: S105  a name, not a secret
    health_port: int = 8080
    leader_elect: bool = True
    lease: str = "rex-operator"
    log_level: str = "info"
    kubeconfig: str | None = None
    workers: int = 8
    """Jobs reconciled at the same time."""
    search_processes: int = 1
    network_policy: bool = True

    @property
    def url(self) -> str:
        """What workers are told to connect to."""
        host = f"{self.channel_service}.{self.namespace}.svc"
        return self.channel_url or f"wss://{host}:{self.channel_port}{PATH}"

    @property
    def certificate_hosts(self) -> list[str]:
        """Names that the channel's certificate is good for."""
        name = f"{self.channel_service}.{self.namespace}"
        hosts = [self.channel_service, name, f"{name}.svc", f"{name}.svc.cluster.local"]
        told = urlsplit(self.url).hostname or ""
        return hosts if told in hosts else [*hosts, told]


def read_settings(arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read flags and environment. Exits with a message on a bad flag, as command-line programs do."""
    parser = argparse.ArgumentParser(prog="rex operator", description="Run the REX operator.")
    env = environment.get

    def flag(name: str, default: str, text: str) -> None:
        variable = f"REX_OPERATOR_{name.replace('-', '_').upper()}"
        parser.add_argument(f"--{name}", default=env(variable, default), help=f"{text} (or ${variable})")

    flag("watch-namespaces", "", "comma-separated namespaces whose jobs to run; empty: all")
    flag("namespace", env("POD_NAMESPACE") or _own_namespace(), "the operator's own namespace")
    flag("channel-port", "8443", "port of the worker channel")
    flag("channel-host", "0.0.0.0", "address that the worker channel listens on")  # noqa: S104
    flag("channel-service", "rex-channel", "Service, without selector, that workers connect to")
    flag("channel-url", "", "what workers connect to instead of the Service")
    flag("certificate-secret", "rex-channel-tls", "Secret with the channel's certificates; made when missing")
    flag("health-port", "8080", "port of /healthz, /readyz and /metrics")
    flag("lease", "rex-operator", "Lease by which one of several operators leads")
    flag("leader-elect", "true", "false: lead at once, for a single process on a developer's machine")
    flag("log-level", "info", "debug, info, warning or error")
    flag("kubeconfig", "", "kubeconfig file; empty: the pod's own account, else the user's file")
    flag("workers", "8", "jobs reconciled at the same time")
    flag("search-processes", "1", "processes for the planner's searches")
    flag("network-policy", "true", "false: make no NetworkPolicy for jobs")
    given = parser.parse_args(arguments)

    def number(name: str, low: int, high: int) -> int:
        text = str(getattr(given, name))
        if not text.isdigit() or not low <= int(text) <= high:
            parser.error(f"--{name.replace('_', '-')}: {text!r} is not a number from {low} to {high}")
        return int(text)

    def switch(name: str) -> bool:
        text = str(getattr(given, name)).lower()
        if text not in ("true", "false"):
            parser.error(f"--{name.replace('_', '-')}: {text!r} is neither true nor false")
        return text == "true"

    if given.log_level.lower() not in ("debug", "info", "warning", "error"):
        parser.error(f"--log-level: {given.log_level!r} is none of debug, info, warning, error")
    return Settings(
        namespace=given.namespace,
        watched=tuple(sorted({name.strip() for name in given.watch_namespaces.split(",") if name.strip()})),
        identity=env("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}",
        pod_ip=env("POD_IP", ""),
        channel_host=given.channel_host,
        channel_port=number("channel_port", 0, 65535),
        channel_service=given.channel_service,
        channel_url=given.channel_url,
        certificate_secret=given.certificate_secret,
        health_port=number("health_port", 0, 65535),
        leader_elect=switch("leader_elect"),
        lease=given.lease,
        log_level=given.log_level.lower(),
        kubeconfig=given.kubeconfig or None,
        workers=number("workers", 1, 256),
        search_processes=number("search_processes", 1, 64),
        network_policy=switch("network_policy"),
    )


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.is_file() else "rex-system"
