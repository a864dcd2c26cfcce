"""The job service: load, kills of a whole one, a long history, the pages, its scheduler, and predictions."""

from __future__ import annotations

import sys
from functools import partial

import _common


def main() -> None:
    import _service_virtual
    import _service_web
    import _service_whole

    parts = _service_web.PARTS | _service_whole.PARTS | _service_virtual.PARTS
    parser = _common.parser(__doc__, parts)
    parser.add_argument("--whole", action="store_true", help="submissions: wait until all 1,000 jobs have trained")
    options = parser.parse_args()
    parts["submissions"] = partial(_service_whole.submissions, options.whole)
    checks, facts = _common.run_parts(parts, options.parts)
    if "paint" not in parts:
        print("paint and live skipped: no Chromium is installed", file=sys.stderr)
    _common.finish(checks, options.json, **facts)


if __name__ == "__main__":
    main()
