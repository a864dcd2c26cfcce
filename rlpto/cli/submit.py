"""`rlpto submit`: a job for the service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rlpto.cli.common import SERVICE, QuietOption, Verb, make_console
from rlpto.cli.remote import CertificateOption, JsonOption, ServiceOption, connect, print_json, print_rows
from rlpto.io.durations import span_text
from rlpto.io.errors import ConfigError

NOT_FINISHED = 1
"""Exit code of --wait where the job did not finish."""


def submit(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The job in YAML, `-`: from stdin; or say it by options.")
    ] = None,
    program: Annotated[str | None, typer.Option("--program", "-p", help="What to train.")] = None,
    name: Annotated[str | None, typer.Option(help="A label for people.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Work.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs it asks for.")] = None,
    min_gpus: Annotated[int | None, typer.Option(help="Fewest it can train on.")] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Most it can use.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a step.")] = None,
    metric: Annotated[str | None, typer.Option(help="What its batch size is chosen by.")] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="Option of the program; repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Label to find it by; repeatable.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Submit nothing; show what it would take.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until it is over; exit with 0 if it finished.")
    ] = False,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Submit a training job. When this returns, the job is stored and survives a failure of the service."""
    given = {
        "program": program,
        "name": name,
        "epochs": epochs,
        "gpus": gpus,
        "min_gpus": min_gpus,
        "max_gpus": max_gpus,
        "batch_size": batch_size,
        "metric": metric,
        "priority": priority,
    }
    job = {**_from_file(file), **{key: value for key, value in given.items() if value is not None}}
    _add_pairs(job, "options", "--option", option or [], typed=True)
    _add_pairs(job, "labels", "--label", label or [], typed=False)
    if not isinstance(job.get("program"), str):
        raise ConfigError("no program: expected -p PROGRAM, or `program` in the file")
    console = make_console(quiet or json_)
    with connect(service, certificate) as client:
        if check:
            _show_check(client.validate(**job), json_, quiet)
            return
        made = client.submit(**job)
        console.print(f"{made['id']} submitted: {made['name']}, {made['gpus']} GPUs, {made['epochs']:g} epochs")
        if wait:
            for found in client.wait(made["id"]):
                reason = f": {found['reason']}" if found["reason"] else ""
                console.print(f"{found['id']} {found['state']}{reason}", markup=False)
                made = found
        if json_:
            print_json([made])
    if wait and made["state"] != "finished":
        raise typer.Exit(NOT_FINISHED)


def _show_check(found: dict[str, Any], json_: bool, quiet: bool) -> None:
    if json_:
        print_json([found])
    if json_ or quiet:
        return
    print_rows(
        ("metric", "GPUs", "time", "GPU-hours"),
        (
            (row["metric"], str(row["gpus"]), span_text(row["hours"] * 3600), f"{row['gpu_hours']:.3g}")
            for row in found["preview"]
        ),
        "the service has not predicted yet what it would take",
    )
    make_console().print(f"{found['waiting']} jobs wait now; they ask for {found['gpus_ahead']} GPUs")


def _from_file(file: str | None) -> dict[str, Any]:
    """The job of a file. Raises ConfigError for one that is no mapping in YAML."""
    from rlpto.io.yaml_file import parse_value, read_yaml

    if file is None:
        return {}
    if file == "-":
        found = parse_value(sys.stdin.read(), "stdin")
        if not isinstance(found, dict):
            raise ConfigError("stdin: expected a job in YAML, keys and values")
        return found
    return dict(read_yaml(Path(file), "a job in YAML").data)


def _add_pairs(job: dict[str, Any], name: str, flag: str, pairs: list[str], *, typed: bool) -> None:
    """Add KEY=VALUE pairs to a mapping of the job. typed: values are YAML, else texts. Raises ConfigError."""
    from rlpto.io.yaml_file import parse_value

    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {pair}: expected KEY=VALUE")
        job[name] = {**(job.get(name) or {}), key: parse_value(text, f"{flag} {pair}") if typed else text}


VERB = Verb(submit, SERVICE, "rlpto submit -p digits_cnn --gpus 2 --epochs 20 --wait")
