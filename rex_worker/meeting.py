"""How the workers of a new generation find each other.

Every worker keeps a key-value store open for its whole life; the generation's rank 0 lends its own, under a prefix
that no other generation uses. Members arrive when they can: one is still in an evaluation, another is a newcomer. So
they meet in the store first, with nothing but patience, and build the process group only when all are there; then a
short time-out of the collectives is enough, and a meeting that the operator has called off is simply left.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from rex_worker.errors import ConfigurationError, GroupLost
from rex_worker.group import Group
from rex_worker.patience import Superseded, pauses
from rex_worker.protocol import Membership
from rex_worker.store import PatientStore

log = logging.getLogger("rex.meeting")

MEETING_TIMEOUT_S = 900.0
_CONNECT_S = 5.0
_BACKLOG = 1024
_SIOCGIFADDR = 0x8915


class Meeting:
    """This worker's store and its way into the groups of others."""

    def __init__(self, address: str, device: torch.device) -> None:
        self._device = device
        name = interface_of(address)
        if name is not None:
            # Else gloo takes the interface of the host's own name, which may be loopback or another network.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
        self._own = _open_store(address)
        self.port = self._own.port

    def join(self, membership: Membership, rank: int, superseded: Superseded) -> Group:
        """Meet the members and form their group; ``rank`` is this worker's place.

        Raises:
            GroupLost: Rank 0 is not reachable, a newer generation was named, or somebody did not come in time.
        """
        size = len(membership.members)
        if size == 1:
            return self._group(membership, rank, None, superseded)
        deadline = time.monotonic() + MEETING_TIMEOUT_S
        reached = self._reach(membership, rank, superseded, deadline)
        store = PatientStore(PrefixStore(f"g{membership.generation}", reached), superseded)
        try:
            if store.add("arrived") == size:
                store.announce("all-here")
            for pause in pauses():
                if store.announced("all-here"):
                    break
                _give_up(superseded, deadline)
                time.sleep(pause)
        except GroupLost:
            store.close()
            raise
        return self._group(membership, rank, store, superseded)

    def _group(self, membership: Membership, rank: int, store: PatientStore | None, superseded: Superseded) -> Group:
        return Group(
            membership.generation,
            rank,
            len(membership.members),
            self._device,
            store,
            membership.collective_timeout_s,
            superseded,
        )

    def _reach(self, membership: Membership, rank: int, superseded: Superseded, deadline: float) -> Store:
        if rank == 0:
            return self._own
        host = membership.members[0]
        while True:
            try:
                return TCPStore(
                    host.address,
                    host.store_port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=_CONNECT_S),
                )
            except (RuntimeError, ValueError) as error:
                log.info("store of %s not reachable yet: %s", host.worker_id, str(error).partition("\n")[0][:200])
                _give_up(superseded, deadline)
                time.sleep(0.1)


def _open_store(address: str) -> TCPStore:
    """Open a store that listens on ``address`` only: it knows no passwords."""
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    try:
        listener = socket.create_server((where[0], 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"REX_ADDRESS is {address!r}, which this host cannot listen on: {error}") from None
    port = listener.getsockname()[1]
    return TCPStore(str(where[0]), port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _give_up(superseded: Superseded, deadline: float) -> None:
    if superseded():
        raise GroupLost("a newer generation was named while the group met")
    if time.monotonic() > deadline:
        raise GroupLost(f"not all members came within {MEETING_TIMEOUT_S:g} s")


def interface_of(address: str) -> str | None:
    """Name of the network interface that has ``address`` (a name or an IP); None when none of this host's has it."""
    try:
        wanted = {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except OSError as error:
        raise ConfigurationError(f"REX_ADDRESS is {address!r}, which does not resolve: {error}") from None
    found = {**_ipv4_interfaces(), **_ipv6_interfaces()}
    return next((found[ip] for ip in wanted if ip in found), None)


def _ipv4_interfaces() -> dict[object, str]:
    import fcntl

    found: dict[object, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[ipaddress.IPv4Address(reply[20:24])] = name
    return found


def _ipv6_interfaces() -> dict[object, str]:
    found: dict[object, str] = {}
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            fields = line.split()
            found[ipaddress.IPv6Address(bytes.fromhex(fields[0]))] = fields[-1]
    return found
