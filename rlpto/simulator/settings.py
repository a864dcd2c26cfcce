"""Settings of the simulator."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlpto.io.settings import LARGEST_NUMBER, Settings

SHORTEST_MTBF_HOURS = 0.01
"""Nodes that fail more often do nothing else."""

SHORTEST_GPU_MTBF_HOURS = 1.0
"""The same for one GPU of many."""


class FailureSettings(Settings):
    """Failures and repairs, both exponential; without hours between failures nothing fails."""

    mtbf_hours: float = Field(0.0, ge=0, le=10**9)
    """Mean hours between failures of one node, however many GPUs it has; 0: nodes never fail."""
    gpu_mtbf_hours: float = Field(0.0, ge=0, le=10**9)
    """Mean hours between failures of one GPU, in place of mtbf_hours: a node with k GPUs fails k times as often as one
    with a single one. Llama 3: 50,700. 0: nodes never fail."""
    mttr_hours: float = Field(1.0, ge=0.0001)
    """Mean hours to repair a node."""
    restart_share: float = Field(0.0, ge=0, le=1)
    """Share of failures after which the node stays up (software, NCCL). Such a failure hits one of the node's GPUs: the
    job that has it stops, goes back to its last checkpoint, and may start again at once; on a free GPU nothing is lost.
    The other failures stop all jobs on the node and take it out for mttr_hours."""
    lemon_share: float = Field(0.0, ge=0, le=1)
    """Share of nodes, chosen at random by seed, that fail lemon_factor times as often as the others."""
    lemon_factor: float = Field(10.0, ge=1, le=100)
    """How many times as often such nodes fail."""
    checkpoint_interval: float | Literal["young", "daly"] = 600.0
    """Seconds of training between checkpoints: a job that loses a node loses what came after the last one. young, daly:
    what is best by these for each job, from checkpoint_seconds and how often the nodes fail that it runs on; chosen
    whenever its GPUs change."""
    checkpoint_seconds: float = Field(0.0, ge=0, le=10**6)
    """Seconds without training that a job takes to write a checkpoint. They slow it evenly: it runs at interval /
    (interval + checkpoint_seconds) of its speed. Policies are shown speeds without this."""

    @property
    def on(self) -> bool:
        """True if anything fails."""
        return self.mtbf_hours > 0 or self.gpu_mtbf_hours > 0

    def node_mtbf(self, gpus: int) -> float:
        """Mean hours between failures of a node with this number of GPUs (0: as with 1), no lemon; 0: it never does."""
        return self.gpu_mtbf_hours / max(gpus, 1) if self.gpu_mtbf_hours else self.mtbf_hours

    @field_validator("checkpoint_interval", mode="before")
    @classmethod
    def _seconds_or_a_rule(cls, value: Any) -> Any:
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0.001 <= seconds <= LARGEST_NUMBER and value not in ("young", "daly"):
            raise ValueError(f"expected seconds (0.001 or more), young or daly, got {value!r}")
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
    """How time passes in the simulator and when decisions are due."""

    interval: float = Field(60.0, ge=0.001)
    """Seconds between regular decisions."""
    decide_on: Literal["interval", "events"] = "events"
    """interval: only then, first at the end of the first interval; events: also at once when a job arrives or
    finishes or a node changes."""
    placement: Literal["pack", "most_free"] = "pack"
    """pack: fewest nodes, best fit, a job grows and shrinks in place; most_free: the emptiest nodes first,
    and a job whose size changes is placed again (as in the Pollux simulator)."""
    rescale_delay: float | None = Field(None, ge=0)
    """Seconds without progress after every change of a job's GPUs, its start included; null: each model's own."""
    growth: Literal["pause", "overlap"] = "pause"
    """pause: every change of its GPUs costs a job the rescale delay; overlap, as jobs do on Ray: only a start does, a
    growing job trains on with the workers it has until new ones have started, and giving up GPUs costs nothing."""
    epoch_resolution: float = Field(0.0, ge=0)
    """Round the moment an epoch ends within an interval to multiples of this many seconds, as the Pollux simulator
    does with 1 s; only with `decide_on: interval`; 0: exact."""
    change_batch_above: float = Field(1.0, ge=1, le=1000)
    """Jobs that choose their batch sizes by their own fits (`knowledge.mode: online`) leave the one they train with
    only for another that is better by more than this factor, by their metric; on other GPUs they choose again. 1: any
    gain counts, as in Pollux's simulator; AdaptDL's agents have 1.05."""
    max_hours: float | None = Field(None, gt=0, le=10**6)
    """Stop the run after this many hours even if jobs remain; null: run until all are finished."""
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
