"""`rlpto serve`, `user`, `program`, `policy`, and common code of all verbs of the service: connection and output."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.cli.common import SERVICE, QuietOption, Verb, make_console, make_table, waiting
from rlpto.io.durations import span_text
from rlpto.io.errors import RlptoError
from rlpto.io.terminal import say

if TYPE_CHECKING:
    from rlpto.client import Answer, Client

ServiceOption = Annotated[
    str | None,
    typer.Option("--service", metavar="URL", help="Address; $RLPTO_SERVICE or the last one started here if not given."),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--certificate", metavar="FILE", help="Certificate (PEM) to trust, if this system does not trust the service's."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for programs.")]


def connect(service: ServiceOption = None, certificate: CertificateOption = None) -> Client:
    """Return a client of the service. If several run on this machine and none was chosen, print the address in use.

    The token comes from $RLPTO_TOKEN, which keeps it out of lists of processes. Raises MissingExtraError
    if packages for it are missing, ServiceError without a token.
    """
    from rlpto.client import Client

    client = Client(service, certificate=certificate)
    if client.others:
        others = ", ".join(client.others)
        say(f"rlpto: asking {client.address}; --service or $RLPTO_SERVICE chooses {others}", err=True)
    return client


def of_service(verb: Callable[..., None]) -> Callable[..., None]:
    """Wrap a verb whose first argument is a client; the command has the options of `connect` instead."""

    @wraps(verb)
    def run(service: str | None, certificate: Path | None, **given: Any) -> None:
        with connect(service, certificate) as client:
            verb(client, **given)

    own, of_client = (inspect.signature(one, eval_str=True, locals={"Client": Any}) for one in (verb, connect))
    shown = inspect.Signature([*list(own.parameters.values())[1:], *of_client.parameters.values()])
    run.__signature__, run.__annotations__ = shown, {}  # type: ignore[attr-defined]
    return run


def service_is_known() -> bool:
    """Whether `connect` finds an address on its own."""
    try:
        from rlpto.client import service_is_known
    except ImportError:
        return False
    return service_is_known()


def print_json(answers: Iterable[Answer]) -> None:
    """Print one object a line."""
    for answer in answers:
        say(json.dumps(answer))


def print_rows(
    headings: Sequence[str], rows: Iterable[Sequence[str]], none: str, as_json: Iterable[Answer] | None = None
) -> None:
    """Print a table, or the line `none`. as_json: answers to print as JSON instead."""
    from rich.markup import escape

    if as_json is not None:
        print_json(as_json)
        return
    table = make_table(*headings)
    for row in rows:
        table.add_row(*map(escape, row))
    make_console().print(table if table.row_count else none)


def time_until_text(at: float | None) -> str:
    """Return the time left until a moment, or that it has passed; empty for None."""
    if at is None:
        return ""
    left = at - time.time()
    return f"in {span_text(left)}" if left >= 0 else "overdue"


def clock_text(at: float | None) -> str:
    """A time by the clock of this machine; empty for None."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def number_text(value: Any) -> str:
    """Text of a number; empty for None."""
    return "" if value is None else f"{value:.4g}"


def serve(
    settings: Annotated[
        Path, typer.Argument(metavar="SETTINGS", help="Settings file, or the name of a built-in one, such as service.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port, instead of web.port in SETTINGS; 0: a free one.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Run a job service: scheduler, REST and pages. Ctrl-C ends all of it.

    Jobs go on from their checkpoints at the next start. On a cluster that was there before (scheduler.address in
    SETTINGS) they train on meanwhile if on_stop is keep; `rlpto job cancel --all` ends them first.
    """
    from rlpto.client import note_service
    from rlpto.service.parent import TOKEN_FILE, serve
    from rlpto.service.settings import load_service

    found = load_service(settings)
    if port is not None:
        found = found.model_copy(update={"web": found.web.model_copy(update={"port": port})})
    console = make_console(quiet)

    def ready(address: str, token_is_new: bool) -> None:
        token_file = found.folder / TOKEN_FILE
        try:
            note_service(address, token_file)
        except RlptoError as refused:
            say(f"rlpto: {refused}; commands need --service and $RLPTO_TOKEN", err=True)
        shows = token_is_new and sys.stdout.isatty()  # others may read a file or a journal
        token = token_file.read_text(encoding="ascii").strip() if shows else ""
        console.print(f"the service is up at [bold]{address}[/]; the cluster comes up meanwhile", markup=True)
        console.print(f"sign in:    {address}/login{f'#{token}' if token else ''}", soft_wrap=True)
        if token_file.exists():
            console.print(f"its token:  {token_file} (of the user admin; others: {address}/account)", soft_wrap=True)
        console.print(f"its logs:   {found.folder / 'logs'}", soft_wrap=True)
        console.print("submit:     rlpto submit -p PROGRAM --gpus 2 --wait")
        console.print("end all:    Ctrl-C")

    serve(settings, found, ready, lambda line: say(f"rlpto: {line}", err=True))


DaysOption = Annotated[
    float | None, typer.Option(help="Days until the token ends, at most until yours does. Default: it never ends.")
]
user_app = typer.Typer(help="Add users of the service and make tokens, as its admin.", no_args_is_help=True)


@user_app.command("add", epilog="Example: rlpto user add ann --role developer")
@of_service
def add_user(
    client: Client,
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    role: Annotated[str, typer.Option(help="user, developer, operator or admin.")] = "user",
    days: DaysOption = None,
) -> None:
    """Add a user, and print a token of theirs, which is shown only now; use it by `export RLPTO_TOKEN=TOKEN`."""
    client.add_user(name, role)
    say(client.make_token(name, "first", days))


@user_app.command("token", epilog="Example: rlpto user token ann")
@of_service
def make_token(
    client: Client, name: Annotated[str, typer.Argument(help="Name of the user.")], days: DaysOption = None
) -> None:
    """Print an additional token of a user, which is shown only now."""
    say(client.make_token(name, "by rlpto user token", days))


program_app = typer.Typer(help="Show programs of the service; as its admin, change them.", no_args_is_help=True)
ProgramArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the program.")]


@program_app.command("list", epilog="Example: rlpto program list")
@of_service
def list_programs(client: Client, json_: JsonOption = False) -> None:
    """List the programs that may be trained, with the problem of any that cannot."""
    found = client.programs()
    columns = ("name", "description", "epochs", "most_gpus", "checked", "problem")
    rows = ([str(one[column]) for column in columns] for one in found)
    headings = ("name", "description", "epochs", "most GPUs", "state", "problem")
    print_rows(headings, rows, "there is no program", found if json_ else None)


@program_app.command("set", epilog="Example: rlpto program set digits_wide digits_wide.yaml")
@of_service
def set_program(
    client: Client,
    name: ProgramArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: keys of `programs.NAME` in the settings.")],
) -> None:
    """Add or replace a program while jobs train. Its jobs wait until the scheduler has imported its class."""
    from rlpto.io.yaml_file import read_yaml

    say(f"{name}: {client.set_program(name, read_yaml(file, 'a program in YAML').data)['checked']}")


@program_app.command("delete", epilog="Example: rlpto program delete digits_wide")
@of_service
def delete_program(client: Client, name: ProgramArgument) -> None:
    """Take no more jobs of a program; existing jobs continue."""
    client.delete_program(name)


policy_app = typer.Typer(help="Show and switch the policy of the service.", no_args_is_help=True)


@policy_app.command("show", epilog="Example: rlpto policy show")
@of_service
def show_policy(client: Client, json_: JsonOption = False) -> None:
    """Show which policy decides, since when, and why."""
    found = client.policy()
    if json_:
        print_json([found])
        return
    why = f" ({found['reason']})" if found["reason"] else ""
    text = f"{found['policy']} decides since {clock_text(found['since'])}, by {found['by']}{why}"
    if found["policy"] is None:
        text = "the scheduler has not started yet"
    elif found["preparing"] is not None:
        text += f"\n{found['preparing']} is being made ready since {clock_text(found['preparing_since'])}"
    make_console().print(text, markup=False)


@policy_app.command("switch", epilog='Example: rlpto policy switch agent --reason "many short jobs"')
@of_service
def switch_policy(
    client: Client,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="One that the service knows.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit trail.")] = "",
) -> None:
    """Let another policy decide from the next decision on; running processes are not touched."""
    with waiting() as doing:
        before, role = client.policy(), client.me()["role"]
        if role in ("operator", "admin") and before["policy"] not in (None, policy):  # else the answer comes at once
            decides = f"{before['policy']} decides meanwhile"
            doing(f"making {policy} ready, which may take minutes the first time; {decides}")
        found = client.switch(policy, reason)
    said = f"now (switch {found['number']})" if found["number"] > before["number"] else "already: nothing was changed"
    make_console().print(f"{found['policy']} decides {said}")


VERBS = {
    "serve": Verb(serve, SERVICE, "rlpto serve configs/service.yaml --port 8800"),
    "policy": Verb(policy_app, SERVICE),
    "program": Verb(program_app, SERVICE),
    "user": Verb(user_app, SERVICE),
}
