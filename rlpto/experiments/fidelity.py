"""The same workload on the real cluster and in the simulator, and the differences between the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlpto.evaluation.fidelity import Fidelity, compare, write_fidelity
from rlpto.evaluation.runner import FinishedCell
from rlpto.experiments.config import Config
from rlpto.experiments.evaluate import labelled, run_cells
from rlpto.experiments.on_ray import RealRun, run_real_cells
from rlpto.io.errors import ConfigError
from rlpto.performance.compile import load_profiles

REAL, SIMULATED = "real", "simulated"
"""Folders of the two evaluations inside the run's."""


def evaluate_both(
    config: Config,
    folder: Path,
    options: RealRun,
    show: Callable[[str, Config, list[FinishedCell], Path], object],
) -> Fidelity:
    """Run every cell for real and simulated, and write a comparison as `fidelity.json`.

    The real cluster runs first, because the simulated one gets the nodes found there. The policies have the same
    knowledge on both. show: called after each of the two with its configuration, cells and folder. Raises ConfigError
    if programs are not measured, because simulating guessed speeds would prove nothing.
    """
    _refuse_guesses(config)
    config, real = run_real_cells(config, folder / REAL, options)
    show(REAL, config, real, folder / REAL)
    simulated = run_cells(config, folder / SIMULATED, fresh=options.fresh, jobs=1, progress=options.progress)
    show(SIMULATED, config, simulated, folder / SIMULATED)
    found = compare(labelled(simulated), labelled(real))
    write_fidelity(found, folder / "fidelity.json")
    return found


def _refuse_guesses(config: Config) -> None:
    """Raises ConfigError if the simulator would not run what `rlpto profile` has measured of every program."""
    known = () if config.profiles.folder is None else load_profiles(config.profiles.folder).models
    unknown = sorted(set(config.ray.programs) - set(known))
    if unknown:
        raise ConfigError(
            f"--cluster both: no profile of {', '.join(unknown)}; measure them with `rlpto profile CONFIG -o FILE`, "
            "and give --profiles FILE"
        )
