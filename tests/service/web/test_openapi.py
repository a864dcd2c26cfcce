"""What the generated description of the API says, and that answers keep to it for every request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rlpto.service.web.app import openapi_text
from rlpto.store.database import Store
from rlpto.store.status import Heartbeat, beat
from tests.service.web.helpers import WebProcess, fill, make_settings, web_process
from tests.slow import few

CASES_PER_OPERATION = 4
"""One without `--all`; `--soak 20` sends more, drawn again at each call."""
STREAM = "/api/v1/events"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def described() -> Any:
    """openapi.json of the API."""
    return json.loads(openapi_text(make_settings(Path("service"))))


def test_every_error_is_described_as_a_problem() -> None:
    found = described()
    for path, operations in found["paths"].items():
        for operation in operations.values():
            assert "application/problem+json" in operation["responses"]["4XX"]["content"], path
    assert "HTTPValidationError" not in found["components"]["schemas"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebProcess, dict[str, str]]]:
    settings = make_settings(tmp_path_factory.mktemp("fuzz"))
    tokens = fill(settings)
    beat(Store(settings.database), Heartbeat(1, 0.0), time.time() + 3600.0)  # a scheduler that is there for an hour
    with web_process(settings) as web:
        yield web, tokens


@pytest.mark.parametrize("user", few(["ann", "root"], "ann"))
@pytest.mark.parametrize("mode", few([GenerationMode.POSITIVE, GenerationMode.NEGATIVE], GenerationMode.NEGATIVE))
def test_whatever_is_asked_is_answered_as_described(
    served: tuple[WebProcess, dict[str, str]], user: str, mode: GenerationMode, request: pytest.FixtureRequest
) -> None:
    soak, often = (request.config.getoption(option) for option in ("--soak", "--all"))
    cases = soak or (CASES_PER_OPERATION if often else 1)
    web, tokens = served
    headers = {"Authorization": f"Bearer {tokens[user]}"}
    schema = schemathesis.openapi.from_dict(described())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 30
    for operation in operations:
        ask_often(operation, mode, web.address, headers, cases, drawn_anew=bool(soak))
    assert "Traceback" not in web.log()


def ask_often(
    operation: Any, mode: GenerationMode, address: str, headers: dict[str, str], cases: int, drawn_anew: bool
) -> None:
    """Send what schemathesis draws for an operation, that number of times; always the same unless `drawn_anew`."""

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=not drawn_anew,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if case.operation.path == STREAM:
            case.query = {**(case.query or {}), "once": "true"}
        if (case.operation.path, case.method) == ("/api/v1/policy", "PUT"):
            return  # it waits for a scheduler, which is not there
        case.call_and_validate(base_url=address, headers=headers, checks=CHECKS, timeout=10)

    with suppress(Unsatisfiable):  # nothing can be wrong about an operation without input
        ask()
