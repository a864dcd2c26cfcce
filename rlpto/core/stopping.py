"""Early stopping: a job whose accuracy has flattened ends before its declared epochs.

Simulated and real jobs use one rule. Accuracies come from evaluations at given scale-invariant epochs. A single
evaluation is noisy, so the rule compares the *median* of the newest with the *best* earlier one: with several
evaluations in the window, a single one never stops a job. On a curve that never falls, such as a profile's, the median
is the accuracy half-way through the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from rlpto.io.arrays import BoolArray, FloatArray
from rlpto.io.settings import Settings

RULE_TEXT = "gain/over or gain/over/after, such as 0.001/0.05/0.7"
"""Syntax of a rule in one column of a file."""
_ROUNDING = 1e-9
"""Tolerance of sums of epochs, as a share of the declared epochs."""


class StopRule(Settings):
    """Ends a job once the median accuracy over the last `over` of its declared epochs exceeds the best earlier accuracy
    by at most a share `gain` of itself."""

    gain: float = Field(0.001, ge=0, le=1)
    """Share of the accuracy reached. With 0, a job stops once the median is no better than the best before."""
    over: float = Field(0.05, gt=0, le=1)
    """Share of the declared epochs."""
    after: float = Field(0.7, ge=0, le=1)
    """Share of the declared epochs before which no job stops. With 0, a plateau amid training ends the job."""

    @property
    def text(self) -> str:
        """The rule as text for `parse_rule`."""
        return f"{self.gain!r}/{self.over!r}/{self.after!r}"


def parse_rule(text: str) -> StopRule:
    """Parse a rule in the syntax of `RULE_TEXT`. Raises ValueError if it is not a rule."""
    names = ("gain", "over", "after")
    parts = text.split("/")
    if not 2 <= len(parts) <= len(names):
        raise ValueError(f"stop {text[:40]!r}: expected {RULE_TEXT}")
    return StopRule(**{name: float(part) for name, part in zip(names, parts, strict=False)})


def are_rules(texts: Sequence[str]) -> BoolArray:
    """[n] True for texts that are rules, or empty."""

    def is_rule(text: str) -> bool:
        try:
            return not text or bool(parse_rule(text))
        except ValueError:  # also raised for a number out of bounds
            return False

    good = {text: is_rule(text) for text in set(texts)}
    return np.array([good[text] for text in texts], dtype=np.bool_)


def has_flattened(rule: StopRule, declared: float, epochs: FloatArray, accuracy: FloatArray) -> bool:
    """True if a job of `declared` epochs stops at the newest of its n evaluations.

    epochs, accuracy: [n] of every evaluation so far, in order. False if all evaluations are in the rule's window.
    """
    slack = _ROUNDING * declared
    if not len(epochs) or epochs[-1] < rule.after * declared - slack:
        return False
    older = epochs <= epochs[-1] - rule.over * declared + slack
    older[-1] = False  # even if the window is shorter than the tolerance
    level = float(np.median(accuracy[~older]))
    return bool(older.any()) and level - float(accuracy[older].max()) <= rule.gain * level


def stop_epoch(rule: StopRule, declared: float, curve: FloatArray) -> float:
    """Epochs after which a job ends if it is evaluated after every whole epoch; `declared` if it does not stop early.

    curve: [P + 1] accuracy after 0 to P epochs; constant from there on.
    """
    window, slack, known = rule.over * declared, _ROUNDING * declared, len(curve) - 1
    first = max(math.ceil(rule.after * declared - slack), math.ceil(window - slack), 1)
    # Once the whole window lies beyond the curve it is flat: later epochs need no check.
    last = min(math.ceil(declared) - 1, max(first, known + math.ceil(window) + 1))
    epochs = np.arange(max(last, 0) + 1.0)
    accuracy: FloatArray = curve[np.minimum(epochs, known).astype(np.int64)]
    for epoch in range(first, last + 1):
        if has_flattened(rule, declared, epochs[: epoch + 1], accuracy[: epoch + 1]):
            return float(epoch)
    return declared
