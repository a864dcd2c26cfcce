"""`python -m rlpto.service.scheduler SETTINGS [--check]`: the scheduler process of a job service.

--check: read what the settings name, and end.

SIGTERM: runners train on, and the next scheduler takes them up. SIGINT: as `on_stop` of the settings says; a cluster
that the service has started ends then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlpto.io.errors import RlptoError


def main(arguments: list[str]) -> int:
    """Serve until a signal; 2: what is wrong with settings, database or cluster is said on stderr."""
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--check"]):
        print("usage: python -m rlpto.service.scheduler SETTINGS.yaml [--check]", file=sys.stderr)
        return 2
    from rlpto.service.scheduler.process import check, serve
    from rlpto.service.settings import load_service

    try:
        settings = load_service(Path(arguments[0]))
        if arguments[1:]:
            check(settings)
        else:
            serve(settings)
    except RlptoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
