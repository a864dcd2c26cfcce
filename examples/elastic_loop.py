"""A custom training loop as an elastic job: `python examples/elastic_loop.py`, or submitted to a job service:

rlpto submit examples/elastic_loop.py --samples 1437 --epochs 20 --gpus 2 --wait -- --learning-rate 0.05
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import TensorDataset

from rlpto import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=0.1)
options = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
training = TensorDataset(images[:1437], labels[:1437])
network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=0.9)


def accuracy(model: torch.nn.Module) -> float:
    """Share of the held-out digits that are recognised."""
    found = model(images[1437:].to(next(model.parameters())))
    return float((found.argmax(-1).cpu() == labels[1437:]).float().mean())


session = elastic.session(network, optimizer, data_size=len(training), evaluate=accuracy, epochs=5, batch_size=64)
with session as job:
    for inputs, answers in job.batches(training):
        job.step(functional.cross_entropy(job.model(inputs), answers))
