"""Settings of the simulator."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlpto.io.settings import LARGEST_NUMBER, Settings

SHORTEST_MTBF_HOURS = 0.01
"""Lower bound of mtbf_hours: nodes that fail more often would do nothing else."""

SHORTEST_GPU_MTBF_HOURS = 1.0
"""Lower bound of gpu_mtbf_hours, for one GPU of many."""


class FailureSettings(Settings):
    """Failures and repairs at exponentially distributed times; by default nothing fails."""

    mtbf_hours: float = Field(0.0, ge=0, le=10**9)
    """Mean hours between failures of one node, for any number of GPUs. With 0, nodes never fail."""
    gpu_mtbf_hours: float = Field(0.0, ge=0, le=10**9)
    """Mean hours between failures of one GPU, instead of mtbf_hours: a node with k GPUs fails k times as often as a
    node with a single one. Llama 3: 50,700. With 0, nodes never fail."""
    mttr_hours: float = Field(1.0, ge=0.0001)
    """Mean hours to repair a node."""
    restart_share: float = Field(0.0, ge=0, le=1)
    """Share of failures after which the node stays up (software, NCCL). Such a failure hits one of the node's GPUs: the
    job that holds it stops, returns to its last checkpoint, and may start again at once; on a free GPU nothing is lost.
    The other failures stop all jobs on the node and take it down for mttr_hours."""
    lemon_share: float = Field(0.0, ge=0, le=1)
    """Share of nodes, chosen at random by seed, that fail lemon_factor times as often as the others."""
    lemon_factor: float = Field(10.0, ge=1, le=100)
    """Factor on the failure rate of such nodes."""
    checkpoint_interval: float | Literal["young", "daly"] = 600.0
    """Seconds of training between checkpoints: a job that loses a node loses all training after its last checkpoint.
    young, daly: the best interval for each job by these formulas, from checkpoint_seconds and the failure rate of its
    nodes; chosen whenever its GPUs change."""
    checkpoint_seconds: float = Field(0.0, ge=0, le=10**6)
    """Seconds without training that a job takes to write a checkpoint. They slow it evenly: it runs at interval /
    (interval + checkpoint_seconds) of its speed. Policies see speeds without this."""

    @property
    def on(self) -> bool:
        """True if anything fails."""
        return self.mtbf_hours > 0 or self.gpu_mtbf_hours > 0

    def node_mtbf(self, gpus: int) -> float:
        """Mean hours between failures of a node, not a lemon, with this number of GPUs (0 counts as 1); 0 for never."""
        return self.gpu_mtbf_hours / max(gpus, 1) if self.gpu_mtbf_hours else self.mtbf_hours

    @field_validator("checkpoint_interval", mode="before")
    @classmethod
    def _seconds_or_a_rule(cls, value: Any) -> Any:
        try:
            seconds = float(value)
        except (TypeError, ValueError, OverflowError):  # the last one for an int larger than any float
            seconds = 0.0
        if not 0.001 <= seconds <= LARGEST_NUMBER and value not in ("young", "daly"):
            raise ValueError(f"expected seconds (0.001 or more), young or daly, got {value!r:.60}")
        return value

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if self.mtbf_hours > 0 and self.gpu_mtbf_hours > 0:
            raise ValueError("expected mtbf_hours (of a node) or gpu_mtbf_hours (of each GPU), got both")
        if 0 < self.gpu_mtbf_hours < SHORTEST_GPU_MTBF_HOURS:
            raise ValueError(f"gpu_mtbf_hours: expected 0, or {SHORTEST_GPU_MTBF_HOURS:g} and more")
        if isinstance(self.checkpoint_interval, str) and not (self.on and self.checkpoint_seconds > 0):
            raise ValueError(
                f"checkpoint_interval {self.checkpoint_interval} needs checkpoint_seconds above 0, and failures "
                "(mtbf_hours or gpu_mtbf_hours above 0)"
            )
        return self


class SimulatorSettings(Settings):
    """Passage of time in the simulator, and times of decisions."""

    interval: float = Field(60.0, ge=0.001)
    """Seconds between regular decisions."""
    decide_on: Literal["interval", "events"] = "events"
    """interval: decide at the end of every interval only; events: also when a job arrives or finishes or a node
    changes."""
    placement: Literal["pack", "most_free"] = "pack"
    """pack: fewest nodes, best fit, a job grows and shrinks in place; most_free: the emptiest nodes first, and a job
    whose size changes is placed again (as in the Pollux simulator)."""
    rescale_delay: float | None = Field(None, ge=0)
    """Seconds without progress after every change of a job's GPUs, its start included. Default: each model's delay."""
    growth: Literal["pause", "overlap"] = "pause"
    """pause: every change of its GPUs costs a job the rescale delay; overlap, as jobs do on Ray: only a start does, a
    growing job keeps training with its present workers until new ones have started, and releasing GPUs is free."""
    epoch_resolution: float = Field(0.0, ge=0)
    """Round the end of an epoch within an interval to multiples of this many seconds, like the Pollux simulator does
    with 1 s; only with `decide_on: interval`. With 0, epoch ends are exact."""
    change_batch_above: float = Field(1.0, ge=1, le=1000)
    """Jobs that choose their batch sizes by their own fits (`knowledge.mode: online`) change the batch size only if
    another is better by more than this factor, by their metric; on other GPUs they choose again. With 1 any gain
    counts, as in Pollux's simulator; AdaptDL's agents use 1.05."""
    max_hours: float | None = Field(None, gt=0, le=10**6)
    """Stop the run after this many hours even if jobs remain. Default: run until all are finished."""
    failures: FailureSettings = FailureSettings()
    """Node failures."""

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if 0 < self.failures.mtbf_hours < SHORTEST_MTBF_HOURS:
            raise ValueError(f"failures.mtbf_hours: expected 0, or {SHORTEST_MTBF_HOURS:g} and more")
        # With rounded epochs a finish is known only once it has happened, so no policy could decide on it.
        if self.epoch_resolution > 0 and self.decide_on == "events":
            raise ValueError(
                f"epoch_resolution {self.epoch_resolution:g} needs decide_on: interval "
                "(or set epoch_resolution to 0 to decide on events)"
            )
        if self.growth == "overlap" and self.placement == "most_free":
            raise ValueError("growth overlap needs placement: pack, which leaves workers where they are")
        if self.growth == "overlap" and self.epoch_resolution > 0:
            raise ValueError("growth overlap needs epoch_resolution 0: new workers join in the middle of an epoch")
        return self
