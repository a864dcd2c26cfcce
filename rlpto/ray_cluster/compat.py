"""Wrappers of Ray's private modules, which may change with any version; tested with Ray 2.60.

Ray has no public API for these without its dashboard. Importing this module imports Ray.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlpto.io.extras import extras

with extras():
    import grpc
    from ray import NodeID, _raylet
    from ray._private import grpc_utils, node, ray_constants, ray_logging, state, utils
    from ray._private.parameter import RayParams as RayParams
    from ray.core.generated import (
        autoscaler_pb2,
        gcs_service_pb2,
        gcs_service_pb2_grpc,
        ray_client_pb2,
        ray_client_pb2_grpc,
    )
    from ray.experimental import internal_kv

Node = node.Node
"""A head or a node of a cluster, started by this process."""

_client: Any = ray_client_pb2
_client_stubs: Any = ray_client_pb2_grpc
_library: Any = _raylet
_constants: Any = ray_constants
_grpc: Any = grpc_utils
_kv: Any = internal_kv
_logging: Any = ray_logging
_requests: Any = gcs_service_pb2
_state: Any = state
_stubs: Any = gcs_service_pb2_grpc
_drain: Any = autoscaler_pb2
_utils: Any = utils  # these are untyped


def reread_environment(external_address: str) -> None:
    """Make Ray read its environment variables again. external_address: name of the variable on the external address."""
    _constants.ENABLE_RAY_CLUSTER = _constants.env_bool(external_address, not _constants.IS_WINDOWS_OR_OSX)
    _library.Config.initialize("")
    _library.AuthenticationTokenLoader.instance().reset_cache()
    skipped = os.environ.get("RAY_DEDUP_LOGS_SKIP_REGEX")
    for filter_ in (_logging.stdout_deduplicator, _logging.stderr_deduplicator):
        filter_.skip_re = re.compile(skipped) if skipped else None


def noted_address_file() -> Path:
    """File in which `ray start` records the address of this machine's cluster."""
    return Path(_utils.get_ray_address_file(None))


def has_joined(address: str, node_id: str) -> bool:
    """True once the head at `address` knows a node. Ray's own check takes a second while it does not."""
    return bool(_library.GcsClient(address=address).check_alive([NodeID.from_hex(node_id)])[0])


def note_agent_port(node: Any) -> None:
    """Write the one agent port that Ray does not pass to the raylet to the place where the raylet looks for it.

    Without it, the raylet would wait 15 s for the agent to write it, and then abort (Ray issue 65983).
    """
    name, port = _library.DASHBOARD_AGENT_LISTEN_PORT_NAME, node.dashboard_agent_listen_port
    _library.persist_port(node.get_session_dir_path(), node.node_id, name, port)


_FAILURE = re.compile(r"^\[[^]]* [EC] [^]]*\] \(raylet\) \S+ +(?:.* Check failed: )?(.+)$", re.MULTILINE)


def last_error(raylet: Any) -> str:
    """The last error logged by a raylet, a child of this process, in one line; empty if there is none."""
    option = "--stderr_filepath="
    logs = (Path(one.removeprefix(option)) for one in raylet.args if one.startswith(option))  # none: RAY_LOG_TO_STDERR
    errors = [error for log in logs for error in _FAILURE.findall(log.read_text(errors="replace"))]
    return str(errors[-1]).strip() if errors else ""


def takes_token(address: str, timeout: float, *, client: bool = False) -> bool:
    """False if the cluster at `address` refuses this process's token, or asks for one while it has none.

    client: whether it is the address of the server for Ray's client.
    Raises AuthenticationError if the token is missing, ConnectionError if another server listens there.
    """
    with _grpc.init_grpc_channel(address) as channel:
        try:
            if client:
                ping = _client.ClusterInfoRequest(type=_client.ClusterInfoType.PING)
                _client_stubs.RayletDriverStub(channel).ClusterInfo(ping, timeout=timeout)
            else:
                _stubs.NodeInfoGcsServiceStub(channel).GetClusterId(_requests.GetClusterIdRequest(), timeout=timeout)
        except grpc.RpcError as error:  # Ray itself reports other errors
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                expected = "HOST:PORT of a head, or ray://HOST:PORT of its server for Ray's client"
                raise ConnectionError(f"another server listens there, expected {expected}") from None
            return bool(error.code() != grpc.StatusCode.UNAUTHENTICATED)
    return True


def channel_to(address: str) -> Any:
    """Open a gRPC connection to a process of the cluster at `address` (HOST:PORT)."""
    return _grpc.init_grpc_channel(address)


def ask_health(channel: Any, timeout: float) -> Any:
    """Ask a raylet for its health, as the head does. Returns gRPC's future, which fails after `timeout` s at most."""
    return channel.unary_unary("/grpc.health.v1.Health/Check").future(b"", timeout=timeout)


actor_states: Callable[[], dict[str, Any]] = _state.actors
"""The head's records of all actors, by id."""
drivers: Callable[[], Sequence[dict[str, Any]]] = _state.jobs
"""Every driver that the cluster has had: JobID, IsDead, ..."""
free_resources: Callable[[], dict[str, dict[str, float]]] = _state.available_resources_per_node
"""Free resources of every node, by the node's id."""
draining_nodes: Callable[[], dict[str, int]] = _state.state.get_draining_nodes
"""Draining nodes by id, with the time they leave [ms of `time.time`], or 0 if it is not given."""


def actor_state(handle: Any) -> dict[str, Any]:
    """The head's record of the actor with this handle; empty if it has none."""
    found: dict[str, Any] = _state.actors(actor_id=handle._actor_id.hex())
    return found


def drain_node(address: str, node_id: str, seconds: float) -> str:
    """Announce to the head at `address` that a node leaves in `seconds`. Returns the reason if refused, else empty."""
    reason = _drain.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    until = int(1000 * (time.time() + seconds))
    taken, refused = _library.GcsClient(address=address).drain_node(node_id, reason, "rlpto cluster drain", until)
    return "" if taken else str(refused) or "refused"


def put_value(namespace: bytes, key: str, value: str) -> None:
    """Store a value in the head's key-value table."""
    _kv._internal_kv_put(key, value, namespace=namespace)


def drop_value(namespace: bytes, key: str) -> None:
    """Remove a value from the head's key-value table."""
    _kv._internal_kv_del(key, namespace=namespace)


def values(namespace: bytes, prefix: str) -> list[bytes]:
    """All values whose keys begin with `prefix`, in the order of their keys."""
    keys = sorted(_kv._internal_kv_list(prefix, namespace=namespace))
    found = (_kv._internal_kv_get(key, namespace=namespace) for key in keys)
    return [value for value in found if value is not None]
