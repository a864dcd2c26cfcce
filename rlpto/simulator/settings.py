"""Settings of the simulator."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlpto.io.settings import Settings

SHORTEST_MTBF_HOURS = 0.01
"""Nodes that fail more often do nothing else."""


class FailureSettings(Settings):
    """Node failures, exponential in both directions; 0 hours between failures switches them off."""

    mtbf_hours: float = Field(0.0, ge=0, le=10**9)
    """Mean hours between failures of one node; 0: nodes never fail."""
    mttr_hours: float = Field(1.0, ge=0.0001)
    """Mean hours to repair a node."""
    checkpoint_interval: float = Field(600.0, ge=0.001)
    """Seconds of training between checkpoints: a job that loses a node loses what came after the last one."""


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
    share: int = Field(1, ge=1, le=64)
    """Jobs that may share a GPU. From 2 on, every node offers this number of places per GPU, a job may hold at most as
    many as the smallest node has GPUs, and capacity and utilisation count places; needs `decide_on: events`."""
    share_slowdown: float = Field(0.6, ge=0, le=1)
    """How much jobs on one GPU slow each other: with m of them, each runs at 1 / (1 + share_slowdown * (m - 1)) of its
    speed. 0: not at all; 1: they take turns."""
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
        if self.share > 1 and self.decide_on != "events":
            raise ValueError(f"share {self.share} needs decide_on: events, as jobs speed up when a neighbour finishes")
        if self.growth == "overlap" and self.placement == "most_free":
            raise ValueError("growth overlap needs placement: pack, which leaves workers where they are")
        if self.growth == "overlap" and self.epoch_resolution > 0:
            raise ValueError("growth overlap needs epoch_resolution 0: new workers join in the middle of an epoch")
        return self
