"""Submissions: folders with a card, results and the files of the policies, made by runs and verified by new runs."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator

from rlpto import __version__
from rlpto.bench.results import Row, checked, read_rows, row_of, write_rows
from rlpto.bench.suite import VERSION, Case, find_case
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell, evaluate
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, run_cell
from rlpto.experiments.inputs import runner_for
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.files import alone_in, digest, whole_file, write_text
from rlpto.io.paths import example_config
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.settings_text import first_problem, read_settings
from rlpto.io.workers import Workers
from rlpto.policies.registry import local_modules, make_policy, plugin_files
from rlpto.policies.spec import CODE_ENDING, parse_spec

CARD, RESULTS = "card.yaml", "results.csv"


class Card(Settings):
    """Description of a submission."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=60)
    """Name on the leaderboard."""
    policies: tuple[str, ...] = Field(min_length=1)
    """Specs as listed by `rlpto policies`, with files relative to the card. Several specs are seeds of one training."""
    author: str = ""
    """Name of the submitter."""
    about: str = ""
    """Description in a sentence, with a link."""
    tuned_on: str = "nothing"
    """Windows used to train or tune its weights. Test windows are not for tuning."""
    training_cpu_s: float = Field(0.0, ge=0)
    """CPU-seconds of all training and tuning."""
    deterministic: bool = True
    """Whether a repeated run gives the same results. If not, figures may differ by a hundredth."""
    code: str = ""
    """Digest of the files of a plug-in that made the results."""
    rlpto: str = __version__
    """Version of RLPTO that made the results."""
    suite: int = VERSION
    """Version of the suite."""

    @field_validator("policies")
    @classmethod
    def _different(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(policies)) < len(policies):
            raise ValueError("a policy is there twice, expected different ones: seeds of one training")
        if len({parse_spec(spec).first.name for spec in policies}) > 1:
            raise ValueError(
                "expected one policy, or seeds of one training: each other policy is a submission of its own"
            )
        return policies


def run(
    card: Card,
    chosen: Sequence[Case],
    folder: Path,
    workers: Workers,
    say: Callable[[str], None],
    *,
    progress: bool = True,
) -> list[Row]:
    """Run the policies of a card on cases, and write the submission. Finished cells are kept and not run again.

    say: shows the present case. Raises ConfigError for policies that cannot be submitted, CheckpointError while
    another process writes the submission.
    """
    for spec in card.policies:
        make_policy(spec)  # refuses an invalid one before anything is written
    with alone_in(folder, f"{folder}: another process runs this submission: wait for its end, or use another folder"):
        kept = tuple(_with_own_files(spec, folder, say) for spec in card.policies)
        singles = [single for spec in kept for single in parse_spec(spec).singles]
        files = "".join(digest(file) for single in singles for file in plugin_files(single.name))
        code = files and hashlib.sha256(files.encode()).hexdigest()
        if (folder / CARD).is_file():
            card = read_card(folder)  # includes entries that the user has filled in since
            if card.policies != kept:
                raise ConfigError(
                    f"{folder / CARD}: a submission of {', '.join(card.policies)}; expected another folder"
                )
            if card.code != code:
                say(f"plug-in {singles[0].name} has changed: results of the version before are dropped")
                (folder / RESULTS).unlink(missing_ok=True)
        card = card.model_copy(update={"policies": kept, "rlpto": __version__, "code": code})
        for spec in card.policies:
            make_policy(runnable(spec, folder))
        rows = {row.place: row for row in (read_rows(folder / RESULTS) if (folder / RESULTS).is_file() else [])}
        specs = {runnable(spec, folder): spec for spec in card.policies}
        configs = [case.config().model_copy(update={"policies": tuple(specs)}) for case in chosen]
        for number, (case, config) in enumerate(zip(chosen, configs, strict=True), 1):
            say(f"{case.id} ({number} of {len(chosen)})")
            experiment = Experiment(config)
            finished = evaluate(
                experiment.cells(),
                runner_for(workers, config, _timed),
                folder / "cells" / case.id,
                progress,
                workers,
                config=experiment.outcome(),
            )
            for done in finished:
                row = row_of(case.id, case.digest, specs[done.cell.policy], done.record())
                rows[row.place] = row
            write_rows(rows.values(), folder / RESULTS)
            write_text(folder / CARD, yaml.safe_dump(card.model_dump(mode="json"), sort_keys=False), "a card")
        return list(rows.values())


def new_card(name: str, policies: Sequence[str]) -> Card:
    """A card with only these entries. Raises ConfigError for an invalid name, or a policy given twice."""
    try:
        return Card(name=name, policies=tuple(policies))
    except ValidationError as error:
        location, said = first_problem(error, Card)
        raise ConfigError(f"{location[0]}: {said}") from None


def read_card(folder: Path) -> Card:
    """The card of a submission. Raises ConfigError for a broken one."""
    return read_settings(folder / CARD, Card, "the card of a submission")


def verify(folder: Path, share: float = 0.05, seed: int | None = None) -> Iterator[str]:
    """Run a part of a submission again, and yield a line for each fault; none if it is correct.

    share: share of the cells that are run again. seed: seed of their choice. Default: the digest of the results, which
    nobody can choose. Raises ConfigError or CheckpointError if its files cannot be read.
    """
    card, rows = read_card(folder), read_rows(folder / RESULTS)
    if card.suite != VERSION:
        raise ConfigError(f"{folder / CARD}: suite {card.suite}, expected {VERSION}")
    good, wrong = checked(rows, card.policies)
    yield from wrong if rows else ["no results"]
    seed = int(digest(folder / RESULTS)[:16], 16) if seed is None else seed
    count = min(math.ceil(share * len(good)), len(good))
    tolerance = 0.0 if card.deterministic else 0.01
    for at in np.sort(np.random.default_rng(seed).choice(len(good), count, replace=False)) if good else ():
        yield from _again(folder, good[at], tolerance)


def _again(folder: Path, row: Row, tolerance: float) -> Iterator[str]:
    """Run a cell again, and yield a line if the result differs."""
    case = find_case(row.case)
    where = f"case {case.id}: {row.policy} · {row.window}"
    try:
        config = case.config()
        cell = Cell(runnable(row.policy, folder), row.window, config.seed)
        found = row_of(case.id, case.digest, row.policy, run_cell(config, cell, sealed=True)).figures
    except RlptoError as wrong:
        yield f"{where}: {wrong}"
    except Exception as wrong:  # a policy may raise anything; the other cells are still checked
        yield f"{where}: the policy raised {type(wrong).__name__}: {one_line(str(wrong))}"
    else:
        if not np.allclose(found, row.figures, rtol=tolerance, atol=0.0, equal_nan=True):
            yield f"{where}: mean JCT {row.figures[0]!r} s and the rest, but running again gives {found[0]!r} s"


def runnable(spec: str, folder: Path) -> str:
    """A spec of a card, with the files of its folder. Raises ConfigError for a file outside of it."""

    def found(name: str) -> str:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"policy {spec}: file {name}, expected one in the folder of the submission")
        own = (folder / path).absolute()
        return str(own if own.is_file() else example_config(name) or own)

    return str(parse_spec(spec).with_paths(found))


def _with_own_files(spec: str, folder: Path, say: Callable[[str], None]) -> str:
    """A spec as written in its card, after copying its files into the card's folder. Code that has changed replaces its
    copy, and the results of the old code are deleted."""

    def copied(name: str) -> str:
        path = Path(name).expanduser()
        if path.is_dir():
            raise ConfigError(
                f"policy {spec}: {name} is a folder, expected a file: `rlpto export {name} -o agent.safetensors`"
            )
        if not path.is_file():
            return name  # a file that comes with RLPTO
        code = path.suffix == CODE_ENDING
        for file in local_modules(path) if code else [path]:
            target = folder / file.relative_to(path.parent)
            changed = target.exists() and digest(target) != digest(file)
            if changed and code:
                say(f"{file} has changed: results of the version before are dropped")
                (folder / RESULTS).unlink(missing_ok=True)
            if not target.exists() or (changed and code):
                with whole_file(target, "a policy's file", ConfigError) as unfinished:
                    shutil.copyfile(file, unfinished)
            elif changed:
                raise ConfigError(f"policy {spec}: {target} is another file than {name}: give it another name")
        return path.name

    return str(parse_spec(spec).with_paths(copied))


def _timed(config: Config, cell: Cell) -> RunRecord:
    """Run a cell, and record CPU time as the duration of the run."""
    begun = time.process_time()
    record = run_cell(config, cell, sealed=True)
    return replace(record, wall_seconds=time.process_time() - begun)
