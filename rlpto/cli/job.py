"""`rlpto job`: one job of the service."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from rlpto.cli.common import SERVICE, Verb, make_console
from rlpto.cli.remote import (
    CertificateOption,
    JobArgument,
    JsonOption,
    ServiceOption,
    clock_text,
    connect,
    gpus_text,
    in_text,
    number_text,
    print_json,
    print_rows,
    progress_text,
)
from rlpto.io.durations import span_text
from rlpto.io.errors import ConfigError
from rlpto.store.jobs import ENDED, Priority

PRIORITIES = get_args(Priority)

app = typer.Typer(help="Show, follow, cancel and change a job of the service.", no_args_is_help=True)


@app.command("show", epilog="Example: rlpto job show jaxmt3k52qpb7")
def show(
    job: JobArgument,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """Show a job: state, progress, place in the queue, predicted start and finish."""
    with connect(service, certificate) as client:
        found = client.job(job)
    if json_:
        print_json([found])
        return
    rows = [
        ("id", found["id"]),
        ("name", found["name"]),
        ("owner", found["owner"]),
        ("program", found["program"] + (f" ({found['training']})" if found["training"] else "")),
        ("state", found["state"] + (f": {found['reason']}" if found["reason"] else "")),
        ("priority", found["priority"]),
        ("GPUs held / asked", f"{gpus_text(found)} ({found['min_gpus']} to {found['max_gpus']})"),
        ("done", f"{progress_text(found)} of {found['epochs']:g} epochs"),
        ("loss, accuracy", ", ".join(filter(None, map(number_text, (found["loss"], found["accuracy"]))))),
        ("GPU time", span_text(found["gpu_seconds"])),
        ("submitted", clock_text(found["submitted"])),
        ("started", clock_text(found["started"])),
        ("ended", clock_text(found["ended"])),
    ]
    place, said = found["queue"], found["prediction"]
    if place:
        rows.append(("queue", f"place {place['position']}, {place['gpus_ahead']} GPUs ahead: {place['reason']}"))
    if said:
        rows += [("starts", in_text(said["start"])), ("ends", in_text(said["finish"]))]
    print_rows(("", ""), [row for row in rows if row[1]], "")


@app.command("logs", epilog="Example: rlpto job logs -f jaxmt3k52qpb7")
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, max=10_000, help="Only the last lines.")] = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
) -> None:
    """Print what a job's first worker has printed."""
    with connect(service, certificate) as client:
        for line in client.logs(job, 1 if tail is None else -tail, follow=follow):
            print("".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line["text"]), flush=True)


@app.command("cancel", epilog="Example: rlpto job cancel jaxmt3k52qpb7")
def cancel(job: JobArgument, service: ServiceOption = None, certificate: CertificateOption = None) -> None:
    """Cancel a job; its reports are kept."""
    with connect(service, certificate) as client:
        found = client.cancel(job)
    over = found["state"] in ENDED
    make_console().print(f"{job} is {found['state']} already" if over else f"{job} will end (it is {found['state']})")


@app.command("priority", epilog="Example: rlpto job priority jaxmt3k52qpb7 high")
def priority(
    job: JobArgument,
    to: Annotated[str, typer.Argument(metavar="CLASS", help=" or ".join(PRIORITIES))],
    service: ServiceOption = None,
    certificate: CertificateOption = None,
) -> None:
    """Change the priority class of a job."""
    if to not in PRIORITIES:
        raise ConfigError(f"{to}: expected {', '.join(PRIORITIES)}")
    with connect(service, certificate) as client:
        found = client.set_priority(job, to)
    make_console().print(f"{job} has priority {found['priority']} now")


VERB = Verb(app, SERVICE)
