"""What users ask for by REST, and what the scheduler makes of it, over the same database; its time is virtual."""

from __future__ import annotations

import time

from tests.service.scheduler.virtual import VirtualService, config
from tests.service.web.conftest import api
from tests.service.web.helpers import PROGRAM, Api

__all__ = ["api"]


def test_a_program_that_an_admin_adds_is_trained_at_once(api: Api) -> None:
    service = VirtualService(api.settings.folder, config(60.0, 5.0), began=time.time())
    body = PROGRAM.model_dump(mode="json") | {"description": "added while the service runs"}
    for number in range(3):  # all three are submitted before the scheduler has looked at the catalogue again
        assert api("PUT", f"programs/late-{number}", "root", json=body).status_code == 200
    jobs = [api.submit(program=f"late-{number}", epochs=2, gpus=2)["id"] for number in range(3)]
    service.run(lambda: all(api("GET", f"jobs/{job}").json()["state"] == "finished" for job in jobs))
    found = {program["name"]: program for program in api("GET", "programs", "root").json()["programs"]}
    assert [found[f"late-{number}"]["checked"] for number in range(3)] == ["usable"] * 3
    assert all(found[f"late-{number}"]["preview"] for number in range(3)), "the form tells what a training takes"
    assert [switch["action"] for switch in api("GET", "audit", "root").json()["audit"]].count("program.set") == 3
    service.close()
