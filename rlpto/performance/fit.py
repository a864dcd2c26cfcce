"""Redo the fits of all profiles from a folder of measurements, and write them as YAML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rlpto.io.errors import ProfileError
from rlpto.io.files import folder_there, write_text
from rlpto.performance.accuracy import fit_accuracy, metric_of, to_accuracy
from rlpto.performance.efficiency import NoiseCurve, fit_noise
from rlpto.performance.measurements import read_measurements
from rlpto.performance.profiles import DEFAULT_RESCALE_DELAY, FitErrors, Profile, profile_yaml
from rlpto.performance.throughput import fit_throughput, relative_errors

SOURCE = (
    "Own fit to the measurements of the Pollux artifact (petuum/adaptdl, branch osdi21-artifact, "
    "Apache-2.0): NVIDIA T4 GPUs, 4 a node"
)
"""Source of the fits of KNOWN applications."""

KNOWN = {
    "bert": ("BERT fine-tuned for question answering on SQuAD", 120.0),
    "cifar10": ("ResNet-18 on CIFAR-10", 50.0),
    "deepspeech2": ("DeepSpeech2 speech recognition on CMU-ARCTIC", 25.0),
    "imagenet": ("ResNet-50 on ImageNet", 250.0),
    "ncf": ("NeuMF collaborative filtering on MovieLens", 15.0),
    "yolov3": ("YOLOv3 object detection on PASCAL-VOC", 80.0),
}
"""Description and rescale delay [s] of applications: measurements contain neither."""


def fit_folder(folder: Path, out: Path) -> list[Path]:
    """Fit every application measured in a sub-folder of `folder`; write `out`/<application>.yaml.

    The same measurements always give the same files. Nothing is written unless every fit succeeds. Returns the files
    written, sorted. Raises ProfileError if the folder contains no measurements or one of its files is broken.
    """
    applications = sorted(path.parent for path in folder.glob("*/placements.csv")) if folder_there(folder) else []
    if not applications:
        raise ProfileError(f"{folder}: no sub-folder holds a placements.csv")
    texts = {path.name: profile_yaml(_fitted(path)) for path in applications}
    paths = [out / f"{name}.yaml" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text, "a profile", ProfileError)
    return paths


def _fitted(folder: Path) -> Profile:
    """Return all fits of one application, rounded to significant digits. Raises ProfileError naming the file, or the
    epoch without gradient statistics."""
    measured = read_measurements(folder)
    known = (measured.runs["grad_sqr"] > 0) & (measured.runs["grad_var"] > 0)
    if not known.any(axis=0).all():
        line = int(np.argmin(known.any(axis=0))) + 2
        raise ProfileError(
            f"{folder}: grad_sqr or grad_var is 0 in line {line} of every validation file, "
            "expected numbers above 0 in one of them"
        )
    description, rescale_delay = KNOWN.get(measured.name, (measured.name, DEFAULT_RESCALE_DELAY))
    params = fit_throughput(measured.steps).rounded(4)
    noise, noise_error = fit_noise(measured.runs["grad_sqr"], measured.runs["grad_var"], measured.limits.base)
    metrics = measured.runs["metric"]
    metric = metric_of(measured.name, metrics)
    curve, accuracy_error = fit_accuracy(to_accuracy(metric, metrics), metric)
    errors = relative_errors(params, measured.steps)
    return Profile(
        name=measured.name,
        description=description,
        source=SOURCE if measured.name in KNOWN else f"Own fit to the measurements in the folder {measured.name}",
        samples=_digits(measured.samples, 6),
        epochs=measured.epochs,
        batch=measured.limits,
        throughput=params,
        noise=NoiseCurve(noise.epochs, tuple(_digits(value, 4) for value in noise.noise_scale)),
        accuracy=replace(
            curve, final=round(curve.final, 4), scale=_digits(curve.scale, 4), shape=_digits(curve.shape, 4)
        ),
        rescale_delay=rescale_delay,
        errors=FitErrors(
            throughput_median=_digits(float(np.median(errors)), 3),
            throughput_p90=_digits(float(np.quantile(errors, 0.9)), 3),
            accuracy_rmse=_digits(accuracy_error, 3),
            noise_log_rmse=_digits(noise_error, 3),
        ),
    )


def _digits(value: float, count: int) -> float:
    """Round the value to `count` significant digits."""
    return float(f"{value:.{count}g}")
