"""The one seam to the API server.

Everything the operator says to Kubernetes goes through ``Kube``: plain dictionaries over the transport of
``kubernetes.aio``, which brings configuration, credentials that renew themselves, and TLS. Typed models would drop
fields that a newer API server knows; dictionaries keep them. Each call has a time limit, each failure is a
``KubeError`` with the API server's own words, and "not found" on reading or deleting is an answer, not an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
from kubernetes.aio import client, config
from yaml import YAMLError

from rex_operator.api import API_VERSION, PLURAL

Object: TypeAlias = dict[str, Any]

REQUEST_TIMEOUT_S = 20.0
WATCH_SECONDS = 290
PAGE = 500


@dataclass(frozen=True)
class Resource:
    """A kind of object: where it lives in the API."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of a collection, an object or its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


PODS = Resource("v1", "pods")
SERVICES = Resource("v1", "services")
CONFIG_MAPS = Resource("v1", "configmaps")
SECRETS = Resource("v1", "secrets")
NODES = Resource("v1", "nodes", namespaced=False)
EVENTS = Resource("events.k8s.io/v1", "events")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "endpointslices")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies")
DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets")
LEASES = Resource("coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews", namespaced=False)
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
REXJOBS = Resource(API_VERSION, PLURAL)


class KubeError(Exception):
    """The API server refused, or could not be reached (``status`` 0). ``message`` is its own wording."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}" if status else message)

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 409, 410, 429) or self.status >= 500


class Kube:
    """A connection to one API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self.api = api

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Kube:
        """Connect with the pod's own service account, or with a kubeconfig when given or outside a cluster."""
        settings = client.Configuration()
        settings.connection_pool_maxsize = 64
        if kubeconfig is not None and not Path(kubeconfig).is_file():
            raise KubeError(0, "BadKubeconfig", f"{kubeconfig}: no such kubeconfig file")
        if kubeconfig is None:
            try:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
                return cls(client.ApiClient(settings))
            except config.ConfigException:
                pass  # not in a cluster: the kubeconfig of the person who runs this
        await _load(settings, kubeconfig, None, kubeconfig or "no pod's service account, and the default kubeconfig")
        return cls(client.ApiClient(settings))

    @classmethod
    async def connect_as_user(cls, kubeconfig: str | None, context: str | None) -> tuple[Kube, str]:
        """Connect as kubectl does: the file given, else ``$KUBECONFIG``, else the home folder's, which stay unchanged.

        Returns the connection and the context's namespace. Raises ``KubeError``.
        """
        where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        if not any(Path(part).expanduser().is_file() for part in where.split(os.pathsep) if part):
            raise KubeError(0, "BadKubeconfig", f"{where}: no such kubeconfig file")
        settings = client.Configuration()
        namespace = await _load(settings, where, context, where)
        return cls(client.ApiClient(settings)), namespace

    def credentials(self) -> Object:
        """How we connect, in the terms of ``kopf.ConnectionInfo``; holds secrets."""
        settings = self.api.configuration
        token = (settings.api_key or {}).get("BearerToken")
        return {
            "server": settings.host,
            "ca_path": settings.ssl_ca_cert,
            "insecure": not settings.verify_ssl,
            "certificate_path": settings.cert_file,
            "private_key_path": settings.key_file,
            "token": token.split(" ", 1)[-1] if token else None,
        }

    async def close(self) -> None:
        """Close all connections."""
        await self.api.close()  # type: ignore[no-untyped-call]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Object:
        """One request with a JSON answer. Raises ``KubeError``."""
        response = await self._send(method, path, query, body, content_type, aiohttp.ClientTimeout(total=timeout_s))
        try:
            data = await response.read()
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise KubeError(0, "Unreachable", f"the API server's answer broke off: {error}") from error
        if response.status >= 300:
            raise _error(response.status, data)
        answer: Object = json.loads(data) if data else {}
        return answer

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object, or None when there is none."""
        try:
            return await self.request("GET", resource.path(namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects, read in pages, and the resource version of the list."""
        items: list[Object] = []
        query: dict[str, str | int] = {"limit": PAGE}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            page = await self.request("GET", resource.path(namespace), query=query)
            items += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = more

    async def create(self, resource: Resource, namespace: str | None, body: Object, *, dry_run: bool = False) -> Object:
        """Create the object and return what the API server made of it."""
        query = {"dryRun": "All"} if dry_run else None
        return await self.request("POST", resource.path(namespace), query=query, body=body)

    async def apply(
        self, resource: Resource, namespace: str | None, body: Object, *, manager: str, subresource: str | None = None
    ) -> Object:
        """Server-side apply: own exactly the fields in ``body``, whoever else wrote the rest."""
        return await self.request(
            "PATCH",
            resource.path(namespace, body["metadata"]["name"], subresource),
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def merge(self, resource: Resource, namespace: str | None, name: str, patch: Object) -> Object:
        """JSON merge patch."""
        path = resource.path(namespace, name)
        return await self.request("PATCH", path, body=patch, content_type="application/merge-patch+json")

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str | None = None
    ) -> Object | None:
        """Delete the object (with this UID only, if given); None when it was gone already."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            return await self.request("DELETE", resource.path(namespace, name), body=options)
        except KubeError as error:
            if error.status == 404 or (error.status == 409 and uid):
                return None
            raise

    async def watch(
        self, resource: Resource, namespace: str | None, *, labels: str, since: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after version ``since``, until the server ends the stream. Raises ``KubeError`` (410: list anew)."""
        query: dict[str, str | int] = {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
        }
        query |= {"labelSelector": labels} if labels else {}
        # A silent connection is dead: bookmarks come about every minute.
        limit = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
        response = await self._send("GET", resource.path(namespace), query, None, "application/json", limit)
        try:
            if response.status >= 300:
                raise _error(response.status, await response.read())
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 500), json.dumps(event["object"]).encode())
                yield event["type"], event["object"]
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise KubeError(0, "Unreachable", f"the watch of {resource.plural} broke off: {error!r}") from error
        finally:
            response.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        body: Any,
        content_type: str,
        limit: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        # The signing keys are served as their own kind of JSON and as nothing else.
        headers = {"Accept": "application/json, application/jwk-set+json", "Content-Type": content_type}
        serialized = await self.api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self.api.call_api(*serialized, _request_timeout=limit)
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise KubeError(0, "Unreachable", f"the API server cannot be reached: {error!r}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _load(settings: client.Configuration, kubeconfig: str | None, context: str | None, where: str) -> str:
    """Read a kubeconfig into the settings and return the namespace of its context. Raises ``KubeError``."""
    try:
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, context=context, client_configuration=settings, persist_config=False
        )
        return str(loader.current_context.get("context", {}).get("namespace") or "default")
    except (config.ConfigException, YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise KubeError(0, "BadKubeconfig", f"{where}: cannot be used: {str(error)[:300]}") from None


def _error(status: int, data: bytes) -> KubeError:
    try:
        answer = json.loads(data)
        return KubeError(status, str(answer.get("reason", "")), str(answer.get("message", ""))[:2000])
    except (ValueError, AttributeError):
        return KubeError(status, "", data[:200].decode(errors="replace"))
