"""kubectl as the tests use it: JSON in and out, and waiting by watch with a deadline.

Tests speak to the cluster through the program that users have, so that what they prove is what users see.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.shell import ClusterError, run

Object = dict[str, Any]


class Kubectl:
    """One cluster, as its administrator."""

    def __init__(self, program: Path | str, kubeconfig: Path) -> None:
        self.program = str(program)
        self.kubeconfig = kubeconfig

    def command(self, *arguments: str | Path) -> list[str]:
        """The whole command line."""
        return [self.program, f"--kubeconfig={self.kubeconfig}", *(str(argument) for argument in arguments)]

    def __call__(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 60) -> str:
        """Run and return what it printed. Raises ``ClusterError`` with the server's words."""
        return run(*self.command(*arguments), stdin=stdin, timeout=timeout)

    def apply(self, *objects: Mapping[str, Any], namespace: str | None = None) -> None:
        """Apply manifests."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self("apply", "-f", "-", *_in(namespace), stdin=text)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None when it is not there."""
        text = self("get", kind, name, *_in(namespace), "--ignore-not-found", "-o", "json")
        found: Object | None = json.loads(text) if text.strip() else None
        return found

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """The objects of a kind; of all namespaces when none is given."""
        scope = _in(namespace) or ["--all-namespaces"]
        items: list[Object] = json.loads(self("get", kind, *scope, "-l", selector, "-o", "json"))["items"]
        return items

    def patch(self, kind: str, name: str, patch: Any, *, namespace: str | None = None, subresource: str = "") -> None:
        """Change an object: a list is a JSON patch, anything else a merge patch."""
        form = "json" if isinstance(patch, list) else "merge"
        sub = [f"--subresource={subresource}"] if subresource else []
        self("patch", kind, name, *_in(namespace), *sub, f"--type={form}", "-p", json.dumps(patch))

    def watch(
        self, kind: str, *, namespace: str | None = None, name: str = "", selector: str = "", seconds: float
    ) -> Iterator[tuple[str, Object]]:
        """Events ``(ADDED | MODIFIED | DELETED, object)``, beginning with what is there, until the deadline."""
        deadline = time.monotonic() + seconds
        chosen = [f"--field-selector=metadata.name={name}"] if name else []
        scope = _in(namespace) or ["--all-namespaces"]
        arguments = ["get", kind, *scope, *chosen, "-l", selector, "--watch", "--output-watch-events", "-o", "json"]
        while time.monotonic() < deadline:
            yield from _events(self.command(*arguments), deadline)

    def wait(
        self,
        kind: str,
        name: str,
        until: Callable[[Object], bool],
        *,
        namespace: str | None = None,
        seconds: float,
        what: str = "",
    ) -> Object:
        """The object as it was when ``until`` first held; else ``ClusterError`` with its last state."""
        last: Object | None = None
        for event, seen in self.watch(kind, namespace=namespace, name=name, seconds=seconds):
            last = None if event == "DELETED" else seen
            if last is not None and until(last):
                return last
        raise ClusterError(
            f"{kind} {name}: not {what or 'as wanted'} within {seconds:.0f} s; last seen: {_brief(last)}"
        )

    def wait_gone(self, kind: str, name: str, *, namespace: str | None = None, seconds: float) -> None:
        """Wait until the object is no more. Raises ``ClusterError`` if it stays.

        By asking again, not by a watch: an object that goes before the watch has begun would be waited for in vain.
        """
        deadline = time.monotonic() + seconds
        while (there := self.get(kind, name, namespace)) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"{kind} {name} is still there after {seconds:.0f} s: {_brief(there)}")
            time.sleep(0.2)


def _events(command: list[str], deadline: float) -> Iterator[tuple[str, Object]]:
    events: queue.Queue[tuple[str, Object] | None] = queue.Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:

        def read() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                event = json.loads(line)
                events.put((event["type"], event["object"]))
            events.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    event = events.get(timeout=left)
                except queue.Empty:
                    return
                if event is None:
                    break
                yield event
        finally:
            child.kill()
            reader.join()
            words = child.stderr.read() if child.stderr else ""
    if "error:" in words.lower() and time.monotonic() < deadline:
        # A kind that is not known yet, a server that restarts: the caller's deadline says for how long that is fine.
        time.sleep(0.5)


def _in(namespace: str | None) -> list[str]:
    return ["-n", namespace] if namespace else []


def _brief(found: Object | None) -> str:
    if found is None:
        return "(not there)"
    return json.dumps({"metadata": _identity(found), **{k: found.get(k) for k in ("spec", "status")}})[:3000]


def _identity(found: Object) -> Object:
    metadata = found.get("metadata", {})
    return {key: metadata.get(key) for key in ("name", "uid", "generation", "deletionTimestamp")}
