"""`rlpto serve`: a job service on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, QuietOption, Verb, make_console
from rlpto.io.errors import ConfigError


def serve(
    settings: Annotated[Path, typer.Argument(metavar="SETTINGS", help="Settings of the service, or service.")],
    quiet: QuietOption = False,
) -> None:
    """Run a job service: scheduler, REST and pages. Ctrl-C ends it, and leaves jobs as on_stop in SETTINGS says."""
    try:
        from rlpto.client import note_service
        from rlpto.service.parent import serve
        from rlpto.service.preparing import TOKEN_FILE
        from rlpto.service.settings import load_service
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{missing.name} is not installed: pip install 'rlpto[service]'") from None

    found = load_service(settings)
    console = make_console(quiet)

    def ready(address: str, token_is_new: bool) -> None:
        token_file = found.folder / TOKEN_FILE
        note_service(address, token_file)
        token = token_file.read_text(encoding="ascii").strip()
        console.print(f"the service is up at [bold]{address}[/]; the cluster comes up meanwhile")
        console.print(f"sign in:    {address}/login{f'#{token}' if token_is_new else ''}", soft_wrap=True)
        console.print(f"its token:  {token_file} (of the user admin; others: {address}/account)", soft_wrap=True)
        console.print(f"its logs:   {found.folder / 'logs'}", soft_wrap=True)
        console.print("submit:     rlpto submit -p PROGRAM --gpus 2 --wait")

    serve(settings, found, ready, lambda line: print(f"rlpto: {line}", file=sys.stderr, flush=True))


VERB = Verb(serve, SERVICE, "rlpto serve configs/service.yaml")
