"""The training of `tests.ray_cluster.programs:Plain`, as a user's own loop."""

import sys

import torch
from torch import nn
from torch.nn import functional

from rlpto import elastic

inputs = torch.randn(121, 5, generator=torch.Generator().manual_seed(3))
rows = list(zip(inputs, (inputs.sum(1) > 0).long(), strict=True))
layers = [nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2)]
if "--batch-norm" in sys.argv:
    layers.insert(1, nn.BatchNorm1d(16))
network = nn.Sequential(*layers)
if "--spare" in sys.argv:
    network.register_parameter("spare", nn.Parameter(torch.zeros(2)))
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)


def falling(optimizer, steps):
    """As the program has it."""
    return torch.optim.lr_scheduler.StepLR(optimizer, max(steps // 3, 1))


with elastic.session(network, optimizer, data_size=101, scheduler=falling) as job:
    for points, classes in job.batches(rows):
        job.step(functional.cross_entropy(job.model(points), classes))
