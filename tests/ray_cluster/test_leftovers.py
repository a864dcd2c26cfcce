"""Nothing stays behind: no process of a cluster that has ended, no actor on one that goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray
from ray.util import list_named_actors

from rlpto.ray_cluster.local import LocalCluster
from rlpto.ray_cluster.processes import (
    IDLE,
    arguments_of,
    children_titled,
    family_of,
    of_folder,
    start_time,
    with_children,
)
from tests.ray_cluster.test_commands import column, command, experiment, once, said
from tests.ray_cluster.test_real import wait_until

ONE = ("--set", "cluster.nodes=[{count: 1, gpus: 1}]", "--set", "workload.jobs=[{model: tiny, epochs: 4}]")


def cluster_folders(pid: int) -> set[str]:
    """Folders of the clusters that a process has started: they are among the arguments of its raylets."""
    arguments = [one for child in with_children({pid}) for one in arguments_of(child)]
    return {match[1] for one in arguments if (match := re.match(r"--raylet_socket_name=(.+?)/ray/session", one))}


@pytest.mark.cluster
@pytest.mark.parametrize("asked_to_end", [False, True], ids=["finished", "terminated"])
def test_an_evaluation_with_a_cluster_of_its_own_ends_all_of_it(asked_to_end: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate = (
        "evaluate",
        str(experiment(tmp_path, spares=1)),
        "--cluster",
        "ray",
        "--run-dir",
        str(run),
        "--no-report",
        *ONE,
    )
    folders: set[str] = set()
    with command(*evaluate) as started:
        once(started, lambda: bool(column(run, "state")))
        folders = cluster_folders(started.pid)
        assert len(folders) == 1
        family = family_of(*folders)  # spares and workers too, whose command lines do not tell
        assert len(family) > len(of_folder(*folders)) > 0
        if asked_to_end:
            started.terminate()
        said(started, 130 if asked_to_end else 0)
    assert (column(run, "state") == ["finished"]) is not asked_to_end
    (folder,) = folders
    assert not of_folder(folder)
    assert not [pid for pid, ticks in family.items() if start_time(pid) == ticks]
    assert not Path(folder).exists()


def test_an_evaluation_on_a_cluster_that_stays_leaves_no_actor(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    raylets = [
        pid for pid in of_folder(str(ray_cluster.folder)) if any("raylet" in one for one in arguments_of(pid)[:1])
    ]
    assert len(raylets) == len(ray_cluster.node_ids) + 1, "of the head too, where runners are"
    before = {pid for raylet in raylets for pid in children_titled(raylet, IDLE)}  # of other tests
    run = tmp_path / "run"
    evaluate = ("evaluate", str(experiment(tmp_path, spares=1)), "--cluster", "ray", "--address", ray_cluster.address)
    with command(*evaluate, "--run-dir", str(run), "--no-report", *ONE[2:]) as started:
        said(started, 0)
    assert column(run, "state") == ["finished"]
    own = ray.get_runtime_context().get_job_id()
    # Ray ends what belonged to a driver shortly after it.
    wait_until(lambda: all(own in actor["name"] for actor in list_named_actors(all_namespaces=True)))
    wait_until(lambda: before.issuperset(pid for raylet in raylets for pid in children_titled(raylet, IDLE)))
    assert [ray_cluster.worker_pids(node) for node in ray_cluster.node_ids] == [[]] * len(ray_cluster.node_ids)
