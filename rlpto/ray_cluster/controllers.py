"""Job controllers from outside: where they live, finding them by name, and ending them.

Below the scheduler, what measures, and whatever else commands jobs; it needs neither torch nor the controller's code.
"""

from __future__ import annotations

import time
from typing import Any

from rlpto.errors import ClusterError
from rlpto.ray_cluster.messages import NAMESPACE, JobReport, controller_name
from rlpto.ray_cluster.nodes.environment import CONTROL


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's own account of every node that is alive."""
    import ray

    return [entry for entry in ray.nodes() if entry["Alive"]]  # type: ignore[no-untyped-call]


def control_node() -> str:
    """Ray's id of the node that controllers live on: one that is kept for them, the head, else one without GPUs.

    Raises ClusterError if no node is alive.
    """
    alive = alive_nodes()
    if not alive:
        raise ClusterError("the Ray cluster has no node that is alive")
    kept = [entry for entry in alive if CONTROL in entry["Resources"]]
    heads = [entry for entry in alive if "node:__internal_head__" in entry["Resources"]]
    without = [entry for entry in alive if not entry["Resources"].get("GPU")]
    return str(next(iter((*kept, *heads, *without, *alive)))["NodeID"])


def controller_exists(session: str, job: str) -> bool:
    """True if Ray still knows a job's controller: it answers, or is being restarted."""
    import ray

    try:
        ray.get_actor(controller_name(session, job), namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def find_controllers(session: str) -> dict[str, Any]:
    """Handles of all controllers of a session that there are, by job."""
    import ray
    from ray.util import list_named_actors

    prefix = controller_name(session, "")
    found = {}
    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] != NAMESPACE or not actor["name"].startswith(prefix):
            continue
        try:
            found[actor["name"].removeprefix(prefix)] = ray.get_actor(actor["name"], namespace=NAMESPACE)
        except ValueError:
            continue  # ended since it was listed
    return found


def stop_controller(handle: Any, seconds: float = 30.0) -> JobReport | None:
    """Have a controller stop and wait until it has: its last report, None if it was gone or gave none in time.

    One that does not answer in time is killed; its workers end with it.
    """
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    report: JobReport | None = None
    try:
        report = ray.get(handle.stop.remote(), timeout=seconds)
    except (ActorDiedError, ActorUnavailableError):
        return None
    except TimeoutError:
        ray.kill(handle, no_restart=True)
        return None
    gone = time.monotonic() + 10.0
    while time.monotonic() < gone:
        try:
            ray.get(handle.report.remote(), timeout=1.0)
        except (ActorDiedError, ActorUnavailableError):
            break
        except TimeoutError:
            continue
        time.sleep(0.05)
    return report
