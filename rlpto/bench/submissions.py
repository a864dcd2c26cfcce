"""Submissions to the benchmark: folders with a card, the results, and the policies' files.

`run_all` writes submissions; `verify` checks one by running it again.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator

from rlpto import __version__
from rlpto.bench.results import FIGURES, Row, checked, read_rows, row_of, write_rows
from rlpto.bench.suite import RENTED, VERSION, Case, find_case
from rlpto.core.policy import Policy
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import ONE_BY_ONE, Cell, Evaluation, FinishedCell, config_fingerprint, evaluate_all
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, run_cell
from rlpto.experiments.inputs import runner_for
from rlpto.experiments.run_folder import files_digest, plugins_of
from rlpto.io.errors import ClusterError, ConfigError, RlptoError
from rlpto.io.files import alone_in, digest, whole_file, write_text
from rlpto.io.paths import example_config
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.settings_text import first_problem, read_settings
from rlpto.io.workers import Workers
from rlpto.policies.registry import is_complete, local_modules, make_policy, own_policies
from rlpto.policies.spec import CODE_ENDING, PolicySpec, parse_spec

CARD, RESULTS = "card.yaml", "results.csv"


class Card(Settings):
    """Description of a submission."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=60)
    """Name on the leaderboard."""
    policies: tuple[str, ...] = Field(min_length=1)
    """Specs as listed by `rlpto policies`; file paths are relative to the card. Several are seeds of one training."""
    author: str = ""
    """Name of the submitter."""
    about: str = ""
    """Description in a sentence, with a link."""
    tuned_on: str = "nothing"
    """Windows on which the policy was trained or tuned. Test windows must not be among them."""
    training_cpu_s: float = Field(0.0, ge=0)
    """CPU-seconds of all training and tuning."""
    code: str = ""
    """Digest of the plug-in's files with which the results were made; empty if no policy is from a plug-in."""
    rlpto: str = __version__
    """Version of RLPTO that made the results."""
    suite: int = VERSION
    """Version of the suite."""

    @property
    def rents(self) -> bool:
        """Whether its policies name a provisioner."""
        return any(parse_spec(spec).provisioner is not None for spec in self.policies)

    def suits(self, case: Case) -> bool:
        """Whether its policies can run on a case: those with a provisioner only where nodes are rented."""
        return case.rents or not self.rents

    @field_validator("author", "about", "tuned_on")
    @classmethod
    def _plain(cls, text: str) -> str:
        if set(text) & set("[]<>`|") or not text.isprintable():
            raise ValueError("expected a line of plain text, without [ ] < > ` and |, which are Markdown")
        return text

    @field_validator("policies")
    @classmethod
    def _different(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(policies)) < len(policies):
            raise ValueError("a policy is listed twice; expected different seeds of one training")
        try:
            trained = {_without_files(parse_spec(spec)) for spec in policies}
        except ConfigError as wrong:  # pydantic adds the place in the file only to a ValueError
            raise ValueError(str(wrong)) from None
        if len(trained) > 1:
            raise ValueError("expected one policy, or several seeds of one training: submit other policies separately")
        return policies


def run_all(
    cards: Sequence[tuple[Card, Path]],
    chosen: Sequence[Case],
    workers: Workers,
    say: Callable[[str], None],
    *,
    progress: bool,
) -> list[list[Row]]:
    """Run the policies of the cards on the cases in parallel, and write the submissions. Returns the rows of each card.

    cards: each card with the folder of its submission. Finished cells are kept, and are not run again. A card with a
    provisioner runs only on cases with rented nodes. say: shows each finished case, or each finished card if there are
    several. Raises ConfigError for policies that cannot be submitted, or if no card suits any of the cases,
    CheckpointError while another process writes a submission.
    """
    configs = [(case, case.config()) for case in chosen]
    experiments = [(case, config, Experiment(config)) for case, config in configs]
    if not any(card.suits(case) for card, _ in cards for case in chosen):
        spec = cards[0][0].policies[0]
        raise ConfigError(f"policy {spec}: no nodes are rented in these cases, expected some of the division {RENTED}")
    for card, _ in cards:  # refuses an invalid policy before anything is written
        for spec in card.policies:
            allocating(spec)
            for case, _, experiment in experiments:
                if card.suits(case):
                    experiment.policy(spec)
                    experiment.check_provision(spec)
    busy = "another process runs this submission: wait for its end, or use another folder"
    with ExitStack() as locks:
        for _, folder in cards:
            locks.enter_context(alone_in(folder, f"{folder}: {busy}"))
        begun = [_Submission(card, folder, say) for card, folder in cards]
        places, evaluations = list[tuple[_Submission, Case]](), list[Evaluation]()
        for case, config, experiment in experiments:
            windows, outcome = experiment.windows(), experiment.outcome()
            for one in (one for one in begun if one.card.suits(case)):
                if missing := one.begin(case, windows):
                    mine = config.model_copy(update={"policies": tuple(one.specs)})
                    cells = [Cell(spec, window, config.seed, one.files[spec]) for spec, window in missing]
                    run_one = runner_for(workers, mine, _timed)
                    out = one.folder / "cells" / f"{case.id}-{config_fingerprint(outcome)[:8]}"
                    evaluations.append(Evaluation(cells, run_one, out, outcome))
                    places.append((one, case))
        for one in begun:
            one.say_if_finished(len(begun) > 1)
        for number, finished in evaluate_all(evaluations, progress, workers):
            one, case = places[number]
            one.add(case, finished)
            if len(begun) == 1:
                suited = sum(map(one.card.suits, chosen))
                say(f"{case.id} is finished ({suited - len(one.left)} of {suited})")
            one.say_if_finished(len(begun) > 1)
        return [list(one.rows.values()) for one in begun]


class _Submission:
    """A submission in progress.

    card: the card, with the entries that the user has filled in. rows: results by (case, policy, window). specs: the
    card's policies by runnable spec. files: digest of each policy's files, by runnable spec. left: ids of unfinished
    cases.
    """

    def __init__(self, card: Card, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say, self.left = folder, say, set[str]()
        kept = tuple(map(_as_in_card, card.policies))
        plugins = {part: files for spec in kept for part, files in plugins_of(spec).items() if files}
        files = "".join(digest(file) for files in plugins.values() for file in files)
        code = files and hashlib.sha256(files.encode()).hexdigest()
        changed, specs = list[str](), card.policies
        if (folder / CARD).is_file():
            card = read_card(folder)  # includes entries that the user has filled in since
            if card.policies != kept:
                raise ConfigError(
                    f"{folder / CARD}: a submission of {', '.join(card.policies)}; expected another folder"
                )
            changed += [" or ".join(plugins) or "a plug-in"] * (card.code != code) + ["RLPTO"] * (
                card.rlpto != __version__
            )
        files_of = _files_of(specs, folder)
        differs = (file for target, file in files_of.items() if target.exists() and digest(target) != digest(file))
        changed += map(str, differs)
        if changed and (folder / RESULTS).exists():
            say(f"{changed[0]} has changed: results of the version before are dropped")
            (folder / RESULTS).unlink()
        for target, file in files_of.items():
            with whole_file(target, "a policy's file", ConfigError) as unfinished:
                shutil.copyfile(file, unfinished)
        self.card = card.model_copy(update={"policies": kept, "rlpto": __version__, "code": code})
        self.specs = {runnable(spec, folder): spec for spec in kept}
        for spec in self.specs:
            allocating(spec)
        self.files = {spec: files_digest(spec) for spec in self.specs}
        self.rows = {row.place: row for row in (read_rows(folder / RESULTS) if (folder / RESULTS).is_file() else [])}

    def begin(self, case: Case, windows: Sequence[str]) -> list[tuple[str, str]]:
        """Return the (runnable spec, window) pairs of a case and mark it as unfinished; return [] if it is finished."""
        places = list(product(self.specs, windows))
        found = [self.rows.get((case.id, self.specs[spec], window)) for spec, window in places]
        if all(row is not None and row.digest == case.digest for row in found):
            return []
        self.left.add(case.id)
        return places

    def add(self, case: Case, finished: Sequence[FinishedCell]) -> None:
        """Write the results of a case."""
        for done in finished:
            row = row_of(case, self.specs[done.cell.policy], done.record())
            self.rows[row.place] = row
        self.left.discard(case.id)
        write_rows(self.rows.values(), self.folder / RESULTS)
        write_text(self.folder / CARD, yaml.safe_dump(self.card.model_dump(mode="json"), sort_keys=False), "a card")

    def say_if_finished(self, wanted: bool) -> None:
        """Show, if wanted, that all cases are finished."""
        if wanted and not self.left:
            self.say(f"{self.card.name} is finished: {self.folder}")


def board(folder: Path, runs: Path) -> list[tuple[Card, Path]]:
    """Return the card of each submission in `folder`, with a new folder below `runs` for its new run.

    If `folder` does not exist, return new cards of RLPTO's own policies that need no options.
    """
    if not folder.is_dir():
        names = [name for name, policy in own_policies().items() if is_complete(policy)]
        return [(new_card(name, [name]), runs / name) for name in names]
    cards = {path.parent: read_card(path.parent) for path in sorted(folder.glob(f"*/{CARD}"))}
    if not cards:
        raise ConfigError(f"{folder}: no submissions, expected folders with {CARD}")
    names = [card.name for card in cards.values()]
    if len(set(names)) < len(names):
        twice = next(own for at, own in enumerate(cards) if names[at] in names[:at])
        raise ConfigError(f"{twice / CARD}: another submission has this name, {cards[twice].name}; expected a new one")
    return [
        (card.model_copy(update={"policies": tuple(runnable(spec, own) for spec in card.policies)}), runs / card.name)
        for own, card in cards.items()
    ]


def new_card(name: str, policies: Sequence[str]) -> Card:
    """A card with only these entries. Raises ConfigError for an invalid name, or a policy given twice."""
    try:
        return Card(name=name, policies=tuple(policies))
    except ValidationError as error:
        raise ConfigError(first_problem(error, Card)[1]) from None


def read_card(folder: Path) -> Card:
    """The card of a submission. Raises ConfigError for a broken one."""
    return read_settings(folder / CARD, Card, "the card of a submission")


def verify(folder: Path, share: float = 1.0, seed: int | None = None, workers: Workers = ONE_BY_ONE) -> Iterator[str]:
    """Run a submission again, and yield a line for each fault; none if it is correct.

    share: share of the cells to run again, in [0, 1]. seed: seed for choosing these cells. Default: a random choice,
    which a submitter cannot foresee. Raises ConfigError or CheckpointError if its files cannot be read.
    """
    card, rows = read_card(folder), read_rows(folder / RESULTS)
    if card.suite != VERSION:
        raise ConfigError(f"{folder / CARD}: suite {card.suite}, expected {VERSION}")
    good, wrong = checked(rows, card.policies)
    yield from wrong if rows else ["no results"]
    count = min(math.ceil(share * len(good)), len(good))
    chosen = np.sort(np.random.default_rng(seed).choice(len(good), count, replace=False)) if good else ()
    runs, again = dict[tuple[str, str], tuple[Callable[[Cell], RunRecord], Cell]](), list[_Again]()
    for row in (good[at] for at in chosen):
        try:
            if (row.case, row.policy) not in runs:
                config = find_case(row.case).config()
                cell = Cell(runnable(row.policy, folder), "", config.seed)
                mine = config.model_copy(update={"policies": (cell.policy,)})
                runs[row.case, row.policy] = runner_for(workers, mine, _sealed), cell
            run_one, cell = runs[row.case, row.policy]
            again.append(_Again(row, run_one, replace(cell, window=row.window)))
        except RlptoError as error:
            yield f"{_where(row)}: {error}"
    said = dict(workers.run(_differs, again))
    yield from (said[number] for number in sorted(said) if said[number])


class _Again(NamedTuple):
    """A row whose cell is run again."""

    row: Row
    run: Callable[[Cell], RunRecord]
    cell: Cell


def _where(row: Row) -> str:
    return f"case {row.case}: {row.policy} · {row.window}"


def _differs(again: _Again) -> str:
    """Run a cell again. Returns a line if the result differs, else an empty text."""
    row = again.row
    try:
        found = row_of(find_case(row.case), row.policy, again.run(again.cell)).figures
    except ClusterError:  # the host cannot run the cell
        raise
    except RlptoError as wrong:
        return f"{_where(row)}: {wrong}"
    except Exception as wrong:  # a policy may raise anything; the other cells are still checked
        return f"{_where(row)}: the policy raised {type(wrong).__name__}: {one_line(str(wrong))}"
    for name, kept, new in zip(FIGURES, row.figures, found, strict=True):
        if kept != new:
            return f"{_where(row)}: figures differ: {name} {kept!r}, but running again gives {new!r}"
    return ""


def _without_files(spec: PolicySpec) -> tuple[str, str]:
    """Name of the policy, and its provisioner: only the name of a trained one, which is a file."""
    its = spec.provisioner
    return spec.first.name, "" if its is None else its.name if its.paths else str(its)


def allocating(spec: str) -> Policy:
    """The policy of a spec, without its provisioner."""
    return make_policy(str(replace(parse_spec(spec), provisioner=None)))


def runnable(spec: str, folder: Path) -> str:
    """Return a card's spec with full paths: to files in the submission's folder, else to files that ship with RLPTO.

    Raises ConfigError for a file outside the folder.
    """

    def found(name: str) -> str:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"policy {spec}: file {name}, expected one in the folder of the submission")
        own = (folder / path).absolute()
        return str(own if own.is_file() else example_config(name) or own)

    return str(parse_spec(spec).with_paths(found))


def _as_in_card(spec: str) -> str:
    """Return a spec as written in its card: with file names instead of paths, because the folder gets the files."""

    def named(name: str) -> str:
        path = Path(name).expanduser()
        if path.is_dir():
            raise ConfigError(
                f"policy {spec}: {name} is a folder, expected a file: `rlpto export {name} -o agent.safetensors`"
            )
        return path.name if path.is_file() else name  # else a file that ships with RLPTO

    return str(parse_spec(spec).with_paths(named))


def _files_of(specs: Sequence[str], folder: Path) -> dict[Path, Path]:
    """Return the policies' files by their target paths in the card's folder.

    Raises ConfigError if two different files have one target, or if a target other than code exists and differs.
    """
    found = dict[Path, Path]()
    for spec in specs:
        for path in (path.expanduser() for path in parse_spec(spec).paths if path.expanduser().is_file()):
            code = path.suffix == CODE_ENDING
            for file in local_modules(path) if code else [path]:
                target = folder / file.relative_to(path.parent)
                there = found.get(target, file if code or not target.exists() else target)
                if digest(there) != digest(file):
                    raise ConfigError(f"policy {spec}: {target} is another file than {path}: give it another name")
                found[target] = file
    return found


def _sealed(config: Config, cell: Cell) -> RunRecord:
    """Run a cell with sealed states (`rlpto.core.sealed`)."""
    return run_cell(config, cell, sealed=True)


def _timed(config: Config, cell: Cell) -> RunRecord:
    """Run a cell with sealed states, and record CPU time as the duration of the run."""
    begun = time.process_time()
    record = _sealed(config, cell)
    return replace(record, wall_seconds=time.process_time() - begun)
