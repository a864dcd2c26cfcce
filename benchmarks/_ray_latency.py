"""Pauses of a job between hosts, by latency and size of its model.

The hosts are namespaces of this machine (`tests.hosts.bed`): the first has Ray's head, the others a GPU each. This file
runs on them as `_ray_latency.py node HOST`, and as `_ray_latency.py job ARGUMENTS`, which prints JSON.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import _common
from _common import Check, Found

from rlpto.io.errors import ClusterError
from rlpto.ray_cluster.messages import FaultTolerance, JobSpec
from rlpto.ray_cluster.nodes import local
from rlpto.ray_cluster.nodes.environment import AUTH_MODE, driver, ray_environment
from tests.hosts.bed import Hosts, NoHostsError
from tests.hosts.host import address_of
from tests.hosts.test_bed import ECHO, SEND, SINK, answers, serve

ADDRESS, STORE_BYTES = "10.77.0.1:6379", 2_000_000_000
SWITCH_MS = 0.1
"""Round trip between two hosts without a delay."""
CELLS = [(ms, size) for ms in (SWITCH_MS, 1.0, 10.0) for size in (1, 100, 500)]
"""Round trip [ms], and size of the weights [MB]."""
BATCH, PACE_S, SETTLED = 16, 0.02, 50
"""Samples and least time of a step with one worker; steps between two changes."""
TIMEOUT_S = 600.0
Change = tuple[str, float, float]
"""Workers before and after, time without a step [s], and time from the command until the new size trains [s]."""


def latency(repeats: int) -> Found:
    """Pauses of a job that grows by another host and shrinks back."""
    facts: dict[str, object] = {}
    small = list[float]()
    with tempfile.TemporaryDirectory() as name, started_hosts(Path(name)) as hosts:
        serve(hosts[2], ECHO)
        for round_trip, megabytes in CELLS:
            for host in range(3):  # a frame is delayed by its sender's host and by its receiver's
                hosts.delay(host, round_trip / 4000 if round_trip > SWITCH_MS else 0.0)
            cell = f"{round_trip} ms, {megabytes} MB"
            switch, changes = line(hosts), measured(hosts, Path(name, cell), megabytes, repeats)
            facts[cell] = switch, *(f"{kind}: {pause:.3f} s without a step of {s:.1f} s" for kind, pause, s in changes)
            _common.progress(f"latency: {cell}: {facts[cell]}")
            if megabytes == 1:
                small += [pause for _, pause, _ in changes]
    return [Check("pause between hosts, 1 MB, median", statistics.median(small), "s", 0.250, False)], facts


def line(hosts: Hosts) -> str:
    """Round trip between two hosts, and speed of a copy over one connection."""
    sink = serve(hosts[2], SINK)
    hosts[1].run([sys.executable, "-c", SEND, hosts[2].address])
    speed = float(sink.communicate(timeout=60)[0])
    return f"round trip {1000 * answers(hosts[1], hosts[2], 100)[1]:.2f} ms, {speed / 1e6:.0f} MB/s"


def measured(hosts: Hosts, folder: Path, megabytes: int, repeats: int) -> list[Change]:
    """Changes of a new job, which is driven on the first host and has its files in a shared `folder`."""
    command = [sys.executable, __file__, "job", json.dumps([str(folder), megabytes, repeats])]
    said = hosts[0].run(command, TIMEOUT_S, env=environment())
    return [tuple(change) for change in json.loads(said.splitlines()[-1])]


def environment() -> dict[str, str]:
    """Variables of all processes on the hosts, which nothing else reaches."""
    own = {"RAY_TMPDIR": "/tmp", AUTH_MODE: "disabled", "PYTHONPATH": str(_common.ROOT)}
    return {**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **own}


@contextmanager
def started_hosts(folder: Path) -> Iterator[Hosts]:
    """Three hosts with Ray. Raises NoDataError where this machine allows none."""
    with ExitStack() as stack, (folder / "ray.log").open("ab") as log:
        try:
            hosts = stack.enter_context(Hosts(3, folder))
        except NoHostsError as error:
            raise _common.NoDataError(str(error)) from None
        for host in range(3):
            command = [sys.executable, __file__, "node", str(host)]
            started = hosts[host].popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True)
            if started.stdout is None or started.stdout.readline() != "up\n":
                raise ClusterError(f"Ray does not start on {hosts[host].name}: {Path(log.name).read_text()}")
        yield hosts


def node(host: int) -> None:
    """Run Ray on a host until the host ends: at its own address, and with room for large models in the store."""
    setattr(local, "LOOPBACK", address_of(host))  # noqa: B010  a name that the module imports
    local.OBJECT_STORE_BYTES = STORE_BYTES
    local.start_node(ADDRESS if host else None, gpus=int(host > 0), port=0 if host else int(ADDRESS.split(":")[1]))
    print("up", flush=True)
    signal.pause()


def spec(folder: str, megabytes: int) -> JobSpec:
    """The job, with a checkpoint only at its start and its end."""
    options, program = {"megabytes": megabytes}, "tests.ray_cluster.programs:Large"
    faults = FaultTolerance(checkpoint_interval=1e9, heartbeat_timeout=60.0)  # a busy machine is no fault
    return JobSpec("job", "job", "latency", program, folder, BATCH, 1e9, 101, options, faults=faults, pace=PACE_S)


def resized(job: JobSpec, repeats: int) -> list[Change]:
    """Changes of the job, which grows and shrinks under its controller."""
    from rlpto.ray_cluster.controllers import alive_nodes
    from rlpto.ray_cluster.measuring import CommandedJob

    found = list[Change]()
    a, b = (node["NodeID"] for node in alive_nodes() if node["Resources"].get("GPU"))
    with CommandedJob(job) as running:
        running.move((a,))
        for nodes in ((a, b), (a,)) * repeats:
            running.steps(SETTLED)
            kind, since = f"{len(running.nodes)} to {len(nodes)}", time.monotonic()
            found.append((kind, running.move(nodes).pause, time.monotonic() - since))
    return found


if __name__ == "__main__":
    task, given = sys.argv[1], json.loads(sys.argv[2])
    with ray_environment():
        if task == "node":
            node(given)
        with driver(ADDRESS):
            print(json.dumps(resized(spec(*given[:2]), given[2])))
