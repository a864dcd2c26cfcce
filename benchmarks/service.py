"""The job service: load, a long history, the pages, policies compiled under load, and predictions."""

from __future__ import annotations

import sys

import _common


def main() -> None:
    import _service_virtual
    import _service_web
    import _service_whole

    parts = _service_web.PARTS | _service_whole.PARTS | _service_virtual.PARTS
    options = _common.parser(__doc__, parts).parse_args()
    checks, facts = _common.run_parts(parts, options.parts)
    if "paint" not in parts:
        print("paint and live skipped: no Chromium is installed", file=sys.stderr)
    _common.finish(checks, options.json, **facts)


if __name__ == "__main__":
    main()
