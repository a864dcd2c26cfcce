"""A small experiment for tests of environments and agents: a synthetic workload on 16 GPUs."""

from rlpto.experiments.config import Config

SMALL = Config.model_validate(
    {
        "name": "small",
        "cluster": {"nodes": [{"count": 4, "gpus": 4}]},
        "workload": {"days": 8, "load": 0.8, "windows": {"hours": 8}, "mapping": {"oversized": "skip"}},
        "env": {"episode": {"min_hours": 1, "max_hours": 4}},
    }
)
