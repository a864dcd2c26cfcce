"""A job on several hosts: a Ray cluster of `ray start` on a bed of three, `rlpto evaluate` from the head, and faults.

Host 0 has the head and no GPU, hosts 1 and 2 have two logical GPUs each. The commands are as on docs/ray-clusters.md.
Tests and `benchmarks/ray_jobs.py hosts` share this file.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from rlpto.ray_cluster.messages import RECORD, JobSpec
from rlpto.ray_cluster.nodes.processes import arguments_of, load_factor, with_children
from rlpto.ray_cluster.scheduler.session_folder import newest_database, read_table
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.checkpoints import read_newest
from tests.hosts.bed import REPOSITORY, Hosts
from tests.ray_cluster.joined import AGENTS, ATTEMPTS, RAY
from tests.ray_cluster.programs import weights_of

HEAD, NODES, GPUS = 0, (1, 2), 2
PORT = 6379
PACE = 0.8
"""Seconds of a step with one worker: four of them make 5 steps/s."""
CHECKPOINT_S = 5.0
STEPS = 10
PAUSE_S = 5.0
"""Shortest time without a step that counts as a pause: the database shows steps once a second."""
LOOK_S = 0.2
WAIT_S = 240.0
RLPTO = (sys.executable, "-c", "from rlpto.cli.main import run; run()")
SLOW = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_worker_niceness": "0"}
"""For busy machines: Ray gives its server 30 s to start, and runs workers behind everything else."""


@dataclass(frozen=True)
class Sample:
    """The job as the database has it at a time [s of `time.monotonic`]. hosts: of the GPUs that it holds. trains: hosts
    of the workers that trained together at its newest checkpoint, written at `saved` [s of `time.time`]."""

    time: float
    step: int
    recoveries: int
    hosts: tuple[str, ...]
    trains: tuple[str, ...]
    saved: float

    @property
    def whole(self) -> bool:
        """Whether all GPUs of both hosts trained then."""
        return len(self.trains) == len(set(self.trains)) * GPUS == len(NODES) * GPUS


@dataclass
class Cluster:
    """Ray on a bed. folder: on all hosts."""

    hosts: Hosts
    folder: Path

    def __post_init__(self) -> None:
        token = self.folder / "home" / ".ray" / "auth_token"
        token.parent.mkdir(parents=True)
        token.write_text(secrets.token_hex(32))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLPTO_"))}
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # compiled code
        own = {"HOME": str(self.folder / "home"), "XDG_CACHE_HOME": cache, "PYTHONPATH": str(REPOSITORY)}
        self.environment = {**kept, **own, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.address = f"{self.hosts[HEAD].address}:{PORT}"

    def ray_start(self, host: int, **variables: str) -> None:
        """Start Ray on a host, as docs/ray-clusters.md says, with logical GPUs."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", "--num-gpus=0"]
        node = [f"--address={self.address}", f"--num-gpus={GPUS}"]
        few = ["--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats"]
        few += [f"--{name}-port={port}" for port, name in enumerate(AGENTS[:-1], PORT + 1)]
        started, spared = [*RAY, "start", *(head if host == HEAD else node), *few], self.hosts[host].processes()
        environment = {**self.environment, "RAY_AUTH_MODE": "token", **SLOW, **variables}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with (self.folder / f"ray-start-{host}.log").open("ab") as log:
                    self.hosts[host].run([sys.executable, *started], WAIT_S, env=environment, stdout=log, stderr=log)
                return
            except subprocess.CalledProcessError:
                if attempt == ATTEMPTS:
                    raise
                self.kill_ray(host, spared)

    def kill_ray(self, host: int, spared: Iterable[int]) -> None:
        """Kill all processes of a host but some, and their children."""
        while left := self.hosts[host].processes() - with_children(spared).keys():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def raylet(self, host: int) -> bool:
        """True if Ray runs on a host."""
        return any(first.endswith("/raylet") for pid in self.hosts[host].processes() for first in arguments_of(pid)[:1])

    def rlpto(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Start a command of `rlpto` on the head; its lines are in `said.log`."""
        with (self.folder / "said.log").open("a") as log:
            environment = {**self.environment, **variables}
            return self.hosts[HEAD].popen([*RLPTO, *arguments], env=environment, stdout=log, stderr=log, text=True)


@contextmanager
def cluster(folder: Path, variables: Mapping[int, Mapping[str, str]] = MappingProxyType({})) -> Iterator[Cluster]:
    """Three hosts with Ray. folder: on all of them. variables: of `ray start`, by host."""
    with Hosts(1 + len(NODES), folder) as hosts:
        started = Cluster(hosts, folder)
        for host in (HEAD, *NODES):
            started.ray_start(host, **variables.get(host, {}))
        yield started


class Evaluation:
    """`rlpto evaluate` with one job that takes all GPUs of both hosts, watched through its database.

    epochs: of the job. samples: the job at every look. said: what the terminal shows.
    """

    def __init__(self, cluster: Cluster, epochs: float = 10_000) -> None:
        self.cluster, self.samples = cluster, list[Sample]()
        self.run = cluster.folder / "run"
        program = {"training": "rlpto.ray_cluster.programs.digits:DigitsMlp", "samples": 1437, "epochs": epochs}
        job = {"model": "mlp", "epochs": epochs, "gpus": GPUS * len(NODES), "max_gpus": GPUS * len(NODES)}
        content = {
            "name": "hosts",
            "workload": {"source": "jobs", "jobs": [job]},
            "simulator": {"interval": 5},
            "ray": {
                "programs": {"mlp": {**program, "batch_size": 64, "pace": PACE, "float64": True}},
                "checkpoint_interval": CHECKPOINT_S,
            },
            "policies": ["equal_share"],
            "evaluation": {"reference": "equal_share"},
        }
        (cluster.folder / "hosts.yaml").write_text(yaml.safe_dump(content))
        self.start()

    def start(self, **variables: str) -> None:
        """Start the command, at first or again."""
        where = ("--cluster", "ray", "--address", self.cluster.address, "--run-dir", self.run, "--no-report")
        self.command = self.cluster.rlpto("evaluate", self.cluster.folder / "hosts.yaml", *where, **variables)

    def table(self, name: str) -> list[dict[str, Any]]:
        """Rows of a table of the session's database."""
        database = newest_database(self.run)
        columns, rows = ([], []) if database is None else read_table(database, name)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def look(self) -> Sample | None:
        """The job now; None before the session begins."""
        jobs = self.table("jobs")
        if not jobs:
            return None
        spec, names, changes = JobSpec.from_json(jobs[0]["spec"]), self.hosts_of_nodes(), self.table("changes")
        held = tuple(names[node] for node in json.loads(changes[-1]["nodes"])) if changes else ()
        record = Path(spec.folder, RECORD)
        saved: dict[str, Any] = {"training_on": [], "time": 0.0}
        saved |= json.loads(record.read_text())["report"] if record.exists() else {}
        trains = tuple(names[node] for node in saved["training_on"])
        row = jobs[0]
        self.samples.append(Sample(time.monotonic(), row["step"], row["recoveries"], held, trains, saved["time"]))
        return self.samples[-1]

    def hosts_of_nodes(self) -> dict[str, str]:
        """Name of the host of each of Ray's nodes."""
        return {node["id"]: node["host"] for node in self.table("nodes")}

    def until(self, holds: Callable[[Sample], bool], seconds: float = WAIT_S) -> Sample | None:
        """Look until something holds; None after `seconds`, or once the command has ended."""
        by = time.monotonic() + seconds
        while time.monotonic() < by and self.command.poll() is None:
            if (seen := self.look()) is not None and holds(seen):
                return seen
            time.sleep(LOOK_S)
        return None

    def watch(self, seconds: float) -> None:
        """Look for some seconds."""
        self.until(lambda _: False, seconds)

    def watch_while(self, act: Callable[[], None]) -> None:
        """Look while another thread acts: the job trains meanwhile."""
        with ThreadPoolExecutor(1) as thread:
            acting = thread.submit(act)
            self.until(lambda _: acting.done())
            acting.result()

    def spans(self, started: Callable[[], bool] = lambda: True, seconds: float = WAIT_S) -> bool:
        """Wait until the job has made `STEPS` steps on all GPUs of both hosts, or something has not `started`; False if
        neither comes within `seconds` (more on a busy machine)."""
        since, first = time.time(), list[int]()

        def trained(now: Sample) -> bool:
            if not now.whole or now.saved < since or (first and now.step < first[0]):
                first.clear()
            elif not first:
                first.append(now.step)
            return not started() or (bool(first) and now.step >= first[0] + STEPS)

        return self.until(trained, seconds * load_factor()) is not None

    def said(self) -> list[str]:
        """Lines of the command so far, without those of waiting."""
        text = (self.cluster.folder / "said.log").read_text()
        return [line for line in re.split(r"[\r\n]+", text) if line.strip()]

    def distance(self) -> tuple[int, float]:
        """Step of the newest checkpoint, and its weights' relative distance to those of one undisturbed process."""
        spec = JobSpec.from_json(self.table("jobs")[0]["spec"])
        found = read_newest(Path(spec.folder))
        assert found is not None
        alone = Trainer(replace(spec, pace=None))
        alone.run(found[0].step)
        expected = weights_of(alone.network)
        alone.load(found[1])
        return found[0].step, float((weights_of(alone.network) - expected).norm() / expected.norm())


@dataclass(frozen=True)
class Fault:
    """What happens to a host for some seconds. silent: it does not answer meanwhile."""

    harm: Callable[[Hosts, int], None]
    seconds: float
    host: int = NODES[-1]
    silent: bool = True


FAULTS = {
    "none": Fault(lambda *_: None, 20.0, silent=False),
    "cut for 5 s": Fault(Hosts.cut, 5.0),
    "200 ms more each way": Fault(lambda hosts, host: hosts.delay(host, 0.2), 30.0, silent=False),
    "5 % of frames lost": Fault(lambda hosts, host: hosts.lose(host, 0.05), 30.0, silent=False),
    "cut for 30 s": Fault(Hosts.cut, 30.0),
    "cut for 120 s": Fault(Hosts.cut, 120.0),
    "killed, there again after 90 s": Fault(Hosts.kill, 90.0),
    "head cut for 15 s": Fault(Hosts.cut, 15.0, HEAD),
}
"""Faults of host 2, or of the head."""


def changes_of_step(samples: Sequence[Sample]) -> list[Sample]:
    """Samples whose step differs from the one before."""
    return [one for before, one in pairwise(samples) if one.step != before.step]


def steps_lost(samples: Sequence[Sample]) -> int:
    """Steps that were trained again."""
    return sum(max(before.step - after.step, 0) for before, after in pairwise(samples))


@dataclass(frozen=True)
class Continued:
    """How a job went on after its head was lost, and the same command was called again. Times in seconds.

    gone: from the loss until Ray had ended on the other hosts. ended: from the loss until the command had
    ended. code: its exit status. trains: from the second call until the first new step. lost: steps that were trained
    again. distance: of the weights from those of one undisturbed process (relative). said: lines of the first command.
    """

    gone: float
    ended: float
    code: int
    trains: float
    lost: int
    distance: float
    said: tuple[str, ...]


def lose_head(job: Evaluation, power: bool) -> Continued:
    """Lose the head, with its host (`power`) or only Ray there; then start Ray again on all hosts, and the command."""
    ray, lines = job.cluster, len(job.said())
    assert job.spans(), job.said()
    first, lost = len(job.samples), time.monotonic()
    if power:
        ray.hosts.kill(HEAD)
    else:
        ray.kill_ray(HEAD, [job.command.pid])
    code = job.command.wait(WAIT_S)
    ended, said = time.monotonic(), tuple(job.said()[lines:])
    while any(ray.raylet(host) for host in NODES):
        time.sleep(LOOK_S)
    gone = time.monotonic()
    if power:
        ray.hosts.boot(HEAD)
    for host in (HEAD, *NODES):
        ray.ray_start(host)
    called = time.monotonic()
    job.start()
    assert job.spans(), job.said()
    samples = job.samples[first - 1 :]
    return Continued(
        gone=gone - lost,
        ended=ended - lost,
        code=code,
        trains=changes_of_step(samples)[0].time - called,
        lost=steps_lost(samples),
        distance=job.distance()[1],
        said=said,
    )


@dataclass(frozen=True)
class Outcome:
    """What a fault has done to the job. Times are seconds from the fault, if nothing else is said.

    speed: steps/s during the fault. pauses: beginnings and lengths of times without a step. again: end of the last one;
    healed: the same from healing, 0 if it was before. whole: from healing until a checkpoint says that all GPUs train;
    restarted: after Ray had ended on the host and was started again. lost: steps that were trained again. planned:
    plans during the fault that gave the job GPUs of a silent host. left: when the database first showed the job without
    such GPUs, NaN if never; held: time for which it showed the job on them again. capacity: most GPUs that a decision
    had. distance: of the weights from those of one undisturbed process (relative). said: lines on the terminal.
    """

    speed: float
    pauses: tuple[tuple[float, float], ...]
    again: float
    healed: float
    whole: float
    restarted: bool
    lost: int
    recoveries: int
    planned: int
    left: float
    held: float
    capacity: int
    distance: float
    said: tuple[str, ...]


def suffer(job: Evaluation, fault: Fault) -> Outcome:
    """Let a fault come and go, and wait until the job trains on all GPUs again; Ray is started again where it ended."""
    hosts, silent = job.cluster.hosts, job.cluster.hosts[fault.host].name
    assert job.spans(), job.said()
    lines, planned, decided = len(job.said()), len(job.table("allocations")), len(job.table("decisions"))
    job.watch(PAUSE_S)
    began, first = time.monotonic(), len(job.samples)
    fault.harm(hosts, fault.host)
    job.watch(fault.seconds)
    nodes = job.hosts_of_nodes()
    plans = [json.loads(plan["nodes"]) for plan in job.table("allocations")[planned:]]
    ended, during = time.monotonic(), job.samples[first:]
    if fault.harm is Hosts.kill:
        hosts.boot(fault.host)
    hosts.heal(fault.host)
    job.watch(PAUSE_S)
    restarted = False
    while True:
        assert job.spans(lambda: job.cluster.raylet(fault.host)), job.said()
        if job.cluster.raylet(fault.host):
            break
        job.watch_while(partial(job.cluster.ray_start, fault.host))
        restarted = True
    whole = time.monotonic()
    job.watch(2 * PAUSE_S)  # until its newest checkpoint is from after the fault
    samples = job.samples[first - 1 :]
    steps = changes_of_step(samples)
    pauses = [(a.time, b.time) for a, b in pairwise(steps) if b.time - a.time > PAUSE_S]
    again = pauses[-1][1] if pauses else began
    late = [*dropwhile(lambda one: silent in one.hosts, during)] if fault.silent else []
    held = sum(b.time - a.time for a, b in pairwise(late) if silent in b.hosts)
    return Outcome(
        speed=(during[-1].step - during[0].step) / (ended - began),
        pauses=tuple((round(start - began, 1), round(end - start, 1)) for start, end in pauses),
        again=again - began,
        healed=max(again - ended, 0.0) if pauses else 0.0,
        whole=whole - ended,
        restarted=restarted,
        lost=steps_lost(samples),
        recoveries=samples[-1].recoveries - samples[0].recoveries,
        planned=sum(silent in {nodes[node] for node in plan} for plan in plans) if fault.silent else 0,
        left=late[0].time - began if late else math.nan,
        held=held,
        capacity=max((row["capacity"] for row in job.table("decisions")[decided:]), default=0),
        distance=job.distance()[1],
        said=tuple(job.said()[lines:]),
    )
