"""The switch between the hosts of a bed: a process that copies Ethernet frames between their TAP devices.

It can cut a host off, delay its frames, and lose a share of them; the kernel's own means for this, netem, is often
missing. Run as `python -m tests.hosts.switch FD`, with a socket to the bed.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass
from itertools import count

FRAME, AT_ONCE = 65_536, 64
"""Bytes of the longest frame, and frames that are read of one host before the others' turn."""


@dataclass
class Port:
    """A host's end. tap: file descriptor. delay [s] and lose [share] count for each frame from or to the host."""

    tap: int
    cut: bool = False
    delay: float = 0.0
    lose: float = 0.0
    passed: int = 0
    dropped: int = 0
    lost: int = 0


class Switch:
    """Forwards frames until the bed closes its end of `control`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ports: dict[int, Port] = {}
        self._waiting: list[tuple[float, int, int, int, bytes]] = []
        """Delayed frames: when they are due, a serial number, the hosts they are from and to."""
        self._number, self._random = count(), random.Random(0)
        self._selector = selectors.SelectSelector()  # epoll would round delays up to whole milliseconds
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            for key, _ in self._selector.select(wait):
                if key.fileobj is not self._control:
                    self._read(key.data)
                elif not self._obey():
                    return
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, source, target, frame = heapq.heappop(self._waiting)
                self._deliver(source, target, frame)

    def _obey(self) -> bool:
        """Answer one request, [host, what to set], with the host's port; False if there are no more."""
        data, taps, *_ = socket.recv_fds(self._control, FRAME, 1)
        if not data:
            return False
        host, changes = json.loads(data)
        if host in self._ports and (taps or changes is None):
            self._selector.unregister(self._ports[host].tap)
            os.close(self._ports.pop(host).tap)
        if taps:
            self._ports[host] = Port(taps[0])
            self._selector.register(taps[0], selectors.EVENT_READ, host)
        for name, value in (changes or {}).items():
            setattr(self._ports[host], name, value)
        self._control.send(json.dumps(asdict(self._ports[host]) if host in self._ports else {}).encode())
        return True

    def _read(self, source: int) -> None:
        for _ in range(AT_ONCE):
            if source not in self._ports:
                return
            try:
                frame = os.read(self._ports[source].tap, FRAME)
            except BlockingIOError:
                return
            # A host's number is the last byte of its address; an odd first byte is a frame to all.
            others = [host for host in self._ports if host != source]
            for target in others if frame[0] & 1 else {frame[5]}.intersection(others):
                self._pass_on(source, target, frame)

    def _pass_on(self, source: int, target: int, frame: bytes) -> None:
        ports = self._ports[source], self._ports[target]
        for port in ports:
            if port.lose and self._random.random() < port.lose:
                port.lost += 1
                return
        if delay := sum(port.delay for port in ports):
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._number), source, target, frame))
        else:
            self._deliver(source, target, frame)

    def _deliver(self, source: int, target: int, frame: bytes) -> None:
        ports = [self._ports[host] for host in (source, target) if host in self._ports]
        for port in ports:
            if port.cut:
                port.dropped += 1
                return
        if len(ports) == 2:
            os.write(ports[1].tap, frame)
            for port in ports:
                port.passed += 1


if __name__ == "__main__":
    Switch(socket.socket(fileno=int(sys.argv[1]))).run()
