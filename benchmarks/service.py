"""The job service: load, switches and kills of a whole one, a long history, the pages, its scheduler, and
predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import _common
from _common import Check

Found = tuple[list[Check], dict[str, object]]


def main() -> None:
    import _service_web
    import _service_whole
    from _service_predictions import predicted_finishes

    parts: dict[str, Callable[[], Found]] = {
        **_service_web.PARTS,
        **_service_whole.PARTS,
        "scheduler": scheduler,
        "predictions": predicted_finishes,
    }
    parser = _common.parser(__doc__ or "")
    names = tuple(parts)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(names)}; without any: all")
    parser.add_argument(
        "--agent",
        default=_service_whole.AGENT,
        help="switch: agent as in `scheduler.policies`, agent:run=FOLDER for one",
    )
    parser.add_argument("--whole", action="store_true", help="submissions: wait until all 1,000 jobs have trained")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        _common.refuse(f"there is no part {unknown[0]!r}: expected {', '.join(names)}")
    parts["switch"] = partial(_service_whole.switch, options.agent)
    parts["submissions"] = partial(_service_whole.submissions, options.whole)
    checks: list[Check] = []
    facts: dict[str, object] = {}
    for part in options.parts or names:
        found, said = parts[part]()
        checks += found
        facts |= said
    _common.finish(checks, options.json, **facts)


def scheduler() -> Found:
    """The scheduler after ten thousand finished jobs."""
    from _service_scheduler import MOST_GROWTH_MB, MOST_RESTART_S, MOST_WAIT_S, scheduler_after_many_jobs

    found = scheduler_after_many_jobs()
    return [
        Check("scheduler grows by", found["growth_mb"], "MB", MOST_GROWTH_MB, False),
        Check("restart to the first decision", found["restart_s"], "s", MOST_RESTART_S, False),
        Check("longest wait for the database", 1000 * found["longest_wait_s"], "ms", 1000 * MOST_WAIT_S, False),
    ], {"database_mb": found["database_mb"], "ms_per_job": found["ms_per_job"]}


if __name__ == "__main__":
    main()
