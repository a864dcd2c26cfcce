"""Images: a residual network on generated ones of any size; recorded ones take their place in `__init__`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Classifier


class GeneratedImages(Classifier):
    """A residual network (He et al., arXiv 1512.03385) on images: each class is a random picture, faint, under noise.

    samples: for training. size: pixels of a side. channels, classes: of the data. signal: strength of the picture
    relative to noise of 1. data_seed: of the pictures. width, blocks, learning_rate: of the network, which has group
    rather than batch normalisation: statistics of a batch would depend on how many workers share it.
    """

    def __init__(
        self,
        samples: int = 2048,
        size: int = 16,
        channels: int = 3,
        classes: int = 10,
        signal: float = 0.5,
        width: int = 16,
        blocks: int = 1,
        learning_rate: float = 0.05,
        data_seed: int = 0,
    ) -> None:
        if width % 8 or width < 8 or blocks < 1:
            raise JobError(f"width is {width}, blocks {blocks}: expected a multiple of 8, and at least 1 block")
        generator = torch.Generator().manual_seed(data_seed)
        held_out = max(64, samples // 8)
        pictures = torch.randn(classes, channels, size, size, generator=generator)
        labels = torch.randint(classes, (samples + held_out,), generator=generator)
        noise = torch.randn(len(labels), channels, size, size, generator=generator)
        super().__init__(noise + signal * pictures[labels], labels, held_out)
        self._channels, self._classes = channels, classes
        self._width, self._blocks, self._learning_rate = width, blocks, learning_rate

    def model(self) -> nn.Module:
        """Three stages of `blocks` residual blocks; each halves the image and doubles the width."""
        width, layers = self._width, []
        layers += [nn.Conv2d(self._channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
        before = width
        for stage in range(3):
            for block in range(self._blocks):
                stride = 2 if stage and not block else 1
                layers.append(Residual(before, width * 2**stage, stride))
                before = width * 2**stage
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, self._classes))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """SGD with momentum and weight decay."""
        return SGD(parameters, lr=self._learning_rate, momentum=0.9, weight_decay=1e-4)


class Residual(nn.Module):
    """Two convolutions, added to their input (which a third brings into shape where that changes)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            norm(width),
        )
        same = before == width and stride == 1
        self.keep = nn.Identity() if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """[n, before, h, w] to [n, width, h / stride, w / stride]."""
        return torch.relu(self.keep(images) + self.change(images))


def norm(width: int) -> nn.Module:
    """Normalisation over groups of 8 channels."""
    return nn.GroupNorm(width // 8, width)
