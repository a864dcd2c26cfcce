"""Additions to what jobs are made of: traces, throughput laws, models and training programs."""

from __future__ import annotations

from .base import Addition

PROFILE = """\
name: %s
description: Made up
source: None
samples: 12800.0
epochs: 2
batch: {base: 128, largest: 512, min_local: 16, max_local: 128}
throughput: %s
noise: {epochs: [0.0, 1.0], noise_scale: [1000.0, 2000.0]}
accuracy: {meaning: top-1, untrained: 0.1, final: 0.9, scale: 1.0, shape: 1.0}
rescale_delay: 20.0
errors: {throughput_median: 0.0, throughput_p90: 0.0, accuracy_rmse: 0.0, noise_log_rmse: 0.0}
"""

WORKLOADS = {
    "a trace format": Addition(
        new={
            "rlpto/workloads/importers/ours.py": '''\
"""A log of our own: second of submission and number of cards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import Format, ImportResult, numbers
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Read it."""
    table = read_csv(path, ("when", "cards"), skip_bad_lines)
    columns = {
        "name": np.array([str(line) for line in table.lines.number], dtype=object),
        "submit_time": numbers(table.lines, "when", table["when"]),
        "gpus": numbers(table.lines, "cards", table["cards"], low=1, whole=True),
    }
    return table.lines.finish(columns, origin=None)


FORMAT = Format("A format of our own", read, lambda head: head.startswith("when,cards"))
'''
        },
        brought={"ours.log": "when,cards\n5,2\n9,4\n"},
        use="""
from pathlib import Path

from rlpto.workloads.importers import detect_format
from rlpto.workloads.trace import read_trace

assert detect_format(Path("ours.log")) == "ours"
rlpto_command("trace", "import", "ours", "ours.log", "-o", "jobs.parquet")
assert read_trace(Path("jobs.parquet")).gpus.tolist() == [2, 4]
""",
    ),
    "a throughput law": Addition(
        new={
            "rlpto/performance/tree.py": '''\
"""Throughput of training whose gradients are added up along a binary tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.io.arrays import FloatArray


@dataclass(frozen=True)
class TreeParams:
    """sample: seconds to compute the gradient of one. hop: seconds of each level of the tree."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    sample: Annotated[float, Field(gt=0)]
    hop: Annotated[float, Field(ge=0)]
    law: Literal["tree"] = "tree"

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """See ThroughputLaw."""
        computed = self.sample * np.asarray(local_batch) * (np.asarray(accumulation) + 1)
        return np.asarray(computed + self.hop * np.log2(replicas) + 0.0 * np.asarray(nodes))
''',
            "rlpto/performance/profiles/treenet.yaml": PROFILE % ("treenet", "{law: tree, sample: 0.01, hop: 0.5}"),
        },
        inserted=(
            ("rlpto/performance/laws.py", '    "parameter_server": ServerParams,\n}', '    "tree": TreeParams,\n'),
            (
                "rlpto/performance/laws.py",
                "\nLAWS: Mapping",
                "from rlpto.performance.tree import TreeParams\n",
            ),
        ),
        use="""
job = {"model": "treenet", "epochs": 1.5, "data_size": 12_800.0, "batch_size": 128}
cluster = scheduled(job, *[4] * 10)
step = 0.01 * 128 / 4 + 0.5 * 2  # 4 GPUs, two levels
assert cluster.store.finish_time - cluster.store.start_time == pytest.approx(20.0 + 150 * step)
from rlpto.performance.profiles import load_profile, profile_yaml, builtin_profiles
from pathlib import Path
Path("again.yaml").write_text(profile_yaml(builtin_profiles()["treenet"]))
assert load_profile(Path("again.yaml")) == builtin_profiles()["treenet"]
""",
    ),
    "a training program": Addition(
        brought={
            "theirs/__init__.py": "",
            "theirs/lines.py": '''\
"""Which side of a line points lie on."""

import torch
from torch import nn
from torch.optim import SGD

from rlpto.ray_cluster.programs.base import Classifier


class Lines(Classifier):
    def __init__(self, points=40):
        inputs = torch.randn(points + 10, 2, generator=torch.Generator().manual_seed(0))
        super().__init__(inputs, (inputs.sum(1) > 0).long(), held_out=10)

    def model(self):
        return nn.Linear(2, 2)

    def optimizer(self, parameters):
        return SGD(parameters, lr=0.5)
''',
            "exp.yaml": """\
ray:
  programs:
    lines: {training: "theirs.lines:Lines", options: {points: 60}, samples: 60}
""",
        },
        use="""
from pathlib import Path

import torch
from rlpto.experiments.config import load_config
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.training import Trainer
from torch.nn.utils import parameters_to_vector

program = load_config(Path("exp.yaml")).ray.programs["lines"]
trainer = Trainer(
    JobSpec("job-1", "one", "session-1", program.training, ".", 20, 10.0, program.samples, program.options)
)
before, guessed = parameters_to_vector(trainer.network.parameters()), trainer.evaluate()
trained = trainer.run(100)
assert (trained.steps, trained.samples, trained.finished) == (30, 600, True)
assert not torch.equal(parameters_to_vector(trainer.network.parameters()), before)
assert trained.accuracy == trainer.evaluate() > guessed
""",
    ),
    "a model": Addition(
        new={
            "rlpto/performance/profiles/mynet.yaml": PROFILE
            % ("mynet", "{alpha_c: 0.1, beta_c: 0.01, alpha_n: 0, beta_n: 0, alpha_r: 0, beta_r: 0, gamma: 1.0}")
        },
        use="""
figures = evaluated("--set", "workload.mapping.models={mynet: 1}")
assert figures.unfinished == 0
from pathlib import Path
(record,) = Path("out/cells").glob("*.npz")
assert set(np.load(record)["jobs.models"]) == {"mynet"}
""",
    ),
}
