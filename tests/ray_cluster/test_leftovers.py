"""Nothing stays behind of a cluster that has ended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.processes import arguments_of, family_of, of_folder, start_time, with_children
from tests.ray_cluster.test_commands import ONE_JOB, column, command, experiment, once, said

ONE_NODE = ("--set", "cluster.nodes=[{count: 1, gpus: 1}]")


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
        str(experiment(tmp_path)),
        "--cluster",
        "ray",
        "--run-dir",
        str(run),
        "--no-report",
        *ONE_NODE,
        *ONE_JOB,
    )
    folders: set[str] = set()
    with command(*evaluate) as started:
        once(started, lambda: bool(column(run, "state")))
        folders = cluster_folders(started.pid)
        assert len(folders) == 1
        family = family_of(*folders)
        assert family
        if asked_to_end:
            started.terminate()
        said(started, 130 if asked_to_end else 0)
    assert (column(run, "state") == ["finished"]) is not asked_to_end
    (folder,) = folders
    assert not of_folder(folder)
    assert not [pid for pid, ticks in family.items() if start_time(pid) == ticks]
    assert not Path(folder).exists()
