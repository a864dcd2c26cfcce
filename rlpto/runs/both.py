"""The same workload on the real cluster and in the simulator, and how far the two are apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlpto.cli.common import make_console
from rlpto.cli.evaluate import labelled, run_cells, write_results
from rlpto.errors import ConfigError
from rlpto.runs.real import run_real_cells

if TYPE_CHECKING:
    from rlpto.config import Config
    from rlpto.evaluation.fidelity import Fidelity

REAL, SIMULATED = "real", "simulated"
"""Folders of the two evaluations inside the run's."""


def evaluate_both(
    config: Config, folder: Path, *, address: str | None, fresh: bool, keep: bool, report: bool, quiet: bool
) -> Fidelity:
    """Run every cell for real and simulated, write both results, and a comparison as `fidelity.json`.

    The real cluster comes first: the simulated one has the nodes that were found there. The policies are told the same
    on both. Raises ConfigError where programs are not measured: a guess is no simulation of them.
    """
    from rlpto.evaluation.fidelity import compare, fidelity_table, verdicts, write_fidelity
    from rlpto.experiment import refuse_online

    refuse_online(config.knowledge)
    _refuse_guesses(config)
    console = make_console(quiet)
    config, real = run_real_cells(config, folder / REAL, address=address, fresh=fresh, keep=keep, quiet=quiet)
    console.print("real:", style="bold")
    write_results(config, real, folder / REAL, report=report, quiet=quiet)
    simulated = run_cells(config, folder / SIMULATED, fresh=fresh, jobs=1, quiet=quiet)
    console.print("\nsimulated:", style="bold")
    write_results(config, simulated, folder / SIMULATED, report=report, quiet=quiet)
    found = compare(labelled(simulated), labelled(real))
    write_fidelity(found, folder / "fidelity.json")
    console.print()
    console.print(fidelity_table(found))
    for sentence in verdicts(found):
        console.print(sentence)
    console.print(f"\ncomparison: {folder / 'fidelity.json'}", style="bold")
    return found


def _refuse_guesses(config: Config) -> None:
    """Raises ConfigError if the simulator would not run what `rlpto profile` has measured of every program."""
    from rlpto.performance.compile import load_profiles

    known = () if config.profiles.folder is None else load_profiles(config.profiles.folder).models
    unknown = sorted(set(config.ray.programs) - set(known))
    if unknown:
        raise ConfigError(
            f"--cluster both: no profile of {', '.join(unknown)}; measure them with `rlpto profile CONFIG -o FILE`, "
            "and give --profiles FILE"
        )
