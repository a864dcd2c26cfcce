"""`rlpto cluster`: a local Ray cluster of several nodes, and the policy of a run on any cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import CLUSTERS, QuietOption, Verb, make_console, make_progress
from rlpto.errors import ClusterError

ANSWER_SECONDS = 120.0
"""Longest wait for a scheduler to take up another policy: it does so at its next decision."""

app = typer.Typer(help="Start, show and end a local Ray cluster; switch the policy of a run.", no_args_is_help=True)


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
    from rlpto.ray_cluster.nodes.background import start_cluster

    console = make_console(quiet)
    started = start_cluster([gpus_per_node] * nodes, cpus, durable)
    console.print(f"{nodes} nodes with {gpus_per_node} GPUs each are up at {started.address}", style="bold")
    console.print("run on it:  rlpto evaluate CONFIG --cluster ray --address auto\nend it:     rlpto cluster down")


@app.command("status", epilog="Example: rlpto cluster status")
def status() -> None:
    """Show the local cluster, its nodes, and the jobs that have controllers there."""
    from rich.table import Table

    from rlpto.ray_cluster.controllers import alive_nodes
    from rlpto.ray_cluster.nodes.background import running_cluster
    from rlpto.ray_cluster.scheduler.connection import Connection, jobs_with_controllers

    console = make_console()
    found = running_cluster()
    if found is None:
        console.print("no local cluster is up; start one with `rlpto cluster up`")
        return
    with Connection() as connection:
        table = Table(title=f"Ray cluster at {connection.address}", title_justify="left")
        for heading in ("node", "address", "GPUs", "CPUs"):
            table.add_column(heading)
        for node in alive_nodes():
            resources = node["Resources"]
            counts = (f"{resources.get(name, 0):g}" for name in ("GPU", "CPU"))
            table.add_row(node["NodeID"][:12], node["NodeManagerAddress"], *counts)
        controllers = jobs_with_controllers()
    console.print(table)
    console.print(
        f"{len(controllers)} jobs have controllers"
        + "".join(f"\n  {job} (session {name})" for name, job in controllers)
    )


@app.command("restart-head", epilog="Example: rlpto cluster restart-head")
def restart(quiet: QuietOption = False) -> None:
    """Start the head of a cluster of `up --durable` again after it has died, under jobs that train on."""
    from rlpto.ray_cluster.nodes.background import restart_head, running_cluster

    console = make_console(quiet)
    found = running_cluster()
    if found is None:
        raise ClusterError("no local cluster is up: expected one of `rlpto cluster up --durable` whose head has died")
    with make_progress(quiet) as bar:
        bar.add_task("starting", total=None)
        restart_head(found)
    console.print(f"the head is back at {found.address}; start commands that ran on it again, they go on")


@app.command("down", epilog="Example: rlpto cluster down")
def down(quiet: QuietOption = False) -> None:
    """End the local cluster that `up` has started, and nothing else."""
    from rlpto.ray_cluster.nodes.background import running_cluster, stop_cluster

    console = make_console(quiet)
    found = running_cluster()
    if found is None:
        console.print("no local cluster is up")
        return
    with make_progress(quiet) as bar:
        bar.add_task("ending", total=None)
        stop_cluster(found)
    console.print(f"the cluster at {found.address} has ended")


@app.command("switch", epilog="Example: rlpto cluster switch las --run runs/ray_smoke-ray")
def switch(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Policy that is to decide from now on.")],
    run: Annotated[Path, typer.Option(metavar="RUN", help="Run folder of the evaluation that is at work.")],
    quiet: QuietOption = False,
) -> None:
    """Let another policy decide in a run on a real cluster, while its jobs go on training."""
    from time import monotonic, sleep

    from rlpto.policies.registry import make_policy
    from rlpto.ray_cluster.scheduler.session_database import policy_answer, request_policy, sessions_at_work

    make_policy(policy)
    at_work = sessions_at_work(run)
    if len(at_work) != 1:
        raise ClusterError(f"{run}: {len(at_work)} schedulers are at work there, expected one")
    request = request_policy(at_work[0], policy)
    by = monotonic() + ANSWER_SECONDS
    while (answer := policy_answer(at_work[0], request)) is None:
        if monotonic() > by:
            raise ClusterError(f"{run}: its scheduler has not answered within {ANSWER_SECONDS:.0f} s")
        sleep(0.1)
    if answer:
        raise ClusterError(f"{run}: {answer}")
    make_console(quiet).print(f"{policy} decides now")


VERB = Verb(app, CLUSTERS)
