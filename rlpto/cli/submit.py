"""`rlpto submit`: a job of the service from options, a file in YAML, or a script."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.cli.common import SERVICE, QuietOption, Verb, make_console
from rlpto.cli.service import JsonOption, of_service, print_json, print_rows, time_until_text
from rlpto.io.durations import span_text
from rlpto.io.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from rlpto.client import Answer, Client

SCRIPT_PROGRAM = "script"
"""Program under which a script runs if --program is not given."""
NOT_FINISHED = 1
"""Exit code of --wait if the job did not finish."""


@of_service
def submit(
    client: Client,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Job description in YAML (`-` for stdin), or your own script FILE.py."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the script, after `--`.")
    ] = None,
    program: Annotated[str | None, typer.Option("--program", "-p", help="Program of the service to train.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job; need not be unique.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Epochs to train; may be a fraction.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples of an epoch, for a script.")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(help="A file or folder next to a script, such as modules of yours, that goes along; repeatable."),
    ] = None,
    pip: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", help="A package for the workers of a script, such as einops>=0.8; repeatable."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Requested GPUs.")] = None,
    min_gpus: Annotated[int | None, typer.Option(help="Smallest number of GPUs the job can train on.")] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Largest number of GPUs the job can use.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a step.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric by which its batch size is chosen. Default: the experiment's.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.")] = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A job that has to finish first; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the training. Default: drawn.")] = None,
    most_hours: Annotated[float | None, typer.Option(help="Cancel the job this many hours after its start.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="Option of the program; repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Label to find it by; repeatable.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="A job for each number, which replaces {i} in -o and ARGUMENT."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Submit nothing; show predicted time and GPU-hours.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until it is over; exit with 0 if it finished, else 1.")
    ] = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Submit a training job. When this returns, the job is stored and survives a failure of the service."""
    given: dict[str, Any] = {"program": program, "name": name, "epochs": epochs, "metric": metric, "priority": priority}
    given |= {"gpus": gpus, "min_gpus": min_gpus, "max_gpus": max_gpus, "batch_size": batch_size, "seed": seed}
    given |= {"after": after or None, "most_hours": most_hours}
    of_script = {"arguments": arguments, "--files": files, "--pip": pip, "--samples": samples}
    if file is not None and file.endswith(".py"):
        job = _from_script(Path(file), arguments or [], samples, files or [], pip or [])
    elif wrong := [option for option, value in of_script.items() if value]:
        raise ConfigError(f"{wrong[0]}: only scripts take this option: expected FILE.py")
    else:
        job = _from_file(file)
    job |= {key: value for key, value in given.items() if value is not None}
    numbers = None if array is None else _numbers(array)
    if numbers and check:
        raise ConfigError("--check: shows what one job takes: expected no --array")
    for pair in option or ():
        _add_pair(job, "options", "--option", pair, typed=not (numbers and "{i}" in pair))
    for pair in label or ():
        _add_pair(job, "labels", "--label", pair, typed=False)
    if not all(isinstance(key, str) for key in job):
        raise ConfigError(f"the job has a key that is not a string: expected program, gpus and so on, got {list(job)}")
    if not isinstance(job.get("program"), str):
        raise ConfigError("no program: expected -p PROGRAM, or `program` in the file")
    console, which = make_console(quiet or json_), job.pop("program")
    if check:
        _show_check(client.validate(which, **job), json_, quiet)
        return
    made = [client.submit(which, **job)] if numbers is None else client.submit_array(*numbers, which, **job)
    for one in made:
        text = f"{one['id']} submitted: {one['name']}, {one['gpus']} GPUs, {one['epochs']:g} epochs"
        console.print(text, markup=False)
    if wait:
        made = [wait_for(client, one["id"], console) for one in made]
    if json_:
        print_json(made)
    if wait and any(one["state"] != "finished" for one in made):
        raise typer.Exit(NOT_FINISHED)


def _numbers(text: str) -> tuple[int, int]:
    """The first and last number of an array. Raises ConfigError for any other text."""
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if found is None:
        raise ConfigError(f"--array {text}: expected FIRST-LAST, such as 1-10")
    return int(found[1]), int(found[2])


def wait_for(client: Client, job: str, console: Console) -> Answer:
    """Wait until a job is over, and return it; prints each of its states until then."""
    found: Answer = {}
    for found in client.wait(job):
        reason = f": {found['reason']}" if found["reason"] else ""
        console.print(f"{found['id']} {found['state']}{reason}{_expected(found)}", markup=False)
    return found


def _expected(job: Answer) -> str:
    """Return the estimated start and end of a job; empty if they are unknown or should have happened already."""
    said = job["prediction"] or {}
    starts = None if job["started"] else said.get("start")
    ends = said.get("finish") if job["ended"] is None else None
    expected = (("starts", starts), ("ends", ends))
    return "".join(f", {what} {time_until_text(at)}" for what, at in expected if at is not None and at > time.time())


def _show_check(found: Answer, json_: bool, quiet: bool) -> None:
    rows = (
        (row["metric"], str(row["gpus"]), span_text(row["hours"] * 3600), f"{row['gpu_hours']:.3g}")
        for row in found["preview"]
    )
    none = f"not measured: nothing is known of the speed of {found['job']['program']} before it trains"
    if json_ or not quiet:
        print_rows(("metric", "GPUs", "time", "GPU-hours"), rows, none, [found] if json_ else None)
    said = f"{found['waiting']} jobs wait now; they ask for {found['gpus_ahead']} GPUs"
    make_console(quiet or json_).print(said if found["waiting"] else "no jobs wait now")


def _from_file(file: str | None) -> dict[str, Any]:
    """The job of a file. Raises ConfigError if it is no mapping in YAML."""
    from rlpto.io.yaml_file import parse_value, read_yaml

    if file is None:
        return {}
    if file != "-":
        return dict(read_yaml(Path(file), "a job in YAML").data)
    try:
        found = parse_value(sys.stdin.read(), "stdin")
    except UnicodeDecodeError:
        raise ConfigError("stdin: not a text in UTF-8, expected a job in YAML, keys and values") from None
    if not isinstance(found, dict):
        raise ConfigError("stdin: expected a job in YAML, keys and values")
    return found


def _from_script(
    file: Path, arguments: list[str], samples: int | None, files: list[Path], pip: list[str]
) -> dict[str, Any]:
    """The job of a script. Raises ConfigError if it cannot be compiled, if `files` cannot be sent with it, and without
    `samples`."""
    from rlpto.io.reading import read_text
    from rlpto.store.code_files import pack
    from rlpto.store.scripts import compiled

    source = read_text(file, "a script in Python", ConfigError)
    compiled(source, str(file), ConfigError)
    if samples is None:
        raise ConfigError(f"{file}: expected --samples N too, the samples of an epoch (data_size of its session)")
    name = re.sub(r"[^A-Za-z0-9_.]", "_", file.name)[-64:]
    script = {"name": name, "source": source, "arguments": arguments, "samples": samples}
    script |= {"files": pack(file, files), "pip": pip}
    return {"program": SCRIPT_PROGRAM, "script": script}


def _add_pair(job: dict[str, Any], name: str, flag: str, pair: str, *, typed: bool) -> None:
    """Add KEY=VALUE to a mapping of the job. typed: the value is YAML, else a text. Raises ConfigError."""
    from rlpto.io.yaml_file import parse_value

    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise ConfigError(f"{flag} {pair}: expected KEY=VALUE")
    known = job.get(name) or {}
    if not isinstance(known, dict):
        raise ConfigError(f"{name}: expected KEY: VALUE in the file, got {known!r}")
    job[name] = {**known, key: parse_value(text, f"{flag} {pair}") if typed else text}


VERB = Verb(submit, SERVICE, "rlpto submit -p digits_cnn --gpus 2 --epochs 20 --wait")
