"""Predictions beside a scheduler that is at work: computed in a thread of their own, so that no decision waits."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from rlpto.core.cluster import Cluster, ClusterState
from rlpto.core.policy import Policy, as_it_stands
from rlpto.core.queues import QueueSettings
from rlpto.planning.prediction import Prediction, predict
from rlpto.planning.snapshot import Snapshot, take_snapshot
from rlpto.simulator.settings import SimulatorSettings

PREDICTION_INTERVAL_S = 5.0
"""Least time between two predictions."""
REST_PER_PREDICTION = 20.0
"""So many times as long as the last prediction took, none is begun: they take a few percent of one core at most."""


class LivePredictor:
    """Predicts from time to time what the jobs of a cluster come to, from decisions of its policy.

    queue, settings: of the scheduler, and how time passes in scratch clusters. publish: is told each prediction, and
    why there is none (empty if there is one), from within `tell`. interval: least s between two predictions.
    rest: s without one for every second that the last one took. executor: where predictions are computed; None: in a
    thread of their own.
    """

    def __init__(
        self,
        queue: QueueSettings,
        settings: SimulatorSettings,
        publish: Callable[[Prediction | None, str], None],
        interval: float = PREDICTION_INTERVAL_S,
        rest: float = REST_PER_PREDICTION,
        executor: Executor | None = None,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._publish = publish
        self._interval, self._rest = interval, rest
        self._executor = executor or ThreadPoolExecutor(1, "predictions")
        self._under_way: Future[Prediction] | None = None
        self._began = self._due = -float("inf")

    def deciding(self, cluster: Cluster, policy: Policy, state: ClusterState) -> None:
        """`policy` is about to decide on `state`, as the queue has ordered it."""
        now = time.monotonic()
        if self._under_way is not None or now < self._due:
            return
        self._began, self._due = now, now + self._interval
        try:
            remembering = copy.deepcopy(as_it_stands(policy))
        except Exception as error:  # a plug-in may hold what cannot be copied
            self._publish(None, f"policy {policy.name} cannot be copied: {error}")
            return
        self._under_way = self._executor.submit(self._predict, take_snapshot(cluster, state), remembering)

    def _predict(self, snapshot: Snapshot, policy: Policy) -> Prediction:
        return predict(snapshot, policy, self._queue, self._settings)

    def tell(self) -> None:
        """Publish a prediction that has become ready; to be called from time to time."""
        if self._under_way is None or not self._under_way.done():
            return
        finished, self._under_way = self._under_way, None
        now = time.monotonic()
        self._due = max(self._due, now + self._rest * (now - self._began))
        error = finished.exception()
        # Whatever goes wrong in a look ahead must not end a session that trains.
        self._publish(None if error is not None else finished.result(), "" if error is None else str(error))

    def close(self) -> None:
        """Begin nothing further."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def looking_ahead(settings: SimulatorSettings) -> SimulatorSettings:
    """How time passes in predictions: real jobs train on while new workers start, and stay where they are, alone."""
    return settings.model_copy(update={"growth": "overlap", "placement": "pack", "epoch_resolution": 0.0, "share": 1})
