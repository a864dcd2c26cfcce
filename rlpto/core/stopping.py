"""Early stopping: a job whose accuracy has flattened ends before its declared epochs.

One rule for simulated and for real jobs. Accuracies are those of evaluations, at given scale-invariant epochs. A
single one is noisy, so the rule compares the *median* of the newest with the *best* of those before: where there are
several, one alone never stops a job. On a curve that never falls, as those of profiles, the median is the accuracy
half-way through the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rlpto.io.arrays import BoolArray, FloatArray
from rlpto.io.settings import Settings

RULE_TEXT = "gain/over or gain/over/after, such as 0.001/0.05/0.7"
"""How a rule is written in one column of a file."""
_ROUNDING = 1e-9
"""Share of the declared epochs by which sums of epochs may be off."""


class StopRule(Settings):
    """Ends a job once its accuracy over the last `over` of its declared epochs, the median of the evaluations in them,
    is at most a share `gain` of itself above the best one before."""

    gain: float = Field(0.001, ge=0, le=1)
    """Share of the accuracy reached; 0: stop once the median is no better than the best before."""
    over: float = Field(0.05, gt=0, le=1)
    """Share of the declared epochs."""
    after: float = Field(0.7, ge=0, le=1)
    """Share of the declared epochs before which no job stops: 0 lets a plateau in the midst of training end it."""

    @property
    def text(self) -> str:
        """As `parse_rule` takes it."""
        return f"{self.gain!r}/{self.over!r}/{self.after!r}"


def parse_rule(text: str) -> StopRule:
    """The rule that a column of a trace writes as `RULE_TEXT` says. Raises ValueError if it is none."""
    names = ("gain", "over", "after")
    parts = text.split("/")
    if not 2 <= len(parts) <= len(names):
        raise ValueError(f"stop {text[:40]!r}: expected {RULE_TEXT}")
    return StopRule(**{name: float(part) for name, part in zip(names, parts, strict=False)})


def are_rules(texts: Sequence[str]) -> BoolArray:
    """[n] texts that are rules, or empty."""

    def is_rule(text: str) -> bool:
        try:
            return not text or bool(parse_rule(text))
        except ValueError:  # also where a number is out of bounds
            return False

    good = {text: is_rule(text) for text in set(texts)}
    return np.array([good[text] for text in texts], dtype=np.bool_)


def has_flattened(rule: StopRule, declared: float, epochs: FloatArray, accuracy: FloatArray) -> bool:
    """True if a job of `declared` epochs stops at the newest of its n evaluations.

    epochs, accuracy: [n] of every evaluation so far, in order. False where none is older than the rule's window.
    """
    slack = _ROUNDING * declared
    if not len(epochs) or epochs[-1] < rule.after * declared - slack:
        return False
    older = epochs <= epochs[-1] - rule.over * declared + slack
    level = float(np.median(accuracy[~older]))
    return bool(older.any()) and level - float(accuracy[older].max()) <= rule.gain * level


def stop_epoch(rule: StopRule, declared: float, curve: FloatArray) -> float:
    """Epochs after which a job ends that is evaluated after every whole epoch; `declared`: it does not stop early.

    curve: [P + 1] accuracy after 0 to P epochs; flat from there on.
    """
    window, slack, known = rule.over * declared, _ROUNDING * declared, len(curve) - 1
    first = max(math.ceil(rule.after * declared - slack), math.ceil(window - slack), 1)
    # Where all of the window lies beyond the curve, it is flat: nothing that comes later need be looked at.
    last = min(math.ceil(declared) - 1, max(first, known + math.ceil(window) + 1))
    epochs = np.arange(max(last, 0) + 1.0)
    accuracy: FloatArray = curve[np.minimum(epochs, known).astype(np.int64)]
    for epoch in range(first, last + 1):
        if has_flattened(rule, declared, epochs[: epoch + 1], accuracy[: epoch + 1]):
            return float(epoch)
    return declared
