"""What REX takes for granted of a cluster holds on this one: names, services, identities, devices, torch."""

from __future__ import annotations

import json

from tests.cluster.providers import Cluster
from tests.e2e.pods import python_pod, run_to_end


def test_service_name_leads_to_its_pod(cluster: Cluster, worker_image: str, namespace: str) -> None:
    serve = "import http.server as h; h.HTTPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    listening = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    server = python_pod(
        "server", worker_image, serve, container={"workingDir": "/opt/rex", "readinessProbe": listening}
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    cluster.kubectl.apply(server, service, namespace=namespace)
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready", "-n", namespace, "--timeout=60s")

    # Rules and names reach the node a moment after the pod is ready: the client waits for them as any client must.
    ask = """
import time, urllib.request as u
for _ in range(200):
    try:
        print(u.urlopen('http://server/', timeout=10).status)
        break
    except OSError:
        time.sleep(0.2)
"""
    assert run_to_end(cluster.kubectl, namespace, python_pod("client", worker_image, ask)) == "200\n"


def test_projected_token_is_known_with_its_pod(cluster: Cluster, worker_image: str, namespace: str) -> None:
    token = {"serviceAccountToken": {"audience": "rex.dev", "path": "token", "expirationSeconds": 600}}
    pod = python_pod(
        "teller",
        worker_image,
        "print(open('/var/run/rex/token').read())",
        volumes=[{"name": "identity", "projected": {"sources": [token]}}],
        mounts=[{"name": "identity", "mountPath": "/var/run/rex", "readOnly": True}],
    )
    told = run_to_end(cluster.kubectl, namespace, pod).strip()

    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": told, "audiences": ["rex.dev"]},
    }
    answer = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    status = json.loads(answer)["status"]
    assert status["authenticated"]
    assert status["audiences"] == ["rex.dev"]
    extra = status["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["teller"]
    running = cluster.kubectl.get("pod", "teller", namespace)
    assert running is not None
    assert extra["authentication.kubernetes.io/pod-uid"] == [running["metadata"]["uid"]]


def test_torch_computes_in_a_pod_that_may_nothing(cluster: Cluster, worker_image: str, namespace: str) -> None:
    locked = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod = python_pod(
        "torch",
        worker_image,
        "import os, torch, rex_worker; print(os.getuid(), torch.ones(3).sum().item(), rex_worker.__file__)",
        container={"securityContext": locked},
        nodeSelector={"rex.dev/device": "a100"},
    )
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    told = run_to_end(cluster.kubectl, namespace, pod).split()
    assert told == ["65532", "3.0", "/opt/rex/site-packages/rex_worker/__init__.py"]


def test_killed_container_is_noticed(cluster: Cluster, worker_image: str, namespace: str) -> None:
    cluster.kubectl.apply(python_pod("sleeper", worker_image, "import signal; signal.pause()"), namespace=namespace)
    cluster.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "-n", namespace, "--timeout=60s")
    running = cluster.kubectl.get("pod", "sleeper", namespace)
    assert running is not None
    cluster.kill_container(running, "main")
    failed = cluster.kubectl.wait(
        "pod", "sleeper", lambda pod: pod["status"]["phase"] == "Failed", namespace=namespace, seconds=60
    )
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
