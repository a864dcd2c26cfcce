"""A cluster as text and as a picture: the results of `render` of the environments."""

from __future__ import annotations

import colorsys
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.rewards import HOUR
from rlpto.io.arrays import AnyArray, FloatArray, IntArray

METADATA: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}
"""Gymnasium metadata of the render modes: text, and pictures [HEIGHT, WIDTH, 3] uint8."""
WIDTH, HEIGHT = 640, 360
"""Pixels of a picture. Video codecs need even numbers."""
_MARGIN, _TOP, _NODES, _ROW, _NAME = 8, 28, 400, 12, 92
_WHITE, _INK, _FREE, _DOWN = (255, 255, 255), (40, 40, 40), (225, 225, 225), (110, 110, 110)
_JOBS = [tuple(int(255 * part) for part in colorsys.hsv_to_rgb(0.618 * i % 1, 0.6, 0.9)) for i in range(34)]
_FONT = ImageFont.load_default(11)
_COLOURS = np.array([_WHITE, _FREE, _DOWN, *_JOBS], dtype=np.uint8)


class Scene(NamedTuple):
    """A cluster with n active jobs, in queue order, and N nodes.

    time: seconds since the workload began. names: [n] of jobs. view: [n] `rlpto.core.jobs.VIEW`. speed: [n, K + 1] work
    per second by GPUs. places: for each job the nodes of its GPUs. sizes: [N] GPUs of nodes. offered: [N] GPUs of nodes
    that jobs may hold now.
    """

    time: float
    names: list[str]
    view: AnyArray
    speed: FloatArray
    places: tuple[IntArray, ...]
    sizes: IntArray
    offered: IntArray

    def headline(self, workload: str, reward: float) -> str:
        """A line about the cluster. reward: reward of the episode so far."""
        held, up = int(self.view["gpus"].sum()), int(self.offered.sum())
        down, waiting = int(self.sizes.sum()) - up, int(np.count_nonzero(self.view["gpus"] == 0))
        gpus = f"{held} of {up} GPUs held" + (f", {down} down" if down else "")
        jobs = f"jobs: {len(self.view) - waiting} running, {waiting} waiting"
        return "  ·  ".join([workload, f"{self.time / HOUR:.2f} h", gpus, jobs, f"reward {reward:+.2f}"])

    def text(self, workload: str, reward: float) -> str:
        """The headline and a table of the active jobs. Hours left assume the GPUs held, or else the requested GPUs."""
        view, headline = self.view, self.headline(workload, reward)
        if not len(view):
            return f"{headline}\n"
        count = np.where(view["gpus"] > 0, view["gpus"], np.minimum(view["requested_gpus"], self.speed.shape[1] - 1))
        table = pd.DataFrame(
            {
                "job": self.names,
                "class": [PRIORITY_CLASSES[priority] for priority in view["effective_priority"]],
                "GPUs": view["gpus"],
                "requested": view["requested_gpus"],
                "estimated hours left": view["remaining"] / self.speed[np.arange(len(view)), count] / HOUR,
                "accuracy": view["accuracy"],
            }
        )
        shown = table.to_string(index=False, float_format="{:.3f}".format)
        return f"{headline}\n\n{shown}\n"

    def picture(self, workload: str, reward: float) -> NDArray[np.uint8]:
        """A picture [HEIGHT, WIDTH, 3]: GPUs on the left, jobs in queue order on the right.

        A square is a GPU in the colour of its job, grey if free, dark if down. A bar shows a job's GPUs, its outline
        the requested GPUs.
        """
        image = Image.new("RGB", (WIDTH, HEIGHT), _WHITE)
        draw = ImageDraw.Draw(image)
        draw.text((_MARGIN, 7), self.headline(workload, reward), _INK, _FONT)
        left, bottom = _NODES + 2 * _MARGIN, HEIGHT - _MARGIN
        image.paste(Image.fromarray(self._nodes(bottom - _TOP, _NODES)), (_MARGIN, _TOP))
        rows = min(len(self.view), (bottom - _TOP) // _ROW - 1)
        held, asked = self.view["gpus"], self.view["requested_gpus"]
        unit = (WIDTH - left - _MARGIN - _NAME) / max(int(np.maximum(held, asked)[:rows].max(initial=1)), 1)
        for row in range(rows):
            x, y = left + _NAME, _TOP + row * _ROW
            draw.text((left, y - 1), self.names[row][-16:], _INK, _FONT)
            bar, outline = ((x, y, x + max(unit * gpus[row] - 1, 0), y + _ROW - 3) for gpus in (held, asked))
            if held[row]:
                draw.rectangle(bar, fill=_JOBS[int(self.view["index"][row]) % len(_JOBS)])
            draw.rectangle(outline, outline=_DOWN)
        if rows < len(self.view):
            draw.text((left, _TOP + rows * _ROW), f"and {len(self.view) - rows} more", _INK, _FONT)
        return np.asarray(image)

    def _nodes(self, height: int, width: int) -> NDArray[np.uint8]:
        """[height, width, 3] every node as a row of GPUs, in the number of columns that makes the squares largest."""
        count, most = len(self.sizes), int(self.sizes.max(initial=1))
        columns = min(max(round((count * width / height / (most + 1)) ** 0.5), 1), count)
        rows = -(-count // columns)
        cells = np.zeros((columns * rows, most + 1), dtype=np.int64)
        cells[:count, :most] = np.where(
            np.arange(most) < self.sizes[:, None], np.where(self.offered > 0, 1, 2)[:, None], 0
        )
        nodes = np.concatenate([*self.places, np.zeros(0, np.int64)])
        owners = np.repeat(self.view["index"], [len(place) for place in self.places])
        order = np.lexsort((owners, nodes))
        node = nodes[order]
        cells[node, (np.arange(len(node)) - np.searchsorted(node, node)) % most] = owners[order] % len(_JOBS) + 3
        cells = cells.reshape(columns, rows, most + 1).swapaxes(0, 1).reshape(rows, -1)
        size = min(width / cells.shape[1], height / rows)
        down, across = ((np.arange(pixels) / size).astype(np.int64) for pixels in (height, width))
        drawn: NDArray[np.uint8] = _COLOURS[np.pad(cells, ((0, height), (0, width)))[np.ix_(down, across)]]
        if size >= 4:
            drawn[np.diff(down, prepend=-1) > 0] = 255
            drawn[:, np.diff(across, prepend=-1) > 0] = 255
        return drawn


def check_render_mode(mode: str | None) -> str | None:
    """Return the mode. Raises ValueError for an unknown mode."""
    if mode not in (None, *METADATA["render_modes"]):
        raise ValueError(f"render_mode {mode}: expected {', '.join(METADATA['render_modes'])} or None")
    return mode
