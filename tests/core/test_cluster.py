"""A cluster's shape says the same however it came about."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.renting import RentedSettings

FACTS = [name for name, fact in vars(ClusterShape).items() if isinstance(fact, cached_property)]
RENTED = RentedSettings(most=2)


def mixed() -> ClusterShape:
    nodes = [Node(4, 8, "a"), Node(2, 4, "b", rented=RENTED), Node(4, 8, "a", up=False), Node(2, 4, "b", rented=RENTED)]
    return ClusterShape(nodes)


@pytest.mark.parametrize(
    "change",
    [
        lambda shape: shape.with_up([False, True, True, False]),
        lambda shape: shape.with_up(np.array([False, False, False, True])),
        lambda shape: shape.with_background([1, 0, 2, 0], [0, 3, 0, 0]),
        lambda shape: shape.with_background([1, 0, 2, 0], [0, 3, 0, 0]).with_up([True, False, True, True]),
        lambda shape: shape.with_up([True] * 4).with_background([0, 2, 0, 0], [1, 1, 1, 1]),
    ],
)
def test_a_shape_in_another_state_has_the_facts_of_the_same_nodes_made_from_scratch(
    change: Callable[[ClusterShape], ClusterShape],
) -> None:
    known = mixed()
    for name in FACTS:
        getattr(known, name)
    for shape in (change(known), change(mixed())):
        fresh = ClusterShape(replace(node) for node in shape)
        for name in FACTS:
            mine, its = getattr(shape, name), getattr(fresh, name)
            if name == "rented_groups":
                assert [group.tolist() for group in mine] == [group.tolist() for group in its]
            else:
                np.testing.assert_array_equal(mine, its)
