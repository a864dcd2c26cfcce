"""Folders of local clusters, and this machine's processes, ports and network interfaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from rlpto.ray_cluster.compat import last_error
from rlpto.ray_cluster.nodes import processes
from rlpto.ray_cluster.nodes.environment import TOKEN_FILE
from rlpto.ray_cluster.nodes.processes import free_ports, make_folder, remove_dead_folders, started_for, unused_folder
from rlpto.ray_cluster.worker.worker_group import start_store, use_interface_of

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
OWNER = """
import sys, tempfile
from rlpto.ray_cluster.nodes.processes import make_folder, unused_folder
tempfile.tempdir = sys.argv[1]
folder = unused_folder()
make_folder(folder)
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters have their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_for_its_user_alone_and_its_token_too() -> None:
    folder = unused_folder()
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    other = unused_folder()
    make_folder(other)
    tokens = [(each / TOKEN_FILE).read_text() for each in (folder, other)]
    assert len(set(tokens)) == 2
    assert all(len(token) == 64 for token in tokens)


def test_the_folder_of_a_process_that_was_killed_is_removed_and_no_other(here: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(here)]
    foreign = here / "rl-of-another"
    foreign.mkdir()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        remove_dead_folders()
        assert folder.is_dir(), "its owner lives"
        owner.kill()
    with started_for(str(folder)):
        user = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    remove_dead_folders()
    assert folder.is_dir(), "a process of its cluster lives"
    user.communicate()
    remove_dead_folders()
    assert not folder.exists()
    assert foreign.is_dir()


def test_ports_are_free_and_none_that_the_system_gives_to_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("10003\t60999\n")
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "range")
    with socket.socket() as taken:
        with suppress(OSError):  # another process has it already: Ray's client server does by default
            taken.bind(("", 10001))
        assert sorted(free_ports(2)) == [10000, 10002]
        found = free_ports(4)
    assert len(set(found)) == 4, "more than there are below: the system chooses the others"
    assert 10001 not in found
    monkeypatch.setattr(processes, "EPHEMERAL", tmp_path / "missing")
    assert len(set(free_ports(3))) == 3, "the system chooses all"


def test_the_store_of_a_local_cluster_listens_on_no_other_address() -> None:
    store = start_store("127.0.0.1")
    TCPStore("127.0.0.1", store.port, is_master=False).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5.0)


def test_workers_talk_through_the_interface_of_their_nodes_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the code sets is undone
        monkeypatch.delenv(name)
    use_interface_of("192.0.2.77")
    assert not set(VARIABLES) & set(os.environ), "no interface has that address"
    monkeypatch.setenv(VARIABLES[1], "mine")
    use_interface_of("127.0.0.1")
    assert os.environ[VARIABLES[0]] == "lo"
    assert os.environ[VARIABLES[1]] == "mine", "what the user says counts"


FORKS = """
import os, subprocess
from concurrent.futures import ThreadPoolExecutor
from rlpto.ray_cluster.nodes.environment import ray_environment
with ray_environment():
    import grpc
    server = grpc.server(ThreadPoolExecutor(1))
    channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    grpc.channel_ready_future(channel).result()
    starts = [subprocess.Popen(["true"], preexec_fn=os.getpid).wait() for _ in range(200)]
print(sum(status != 0 for status in starts), flush=True)
os._exit(0)
"""


def test_processes_started_under_grpc_are_not_killed() -> None:
    """As Ray's server for clients starts one for each client."""
    assert subprocess.run([sys.executable, "-c", FORKS], capture_output=True, check=True).stdout == b"0\n"


LOG = """\
[2026-11-27 16:37:14,090 I 2359 2395] (raylet) agent_manager.cc:81: Monitor agent process with name runtime_env_agent
[2026-11-27 16:37:29,675 C 2359 2359] (raylet) node_manager.cc:3588:  An unexpected system state has occurred. You \
have likely discovered a bug in Ray. Check failed: port.has_value() Timed out waiting for file /tmp/port_a749
*** StackTrace Information ***
/bin/raylet(+0xff770a) [0x55ebb6cb770a] ray::operator<<()
"""


def test_the_reason_why_a_raylet_has_ended_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "raylet.err"
    with subprocess.Popen(["true", f"--stderr_filepath={log}"]) as raylet:
        log.write_text(LOG)
        assert last_error(raylet) == "port.has_value() Timed out waiting for file /tmp/port_a749"
        log.write_text(LOG.splitlines()[0])
        assert last_error(raylet) == ""
    with subprocess.Popen(["true"]) as without_log:
        assert last_error(without_log) == ""


@pytest.mark.parametrize(("store", "silenced", "printed"), [(False, "", "gone\n"), (True, "", ""), (False, "()", "")])
def test_that_a_killed_driver_has_lost_its_node_is_said(here: Path, store: bool, silenced: str, printed: str) -> None:
    program = (
        "import os, sys\n"
        "from rlpto.ray_cluster.nodes.environment import report_lost_node\n"
        f"with report_lost_node(sys.argv[1], 'gone') as silence:\n    silence{silenced}\n    os.kill(os.getpid(), 9)\n"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(here / "store"))
        if store:
            listening.listen()
        command = [sys.executable, "-c", program, str(here / "store")]
        driver = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (driver.returncode, driver.stderr) == (-9, printed)
