"""Place GPU counts on nodes: compiled functions on one cluster's free GPUs.

Two strategies. *pack* (default): a job spans as few nodes as possible, on the node it leaves fullest, and a job whose
size changes keeps its nodes if it can. *most_free*: GPUs come from the node with most free ones, first of equals by
number, then from the next: the rule of the Pollux simulator, in which a job whose size changes is placed again.
"""

from __future__ import annotations

from rlpto.io.arrays import AnyArray, IntArray
from rlpto.io.compiled import kernel


@kernel(inline="always")
def release(nodes: AnyArray, held: int, free: IntArray) -> None:
    """Return all GPUs of a job: nodes [G] holds the node of each of its `held` GPUs."""
    for i in range(held):
        free[nodes[i]] += 1


@kernel(inline="always")
def take_most_free(nodes: AnyArray, count: int, free: IntArray) -> None:
    """Fill nodes[:count] from the emptiest node, then the next. The cluster must have `count` free."""
    held = 0
    while held < count:
        best = 0
        for node in range(1, len(free)):
            if free[node] > free[best]:
                best = node
        taken = min(free[best], count - held)
        free[best] -= taken
        for _ in range(taken):
            nodes[held] = best
            held += 1


@kernel(inline="always")
def take_packed(nodes: AnyArray, count: int, free: IntArray, home: int) -> None:
    """Fill nodes[:count] spanning few nodes. `home`: node to prefer where it is as good, or -1.

    Choose the node that fits all missing GPUs and leaves fewest free; if none fits, take all free GPUs of the node with
    most. The cluster must have `count` free.
    """
    held = 0
    while held < count:
        missing = count - held
        fitting, largest = -1, 0
        if home >= 0 and free[home] >= missing:
            fitting = home
        else:
            for node in range(len(free)):
                if free[node] >= missing and (fitting < 0 or free[node] < free[fitting]):
                    fitting = node
                    if free[node] == missing:
                        break
                if free[node] > free[largest] or (free[node] == free[largest] and node == home):
                    largest = node
        chosen = fitting if fitting >= 0 else largest
        taken = min(free[chosen], missing)
        free[chosen] -= taken
        for _ in range(taken):
            nodes[held] = chosen
            held += 1


@kernel(inline="always")
def main_node(nodes: AnyArray, held: int) -> int:
    """The node that holds most of a job's GPUs (first of equals), -1 if it holds none."""
    best, most = -1, 0
    i = 0
    while i < held:
        start = i
        while i < held and nodes[i] == nodes[start]:
            i += 1
        if i - start > most:
            best, most = nodes[start], i - start
    return best


@kernel(inline="always")
def shrink_in_place(nodes: AnyArray, held: int, count: int, free: IntArray) -> None:
    """Give GPUs back until `count` are left, emptying the nodes with fewest of the job's GPUs first."""
    while held > count:
        start, fewest, i = 0, held + 1, 0
        while i < held:
            first = i
            while i < held and nodes[i] == nodes[first]:
                i += 1
            if i - first <= fewest:
                start, fewest = first, i - first
        given = min(fewest, held - count)
        free[nodes[start]] += given
        for k in range(start, held - given):
            nodes[k] = nodes[k + given]
        held -= given


@kernel(inline="always")
def span(nodes: AnyArray, held: int) -> int:
    """Number of nodes a job spans (runs of equal node numbers)."""
    groups = 0
    for i in range(held):
        if i == 0 or nodes[i] != nodes[i - 1]:
            groups += 1
    return groups


@kernel()
def fit_rows(placement: IntArray, gpus: IntArray, free: IntArray) -> None:
    """Make rows of placement [n, N] hold gpus [n] in total: remove the smallest parts, add where most are free."""
    for i in range(len(gpus)):
        row = placement[i]
        more = gpus[i] - row.sum()
        while more < 0:
            least = -1
            for node in range(len(row)):
                if row[node] > 0 and (least < 0 or row[node] <= row[least]):
                    least = node
            given = min(row[least], -more)
            row[least] -= given
            free[least] += given
            more += given
    for i in range(len(gpus)):
        row = placement[i]
        more = gpus[i] - row.sum()
        while more > 0:
            best = 0
            for node in range(len(free)):
                if free[node] > free[best]:
                    best = node
            taken = min(free[best], more)
            row[best] += taken
            free[best] -= taken
            more -= taken
