"""What the forecasters take from inside scikit-learn, tested with version 1.9.1: the nodes of its trees.

scikit-learn documents no way to save boosted trees without pickle, and its own `predict` takes a thousand times as long
for one origin, most of it in checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.io.arrays import AnyArray


def tree_nodes(model: Any, trees: int) -> tuple[float, list[AnyArray]]:
    """What a fitted HistGradientBoostingRegressor starts from, and the nodes of its first trees.

    Nodes are records with the fields is_leaf, feature_idx, num_threshold, left, right and value.
    """
    base = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    return float(base[0]), [grown[0].nodes for grown in model._predictors[:trees]]
