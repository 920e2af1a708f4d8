"""Ports for servers that start later, or start again on the same one.

A port that the kernel hands out on request (bind to 0) comes from the range from which it also takes the near end of
every outgoing connection. Until the server is up, or while it is down, any connection on the machine may sit on it. So
these are drawn from below that range, where only somebody who asks for the very number could be in the way.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
"""Our choice: above the ports of well-known services."""


def quiet_port(address: str = "127.0.0.1") -> int:
    """A port that nobody uses now and that the kernel gives to nobody by itself."""
    last = int(_OUTGOING.read_text().split()[0])
    for port in random.SystemRandom().sample(range(_FIRST, last), 100):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found from {_FIRST} to {last}")
