"""`rlpto cluster`: a local Ray cluster of several nodes, and the policy of a run on any cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import CLUSTERS, AddressOption, QuietOption, Verb, make_console, make_table, waiting
from rlpto.cli.service import CertificateOption, ServiceOption, connect, service_is_known, time_until_text
from rlpto.io.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

ANSWER_TIMEOUT_S = 120.0
"""Longest wait for a scheduler to switch policies, which it does at its next decision."""

app = typer.Typer(help="Start, show, drain and end a Ray cluster; switch the policy of a run.", no_args_is_help=True)


@app.command("up", epilog="Example: rlpto cluster up --nodes 4 --gpus-per-node 2")
def up(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes, besides a head without GPUs.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Logical GPUs of each node.")] = 2,
    cpus: Annotated[int, typer.Option(min=1, help="CPU slots of each node.")] = 4,
    durable: Annotated[
        bool, typer.Option("--durable", help="Keep the head's state on disk, so that it may be restarted under jobs.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Start several Ray nodes with logical GPUs on this machine, for a laptop without any."""
    from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
    from rlpto.ray_cluster.nodes.persistent_cluster import start_cluster

    console = make_console(quiet)
    with waiting(quiet) as on_wait:
        started = start_cluster([gpus_per_node] * nodes, cpus, durable, on_wait)
    console.print(f"{nodes} nodes with {gpus_per_node} GPUs each are up at {started.address}", style="bold")
    console.print("run on it:  rlpto evaluate CONFIG --cluster ray --address auto\nend it:     rlpto cluster down")
    console.print(f"its token:  {Path(started.folder, TOKEN_FILE)}", soft_wrap=True)


@app.command("status", epilog="Example: rlpto cluster status")
def status(
    address: AddressOption = None,
) -> None:
    """Show a cluster's nodes, its scheduler, and the jobs of its run: GPUs held, progress, when they will end."""
    from rlpto.ray_cluster.nodes.persistent_cluster import noted_cluster, running_cluster
    from rlpto.ray_cluster.scheduler.connection import AUTO, Connection

    console = make_console()
    if address is None and running_cluster() is None:
        console.print("no local cluster is up; start one with `rlpto cluster up`")
        if noted_cluster() is not None:
            console.print(
                "one that was not wholly started, or has died, is still noted; `rlpto cluster down` removes it"
            )
        return
    with waiting() as on_wait:
        on_wait("connecting to the Ray cluster")
        with Connection(address or AUTO) as connection:
            shown = [_nodes(connection.address), *_jobs()]
        on_wait("")
    for part in shown:
        console.print(part, soft_wrap=isinstance(part, str))  # keeps paths on one line


def _nodes(address: str) -> Table:
    """The nodes of the cluster that this process is connected to."""
    from rich.markup import escape

    from rlpto.ray_cluster.compat import draining_nodes, free_resources
    from rlpto.ray_cluster.controllers import alive_nodes
    from rlpto.ray_cluster.health import answering
    from rlpto.ray_cluster.scheduler.backend import NodeInfo

    free, going, alive = free_resources(), draining_nodes(), alive_nodes()
    answer = set(answering(alive))
    table = make_table("node", "address", "GPUs", "held", "CPUs", "GPU type", "goes", title=f"Ray cluster at {address}")
    for node in map(NodeInfo.of, alive):
        counts = (node.gpus, node.gpus - free.get(node.id, {}).get("GPU", 0), node.cpus)
        at = going.get(node.id)
        goes = "" if at is None else time_until_text(at / 1000) if at else "soon"
        goes = goes if node.id in answer else "does not answer"
        labels = " ".join(label for label in (node.gpu if node.gpus else "", node.spot and "spot") if label)
        table.add_row(node.id[:12], node.address, *(f"{count:g}" for count in counts), escape(labels), goes)
    return table


def _jobs() -> Iterator[Table | str]:
    """The scheduler on the cluster that this process is connected to, and the progress of its run's jobs."""
    from rich.markup import escape

    from rlpto.ray_cluster.controllers import all_controllers
    from rlpto.ray_cluster.scheduler.connection import schedulers
    from rlpto.ray_cluster.scheduler.session_folder import job_progress, newest_database, read_table
    from rlpto.store.status import PROVISIONING, ProvisioningStatus

    controllers = len(all_controllers())
    last = next(reversed(schedulers()), None)
    if last is None:
        yield f"no scheduler is at work; {controllers} jobs have controllers"
        return
    state = f"at work: process {last.process} on {last.host}" if last.alive else "ended"
    yield f"scheduler of {last.folder} ({state}); {controllers} jobs have controllers"
    database = newest_database(Path(last.folder))
    if database is None:
        return
    facts = {row[0]: row[1] for row in read_table(database, "facts")[1]}
    if (decided := facts.get(PROVISIONING)) is not None:
        yield ProvisioningStatus(**json.loads(decided)).text
    headings = ("id", "name", "state", "GPUs", "done", "ends in \\[s]")
    table = make_table(*headings, title=f"jobs of {database.parent.name}")
    for job, name, now, gpus, done, left in job_progress(database):
        table.add_row(job, escape(name), now, str(gpus), f"{done:.0%}", "" if left is None else f"{left:.0f}")
    yield table


@app.command("drain", epilog="Example: rlpto cluster drain 5f0c --in 120")
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Id of the node, or how it begins; see `status`.")],
    in_: Annotated[float, typer.Option("--in", min=0, max=1e9, help="Seconds until the node goes.")] = 120.0,
    address: AddressOption = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    quiet: QuietOption = False,
) -> None:
    """Announce that a node, such as a spot node, will go: jobs leave it now, and lose no step. You end it.

    Without --address, and where `up` has started no cluster here, the job service is asked: its operators may.
    """
    from rlpto.ray_cluster.compat import drain_node
    from rlpto.ray_cluster.controllers import alive_nodes
    from rlpto.ray_cluster.nodes.persistent_cluster import running_cluster
    from rlpto.ray_cluster.scheduler.connection import AUTO, Connection

    if service is not None or (address is None and service_is_known() and running_cluster() is None):
        if address is not None:
            raise ConfigError("--service: expected no --address: a service knows its cluster")
        with connect(service, certificate) as client:
            going = client.drain_node(node, in_)
        make_console(quiet).print(f"node {going['id'][:12]} goes in {in_:g} s; jobs leave it now")
        return
    with Connection(address or AUTO) as connection:
        ids = [str(entry["NodeID"]) for entry in alive_nodes()]
        found = [one for one in ids if one.startswith(node)]
        if len(found) != 1:
            known = ", ".join(one[:12] for one in ids)
            raise ClusterError(f"{len(found)} nodes begin with {node!r}: expected one of {known}")
        if refused := drain_node(connection.address, found[0], in_):
            raise ClusterError(f"the cluster does not drain node {found[0][:12]}: {refused}")
    make_console(quiet).print(f"node {found[0][:12]} goes in {in_:g} s; jobs leave it now")


@app.command("slurm", epilog="Example: rlpto cluster slurm --nodes 4 --gpus-per-node 8 -- rlpto serve service.yaml")
def slurm(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What runs on the first node.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 8,
    hours: Annotated[float, typer.Option(min=0.02, max=10_000, help="Time limit.")] = 24.0,
    logical: Annotated[bool, typer.Option("--logical", help="Nodes have no GPUs: Ray counts logical ones.")] = False,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="A further option, such as --sbatch=--partition=gpu; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the script.")] = Path("job.sbatch"),
) -> None:
    """Write a batch script for Slurm: a Ray cluster on the nodes of its job, for as long as a command runs."""
    from rlpto.io.files import write_text
    from rlpto.ray_cluster.nodes.slurm import batch_script

    for option in sbatch or ():
        if not option.startswith("-") or "\n" in option:
            raise ConfigError(f"--sbatch {option}: expected an option of sbatch, such as --sbatch=--partition=gpu")
    write_text(out, batch_script(command, nodes, gpus_per_node, hours, logical=logical, more=sbatch or ()), "a script")
    make_console().print(f"{out}: submit it by `sbatch {out}`", markup=False)


@app.command("restart-head", epilog="Example: rlpto cluster restart-head")
def restart(quiet: QuietOption = False) -> None:
    """Start the head of a cluster of `up --durable` again after it has died, under jobs that train on."""
    from rlpto.ray_cluster.nodes.persistent_cluster import restart_head, running_cluster

    console = make_console(quiet)
    found = running_cluster()
    if found is None:
        raise ClusterError("no local cluster is up: expected one of `rlpto cluster up --durable` whose head has died")
    with waiting(quiet) as on_wait:
        restart_head(found, on_wait)
    console.print(f"the head is back at {found.address}; start commands that ran on it again, they go on")


@app.command("down", epilog="Example: rlpto cluster down")
def down(quiet: QuietOption = False) -> None:
    """End the local cluster that `up` has started, and nothing else."""
    from rlpto.ray_cluster.nodes.persistent_cluster import stop_cluster

    console = make_console(quiet)
    with waiting(quiet) as on_wait:
        on_wait("ending the local cluster")
        ended = stop_cluster()
    if ended is None:
        console.print("no local cluster is up")
        return
    which = f"at {ended.address}" if ended.address else "that was not wholly started"
    console.print(f"the cluster {which} has ended")


@app.command("switch", epilog="Example: rlpto cluster switch las --run runs/ray_smoke-ray")
def switch(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Policy that decides from now on.")],
    run: Annotated[Path, typer.Option(metavar="RUN", help="Run folder of the evaluation that is at work.")],
    quiet: QuietOption = False,
) -> None:
    """Switch the policy of a run on a real cluster, while its jobs continue to train."""
    from time import monotonic, sleep, time

    from rlpto.policies.registry import make_policy
    from rlpto.ray_cluster.scheduler.session_folder import sessions_at_work
    from rlpto.store.database import Store
    from rlpto.store.requests import answer, ask, get_request

    make_policy(policy)
    at_work = sessions_at_work(run)
    if len(at_work) != 1:
        raise ClusterError(f"{run}: {len(at_work)} schedulers are at work there, expected one")
    by = monotonic() + ANSWER_TIMEOUT_S
    with closing(Store(at_work[0], durable=False)) as store:
        number = ask(store, "policy", "a command", time(), body={"policy": policy})
        try:
            while (asked := get_request(store, number)) is None or asked.problem is None:
                if monotonic() > by:
                    raise ClusterError(f"{run}: its scheduler has not answered within {ANSWER_TIMEOUT_S:.0f} s")
                sleep(0.1)
        finally:
            answer(store, number, time(), "withdrawn: the command has ended")  # ignored if there is an answer
    if asked.problem:
        raise ClusterError(f"{run}: {asked.problem}")
    make_console(quiet).print(f"{policy} decides now")


VERB = Verb(app, CLUSTERS)
