"""Network of a worker group: one network interface, and a store that listens there."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from contextlib import suppress

from torch._C._distributed_c10d import TCPStore


def start_store(host: str) -> TCPStore:
    """Store through which workers find each other: it listens at `host` alone, not on all interfaces like torch's own
    socket."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        descriptor = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def use_interface_of(address: str) -> None:
    """Have gloo and nccl talk through the network interface that has an IPv4 address, if there is one, and no other:
    the loopback interface on a cluster that keeps to itself. What the user has set stays."""
    for name, own in interfaces().items():
        if own == address:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def interfaces() -> dict[str, str]:
    """IPv4 address of every network interface that has one (Linux; elsewhere none)."""
    get_interface_address = 0x8915
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex() if sys.platform == "linux" else ():
            with suppress(OSError):  # it has none
                said = fcntl.ioctl(asked, get_interface_address, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(said[20:24])
    return found
