"""What of workers listens, and through which network interface they talk."""

from __future__ import annotations

import os
import socket

import pytest
from torch.distributed import TCPStore

from rlpto.ray_cluster.worker.worker_group import interfaces, start_store, use_interface_of

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


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
    assert "127.0.0.1" in interfaces().values()
    use_interface_of("192.0.2.77")
    assert not set(VARIABLES) & set(os.environ), "no interface has that address"
    monkeypatch.setenv(VARIABLES[1], "mine")
    use_interface_of("127.0.0.1")
    assert interfaces()[os.environ[VARIABLES[0]]] == "127.0.0.1"
    assert os.environ[VARIABLES[1]] == "mine", "what the user says counts"
