"""The first process of a host: sets its namespaces up, hands its network device to the switch, and waits for its end.

Run by `tests.hosts.bed` as `python -m tests.hosts.host FD HOST HOSTS SHARED...`, in new namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
BIND, PRIVATE, RECURSIVE = 4096, 1 << 18, 16384
TUNSETIFF, TAP, NO_INFORMATION = 0x400454CA, 2, 4096
MTU = 9000
DEVICE = "eth0"


def name_of(host: int) -> str:
    return f"host{host}"


def address_of(host: int) -> str:
    return f"10.77.0.{host + 1}"


def system(call: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError, with the call's name, if it fails."""
    coded = (os.fsencode(one) if isinstance(one, str | Path) else one for one in arguments)
    if getattr(LIBC, call)(*coded) != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def mount_own(hosts: int, shared: list[Path]) -> None:
    """Mount this host's /tmp, /dev/shm, /proc, and names of hosts. `shared` folders stay visible where they are."""
    kept = [(path, os.open(path, os.O_PATH)) for path in shared]
    system("mount", "none", "/", None, RECURSIVE | PRIVATE, None)
    for own in ("/tmp", "/dev/shm"):
        system("mount", "tmpfs", own, "tmpfs", 0, "mode=1777")
    for folder, descriptor in kept:
        if not folder.exists():
            folder.mkdir(parents=True)
            system("mount", f"/proc/self/fd/{descriptor}", folder, None, BIND | RECURSIVE, None)
        os.close(descriptor)
    names = [f"{address_of(host)} {name_of(host)}" for host in range(hosts)]
    # Name servers of this machine are out of reach, and each look-up would wait for them: here, they refuse at once.
    texts = {"/etc/hosts": "\n".join(["127.0.0.1 localhost", *names, ""]), "/etc/resolv.conf": "nameserver 127.0.0.1\n"}
    for path, text in texts.items():
        file = Path("/dev/shm/file")
        file.write_text(text)
        system("mount", file, path, None, BIND, None)
        file.unlink()
    system("mount", "proc", "/proc", "proc", 0, None)


def make_device(host: int) -> int:
    """Make and configure this host's network device; returns its file descriptor, the other end of the cable."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), TAP | NO_INFORMATION))
    for command in (
        "link set lo up",
        f"link set {DEVICE} address 02:00:00:00:00:{host:02x} mtu {MTU}",
        f"addr add {address_of(host)}/24 dev {DEVICE}",
        f"link set {DEVICE} up",
        f"route add default via {address_of(253)}",  # nothing answers there, but programs look for this route
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return tap


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    host, hosts = int(sys.argv[2]), int(sys.argv[3])
    try:
        socket.sethostname(name_of(host))
        mount_own(hosts, [Path(one) for one in sys.argv[4:]])
        tap = make_device(host)
    except (OSError, subprocess.CalledProcessError) as error:
        control.send(str(error).encode())
        return
    socket.send_fds(control, [b"up"], [tap])
    os.close(tap)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps its orphans
    control.recv(1)  # until the bed has gone, however it ended; the kernel then ends all other processes here


if __name__ == "__main__":
    main()
