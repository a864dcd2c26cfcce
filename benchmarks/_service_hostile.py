"""The web process of a job service under what schemathesis draws from its description: much more than tests send."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import schemathesis
from _common import Check
from schemathesis import GenerationMode

from rlpto.store.database import Store
from rlpto.store.status import Heartbeat, beat
from tests.service.web.helpers import fill, make_settings
from tests.service.web.serving import web_process
from tests.service.web.test_openapi import COMMITTED, ask_often

CASES = 20
"""Requests of each operation, for each of two users, well-formed and not."""


def drawn_requests() -> tuple[list[Check], dict[str, object]]:
    """Whether any request is answered 5xx, or otherwise than the description says."""
    wrong: list[str] = []
    sent = 0
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder) / "service", web={"posts_per_second": 10_000})
        tokens = fill(settings)
        beat(Store(settings.database), Heartbeat(1, 0.0), time.time() + 7200.0)
        schema = schemathesis.openapi.from_dict(json.loads(COMMITTED.read_text(encoding="utf-8")))
        operations = [found.ok() for found in schema.get_all_operations()]
        with web_process(settings) as web:
            for user in ("ann", "root"):
                headers = {"Authorization": f"Bearer {tokens[user]}"}
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    for operation in operations:
                        try:
                            sent += ask_often(operation, mode, web.address, headers, CASES, drawn_anew=True)
                        except Exception as error:  # schemathesis raises groups of failures of its own
                            wrong.append(f"{operation.label} as {user}: {error}")
            traces = web.log().count("Traceback")
        outside = [path.name for path in Path(folder).iterdir() if path.name != "service"]
    return [
        Check("requests that schemathesis has drawn", sent, "", len(operations) * CASES, True),
        Check("operations that answer otherwise than described, or with 5xx", len(wrong), "", 0, False),
        Check("errors in the log of the web process", traces, "", 0, False),
        Check("files outside the folder", len(outside), "", 0, False),
    ], {"wrong": wrong[:5]} if wrong else {}
