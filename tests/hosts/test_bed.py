"""The bed of hosts itself, without Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.processes import load_factor
from tests.hosts.bed import Host, Hosts, processes_in, shifted

ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind((sys.argv[1], 7))
    print("bound", flush=True)
    while True:
        data, sender = own.recvfrom(100)
        own.sendto(data, sender)
"""
PING = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.connect((sys.argv[1], 7))
    own.settimeout(float(sys.argv[3]))
    sent, seconds = [], []
    for number in range(int(sys.argv[2])):
        sent.append(time.monotonic())
        own.send(b"%d" % number)
    try:
        while len(seconds) < len(sent):
            number = int(own.recv(100))
            seconds.append(time.monotonic() - sent[number])
    except OSError:
        pass
    print(len(seconds), min(seconds, default=0.0))
"""
SINK = """
import socket, sys, time
with socket.create_server((sys.argv[1], 9)) as server:
    print("bound", flush=True)
    taken, _ = server.accept()
    started, got = time.monotonic(), 0
    while data := taken.recv(1 << 20): got += len(data)
    print(got / (time.monotonic() - started), flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 9)) as own:
    for _ in range(100): own.sendall(bytes(1 << 20))
"""


def serve(host: Host, program: str) -> subprocess.Popen[str]:
    """Start a server of a host, and wait until it listens."""
    started = host.popen([sys.executable, "-c", program, host.address], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "bound\n"
    return started


def answers(sender: Host, receiver: Host, count: int = 1, wait: float = 0.5) -> tuple[int, float]:
    """How many of `count` datagrams a host's echo answers, each within `wait` s of the last; shortest round trip."""
    answered, seconds = sender.run([sys.executable, "-c", PING, receiver.address, str(count), str(wait)]).split()
    return int(answered), float(seconds)


def test_hosts_are_apart_and_a_cut_one_does_not_answer_until_it_is_healed(hosts: Hosts, tmp_path: Path) -> None:
    for number in (1, 2):
        serve(hosts[number], ECHO)
        hosts[number].run(["sh", "-c", "touch /tmp/of-$(hostname) /dev/shm/of-$(hostname)"])
    looked = [hosts[number].run(["sh", "-c", "hostname; ls /tmp /dev/shm; echo /proc/[0-9]*"]) for number in (1, 2)]
    for number, text in zip((1, 2), looked, strict=True):
        assert re.findall(r"\bof-host.", text) == [f"of-host{number}"] * 2
        assert text.startswith(f"host{number}\n")
        assert len(text.split("/proc/")) < 10, "not the processes of this machine"
    (tmp_path / "shared").touch()
    assert hosts[2].run(["ls", tmp_path]) == "shared\n"

    assert answers(hosts[0], hosts[1])[0] == 1
    hosts.cut(1)
    assert answers(hosts[0], hosts[1])[0] == 0
    assert answers(hosts[0], hosts[2])[0] == 1
    assert hosts.frames(1)["dropped"] > 0
    hosts.heal(1)
    assert answers(hosts[0], hosts[1])[0] == 1

    hosts.delay(1, 0.05)
    answered, seconds = answers(hosts[0], hosts[1], 5, wait=1.0)
    assert answered == 5
    assert seconds >= 0.1
    hosts.heal(1)

    assert answers(hosts[1], hosts[2])[0] == 1  # from now on, they need not ask for each other's address
    hosts.lose(2, 0.3)
    answered, _ = answers(hosts[1], hosts[2], 60, wait=2.0)
    assert 0 < 60 - answered <= hosts.frames(2)["lost"] < 120

    ahead = shifted(tmp_path, 3600.0)
    own = float(hosts[1].run([sys.executable, "-c", "import time; print(time.time())"], env={**os.environ, **ahead}))
    assert 3590 < own - time.time() <= 3600


def test_a_host_ends_with_all_its_processes(hosts: Hosts) -> None:
    own = hosts[1]
    # A process whose parent has ended, as Ray's; and one that ignores to be asked.
    own.run(["sh", "-c", "trap '' TERM HUP; sleep 1000 >/dev/null & exit 0"])
    started = own.popen(["sleep", "1000"])
    assert len(own.processes()) == 2
    hosts.kill(1)
    assert started.returncode == -9
    assert not processes_in(own.namespaces)
    hosts.boot(1)
    serve(hosts[1], ECHO)
    assert answers(hosts[0], hosts[1])[0] == 1

    def fails() -> None:
        with Hosts(2) as others:
            others[1].popen(["sleep", "1000"])
            namespaces.update(others[1].namespaces)
            raise ZeroDivisionError

    namespaces = set[str]()
    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(namespaces) == 2
    assert not processes_in(namespaces)


@pytest.mark.slow
def test_the_switch_is_no_bottleneck(hosts: Hosts) -> None:
    """Ten round trips [ms], and a copy of 100 MB over one connection [MB/s]; -s prints them."""
    serve(hosts[2], ECHO)
    answered, seconds = zip(*(answers(hosts[1], hosts[2], wait=2.0) for _ in range(10)), strict=True)
    sink = serve(hosts[2], SINK)
    hosts[1].run([sys.executable, "-c", SEND, hosts[2].address])
    speed = float(sink.communicate(timeout=60)[0])
    print(f"round trip {1000 * min(seconds):.2f} ms, {speed / 1e6:.0f} MB/s")
    assert sum(answered) == 10
    assert min(seconds) < 0.01 * load_factor()
    assert speed > 20e6 / load_factor()
