"""This process as a driver of a Ray cluster: one that ends by SIGTERM as it does by Ctrl-C."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from rlpto.errors import ClusterError


def refuse_second() -> None:
    """Raises ClusterError if this process is a driver of a cluster already."""
    import ray

    if ray.is_initialized():
        raise ClusterError("this process is connected to a Ray cluster already, expected none")


class Attachment:
    """Connects this process to the cluster at `address`, until `detach`. Raises what Ray raises.

    Meanwhile SIGTERM raises KeyboardInterrupt, so that what is to be done after Ctrl-C is done then too: Ray's own
    handler would end the process.
    """

    def __init__(self, address: str) -> None:
        import ray

        self._before = signal.getsignal(signal.SIGTERM)
        context: Any = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        self.address = str(context.address_info["gcs_address"])
        _on_sigterm(signal.default_int_handler)

    def detach(self) -> None:
        """Disconnect, unless that is done already. Detached runners go on."""
        import ray

        ray.shutdown()
        _on_sigterm(self._before)


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # as Ray does: others cannot
        signal.signal(signal.SIGTERM, handler)
