"""All policies on Pollux's workloads under each setting of what is known; about half a CPU-hour.

Mean JCT over the workloads, divided by Pollux's published mean. Weights were tuned on the generated workloads 101-106.
"""

from __future__ import annotations

import numpy as np
from _cells import finished
from _plan import Measured, Plan, Study, tuned
from parity import ADAPTIVE, ONLINE, PUBLISHED, config_of

SHARED = (*ONLINE, "knowledge.fits=shared")
UNKNOWN = "knowledge.remaining=unknown"
SETTINGS: dict[str, tuple[str, ...]] = {
    "true speeds, declared epochs": (),
    "true speeds, epochs unknown": (UNKNOWN,),
    "own fits, declared epochs": ONLINE,
    "own fits, epochs unknown": (*ONLINE, UNKNOWN),
    "shared fits, declared epochs": SHARED,
    "shared fits, epochs learnt": (*SHARED, "knowledge.remaining=learnt"),
    "shared fits, epochs unknown": (*SHARED, UNKNOWN),
}
"""What policies and jobs know, by name."""
TUNED = tuned("pollux-adaptive")
NEED_EPOCHS = ("srtf", "hesrpt", "optimus", "index", "pollux:favour=remaining", TUNED)
"""Policies that look at the work that is left; to the others it makes no difference."""
POLICIES = (
    *(TUNED, "pollux:favour=remaining", "pollux:favour=attained", "pollux", "index", "hesrpt", "max_throughput"),
    *("equal_share", "srtf", "optimus", "las", "tiresias", "elastic_fifo", "round_robin", "fifo"),
)
CLAIMED = ("true speeds, declared epochs", "shared fits, declared epochs", "shared fits, epochs unknown")


def measure(plan: Plan, _: Study) -> Measured:
    """What the best policy reaches in each setting, and the table; nothing without workloads and profiles."""
    if plan.data is None:
        return Measured()
    ratios: dict[str, dict[str, float]] = {}
    for spec in POLICIES:
        asked = {name: name if spec in NEED_EPOCHS else f"{name.split(',')[0]}, declared epochs" for name in SETTINGS}
        found = {name: of_published(plan, spec, SETTINGS[name]) for name in dict.fromkeys(asked.values())}
        ratios["tuned index" if spec == TUNED else spec] = {name: found[asked[name]] for name in SETTINGS}
    rows = [{"policy": name} | {key: f"{ratio:.3f}" for key, ratio in row.items()} for name, row in ratios.items()]
    return Measured(
        figures={f"best policy, {name}": min(row[name] for row in ratios.values()) for name in CLAIMED},
        tables={"Mean JCT on workloads 1-4, divided by Pollux's published mean (2580 s)": rows},
    )


def of_published(plan: Plan, spec: str, settings: tuple[str, ...]) -> float:
    """Mean JCT over Pollux's published workloads by its published mean, with jobs that choose their batch sizes."""
    assert plan.data is not None
    config = config_of(plan.data / "traces" / "pollux", plan.data / "profiles", ADAPTIVE, *settings)
    done = finished(plan, config, [spec], "known", windows=lambda window: ("pollux", window) in PUBLISHED)
    published = np.mean([jct for (policy, _), jct in PUBLISHED.items() if policy == "pollux"])
    return float(np.mean([one.metrics["jct_mean"] for one in done]) / published)
