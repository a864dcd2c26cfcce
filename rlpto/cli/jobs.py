"""Verbs about jobs of the service: `rlpto jobs`, `history`, `queue`, `usage` and `job`."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import SERVICE, QuietOption, Verb, make_console
from rlpto.cli.service import JsonOption, clock_text, number_text, of_service, print_json, print_rows, time_until_text
from rlpto.cli.submit import NOT_FINISHED, wait_for
from rlpto.io.durations import span_text
from rlpto.io.errors import ConfigError
from rlpto.io.terminal import printable, say

if TYPE_CHECKING:
    from rlpto.client import Answer, Client

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]
JobsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.")]


@of_service
def jobs(
    client: Client,
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that wait or train: the caller's, or all users' for operators."""
    from rlpto.store.jobs import ENDED, STATES

    found = list(client.jobs([state for state in STATES if state not in ENDED], owner, _label(label)))
    columns = ("id", "name", "owner", "state", "GPUs", "done", "priority", "since", "reason")
    print_jobs(found, columns, "no jobs wait or train", json_)


def _label(label: str | None) -> str | None:
    if label is not None and "=" not in label:
        raise ConfigError(f"--label {label}: expected KEY=VALUE")
    return label


@of_service
def history(
    client: Client,
    limit: Annotated[int, typer.Option(min=1, help="At most this number.")] = 20,
    state: Annotated[list[str] | None, typer.Option(help="How they ended, such as failed; may be repeated.")] = None,
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that are over, newest first."""
    from rlpto.store.jobs import ENDED

    if wrong := [one for one in state or () if one not in ENDED]:
        raise ConfigError(f"--state {wrong[0]}: expected one of {', '.join(ENDED)}")
    found = list(client.jobs(state or ENDED, owner, _label(label), limit))
    columns = ("id", "name", "owner", "state", "submitted", "took", "GPU time", "accuracy", "reason")
    print_jobs(found, columns, "no job is over", json_)


@of_service
def queue(
    client: Client,
    start: Annotated[bool, typer.Option("--start", help="Also show when jobs will probably start and finish.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show waiting jobs in order of service; for other users' jobs only the place."""
    found, rows = client.queue(), []
    for entry in found:
        said = entry["prediction"] or {}
        times = (time_until_text(said.get("start")), time_until_text(said.get("finish"))) if start else ()
        place = str(entry["position"] or "")
        job = (entry["job"] or "(another user's)", entry["name"] or "", entry["owner"] or "")
        rows.append((place, *job, str(entry["gpus"] or ""), str(entry["gpus_ahead"]), *times, entry["reason"]))
    expected = ("starts", "ends") if start else ()
    headings = ("place", "id", "name", "owner", "GPUs", "ahead", *expected, "reason")
    print_rows(headings, rows, "no jobs wait", found if json_ else None)
    if start and rows and not json_:
        said = "Starts and ends are simulated under the present policy, without jobs still to come."
        make_console().print(said, style="dim")


@of_service
def usage(
    client: Client,
    days: Annotated[float, typer.Option(help="Of the last this number of days.")] = 30.0,
    by: Annotated[str | None, typer.Option(metavar="LABEL", help="By values of a label, such as team.")] = None,
    json_: JsonOption = False,
) -> None:
    """Show GPU-hours that jobs have held: the caller's, or by user for operators."""
    found = client.usage(days, by)
    rows = ((row["who"] or "(none)", str(row["jobs"]), f"{row['gpu_hours']:.4g}") for row in found)
    none = f"no job has held GPUs in the last {days:g} days"
    print_rows((by or "user", "jobs", "GPU-hours"), rows, none, found if json_ else None)


job_app = typer.Typer(help="Show, follow, fetch, cancel, hold and change jobs of the service.", no_args_is_help=True)


@job_app.command("show", epilog="Example: rlpto job show jaxmt3k52qpb7")
@of_service
def show(client: Client, job: JobArgument, json_: JsonOption = False) -> None:
    """Show a job: state, progress, place in the queue, predicted start and finish."""
    found = client.job(job)
    if json_:
        print_json([found])
        return
    rows = [
        ("id", found["id"]),
        ("name", found["name"]),
        ("owner", found["owner"]),
        ("program", found["program"]),
        ("arguments", " ".join(found["arguments"])),
        ("state", found["state"] + (f": {found['reason']}" if found["reason"] else "")),
        ("priority", found["priority"]),
        ("GPUs held / asked", f"{_COLUMNS['GPUs'](found)} ({found['min_gpus']} to {found['max_gpus']})"),
        ("done", f"{_COLUMNS['done'](found)} of {found['epochs']:g} epochs"),
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
        rows += [("starts", time_until_text(said["start"])), ("ends", time_until_text(said["finish"]))]
    print_rows(("", ""), [row for row in rows if row[1]], "")


@job_app.command("logs", epilog="Example: rlpto job logs -f jaxmt3k52qpb7")
@of_service
def logs(
    client: Client,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, max=10_000, help="Only the last lines.")] = None,
) -> None:
    """Print the output of a job's workers."""
    for line in client.logs(job, 1 if tail is None else -tail, follow=follow):
        say(line["text"])


@job_app.command("fetch", epilog="Example: rlpto job fetch jaxmt3k52qpb7 -o mine")
@of_service
def fetch(
    client: Client,
    job: JobArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; the job's id if not given.")] = None,
) -> None:
    """Fetch the results of a job: newest checkpoint, curves, log, script. Files of an earlier fetch are replaced."""
    from rlpto.client import ServiceError
    from rlpto.io.files import write_text
    from rlpto.store.code_files import unpack, write_files

    folder, console = out or Path(job), make_console()
    found = client.job(job)
    write_text(folder / "job.json", json.dumps(found, indent=1) + "\n", "a job")
    if found["script"] is not None:
        script = client.script(job)
        write_text(folder / "script.py", script["source"], "a script")
        write_files(folder / "files", unpack(script["files"]) if script["files"] else {})
    lines = (f"{clock_text(line['at'])} {printable(line['text'])}\n" for line in client.logs(job))
    write_text(folder / "log.txt", "".join(lines), "a log")
    write_text(folder / "curves.csv", _csv(list(client.curves(job))), "curves")
    console.print(f"{folder}: job.json, log.txt, curves.csv", markup=False)
    try:
        client.save_checkpoint(job, folder / "checkpoint.pt")
    except ServiceError as refused:
        if refused.kind != "no-checkpoint":
            raise
        console.print(str(refused), markup=False)
        return
    console.print(f'{folder / "checkpoint.pt"}: torch.load(..., weights_only=True)["model"]', markup=False)


def _csv(rows: Sequence[Answer]) -> str:
    written = io.StringIO()
    if rows:
        writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return written.getvalue()


@job_app.command("wait", epilog="Example: rlpto job wait jaxmt3k52qpb7 && rlpto job fetch jaxmt3k52qpb7")
@of_service
def wait(client: Client, jobs: JobsArgument, quiet: QuietOption = False) -> None:
    """Wait until jobs are over; exit with 0 if all have finished."""
    ended = [wait_for(client, job, make_console(quiet))["state"] for job in jobs]
    if any(state != "finished" for state in ended):
        raise typer.Exit(NOT_FINISHED)


@job_app.command("cancel", epilog="Example: rlpto job cancel jaxmt3k52qpb7 jbxmt3k52qpb7")
@of_service
def cancel(
    client: Client,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of your own that wait or train.")] = False,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="Of --all those with this label.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Cancel jobs; their reports are kept."""
    from rlpto.store.jobs import ENDED

    if bool(jobs) == all_ or (label is not None and not all_):
        raise ConfigError("job cancel: expected ids of jobs, or --all and no id; --label goes with --all")
    if all_:
        which = "your jobs that wait or train" + (f" with label {_label(label)}" if label else "")
        if not yes:
            typer.confirm(f"cancel all of {which}?", abort=True)
        make_console().print(f"{len(client.cancel_all(label))} of {which} will end", markup=False)
    for job in jobs or ():
        state = client.cancel(job)["state"]
        said = f"{job} is {state} already" if state in ENDED else f"{job} will end (it is {state})"
        make_console().print(said)


@job_app.command("hold", epilog="Example: rlpto job hold jaxmt3k52qpb7")
@of_service
def hold(client: Client, jobs: JobsArgument) -> None:
    """Keep waiting jobs from starting until they are released."""
    for job in jobs:
        make_console().print(f"{job} does not start now: {client.hold(job)['reason']}", markup=False)


@job_app.command("release", epilog="Example: rlpto job release jaxmt3k52qpb7")
@of_service
def release(client: Client, jobs: JobsArgument) -> None:
    """Let jobs that are on hold start."""
    for job in jobs:
        make_console().print(f"{job} may start (it is {client.release(job)['state']})")


@job_app.command("resubmit", epilog="Example: rlpto job resubmit jaxmt3k52qpb7")
@of_service
def resubmit(client: Client, jobs: JobsArgument) -> None:
    """Resubmit jobs that are over, as they were asked for, with new ids."""
    for job in jobs:
        make_console().print(f"{client.resubmit(job)['id']} submitted: {job} again")


@job_app.command("priority", epilog="Example: rlpto job priority jaxmt3k52qpb7 high")
@of_service
def set_priority(
    client: Client, job: JobArgument, to: Annotated[str, typer.Argument(metavar="PRIORITY", help="Such as high.")]
) -> None:
    """Change the priority of a job."""
    make_console().print(f"{job} has priority {client.set_priority(job, to)['priority']} now")


_COLUMNS: dict[str, Callable[[Answer], str]] = {
    "GPUs": lambda job: f"{job['gpus_held']}/{job['gpus']}",
    "done": lambda job: f"{job['progress'] / job['epochs']:.0%}",
    "since": lambda job: span_text(time.time() - job["submitted"]),
    "submitted": lambda job: clock_text(job["submitted"]),
    "took": lambda job: span_text(None if job["ended"] is None else job["ended"] - job["submitted"]),
    "GPU time": lambda job: span_text(job["gpu_seconds"]),
    "accuracy": lambda job: number_text(job["accuracy"]),
}
"""Text of a job for each of these headings; any other heading is a key of the job."""


def print_jobs(jobs: Sequence[Answer], columns: Sequence[str], none: str, json_: bool) -> None:
    """Print jobs as a table with these columns, or the line `none`. json_: print JSON instead."""
    rows = ([_COLUMNS[name](job) if name in _COLUMNS else str(job[name]) for name in columns] for job in jobs)
    print_rows(columns, rows, none, jobs if json_ else None)


VERBS = {
    "jobs": Verb(jobs, SERVICE, "rlpto jobs --label team=vision"),
    "history": Verb(history, SERVICE, "rlpto history --state failed --limit 5"),
    "queue": Verb(queue, SERVICE, "rlpto queue --start"),
    "usage": Verb(usage, SERVICE, "rlpto usage --by team"),
    "job": Verb(job_app, SERVICE),
}
