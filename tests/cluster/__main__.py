"""A test cluster by hand: ``python -m tests.cluster build | up | down | status | load-image``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster import cache, images, prerequisites, programs
from tests.cluster.providers import attach, makes_own, remove, start
from tests.cluster.shell import ClusterError


def main() -> int:
    """Run the command line; the exit code is 0 when it did what was asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--name", default="dev", help="which cluster, where several run (default: %(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("build", _build, "build all programs and images, without starting anything")
    up = command("up", _up, "start a cluster, or tell of the one that runs")
    up.add_argument("--nodes", type=int, default=3, choices=range(1, 10), metavar="N", help="default: %(default)s")
    down = command("down", _down, "end the cluster and delete its state")
    down.add_argument("--all", action="store_true", help="those that crashed test runs left, too")
    command("status", _status, "show whether the cluster runs, and its nodes and pods")
    load = command("load-image", _load, "bring images onto the nodes")
    load.add_argument(
        "image", nargs="*", default=list(images.NAMES), help="'operator', 'worker' or the path of an archive"
    )

    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _build(_: argparse.Namespace) -> None:
    if makes_own():
        prerequisites.ensure_root()
        prerequisites.ensure((*prerequisites.NODES, *prerequisites.IMAGES), _say)
        found = programs.find(programs.ALL, _say)
        images.pause(found["pause"], _say)
        for target, name in images.NAMES.items():
            images.build(target, name, _say)
    else:
        programs.find(programs.BESIDE_A_CLUSTER, _say)
    _say(f"what the test cluster needs is in {cache.root()}")


def _up(arguments: argparse.Namespace) -> None:
    kubeconfig = _kubeconfig(arguments)
    if kubeconfig.exists():
        cluster = attach(kubeconfig, _say)
        try:
            _say(f"the cluster already runs with {len(cluster.node_names())} nodes")
        except ClusterError:
            _say("the cluster of an earlier run does not answer: starting anew")
            start(arguments.name, arguments.nodes, _say)
    else:
        start(arguments.name, arguments.nodes, _say)
    print(f"export KUBECONFIG={kubeconfig} REX_TEST_KUBECONFIG={kubeconfig}")


def _down(arguments: argparse.Namespace) -> None:
    names = [arguments.name]
    if arguments.all:
        names = sorted(path.name for path in cache.clusters().glob("*") if path.is_dir())
    for name in names:
        held = cache.try_lock(f"cluster-{name}")
        if held is None:
            _say(f"{name} is in use by a test run: left alone")
            continue
        remove(name)
        _say(f"{name} is gone")


def _status(arguments: argparse.Namespace) -> None:
    cluster = attach(_running(arguments), _say)
    print(cluster.kubectl("get", "nodes", "-L", "rex.dev/device"))
    print(cluster.kubectl("get", "pods", "--all-namespaces", "-o", "wide"))


def _load(arguments: argparse.Namespace) -> None:
    cluster = attach(_running(arguments), _say)
    for image in arguments.image:
        archive = images.build(image, images.NAMES[image], _say) if image in images.NAMES else Path(image)
        if not archive.is_file():
            raise ClusterError(f"{image}: neither {' nor '.join(images.NAMES)} nor an image archive's path")
        cluster.load_image(archive)
        _say(f"{image}: loaded onto the nodes as {images.NAMES.get(image, 'what the archive names')}")


def _kubeconfig(arguments: argparse.Namespace) -> Path:
    return cache.clusters() / str(arguments.name) / "kubeconfig"


def _running(arguments: argparse.Namespace) -> Path:
    kubeconfig = _kubeconfig(arguments)
    if not kubeconfig.exists():
        raise ClusterError("no cluster runs; start one: python -m tests.cluster up")
    return kubeconfig


if __name__ == "__main__":
    sys.exit(main())
