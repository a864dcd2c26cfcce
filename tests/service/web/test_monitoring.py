"""deploy/monitoring: the dashboard and the alerts ask for what /metrics answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlpto.store.jobs import STATES
from rlpto.store.status import Heartbeat, beat
from tests.service.web.helpers import Api

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


def questions() -> dict[str, str]:
    """Expressions by panel or alert."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    asked = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel["targets"]}
    return asked | {rule["alert"]: rule["expr"] for rule in group["rules"]}


def test_every_metric_and_label_that_is_asked_for_is_there(api: Api) -> None:
    beat(api.store, Heartbeat(1, 0.0), time.time())
    assert api("GET", "/metrics", None).status_code == 401
    api.submit()
    text = api("GET", "/metrics").text
    assert 'rlpto_jobs{state="submitted"} 1.0' in text
    assert 'rlpto_http_requests_total{method="POST",route="/api/v1/jobs",status="201"} 1.0' in text
    series = re.findall(r"^(rlpto_\w+)(?:\{(.*)\})? ", text, re.MULTILINE)
    labels: dict[str, set[str]] = {}
    for name, given in series:
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", given))
    for where, asked in questions().items():
        for name, matchers in re.findall(r"(rlpto_\w+)(?:\{([^}]*)\})?", asked):
            assert name in labels, where
            assert set(re.findall(r"(\w+)[!=]", matchers)) <= labels[name], where
        states = [one for found in re.findall(r'state=~?"([^"]+)"', asked) for one in found.split("|")]
        assert set(states) <= set(STATES), where


def test_all_panels_ask_the_source_that_the_dashboard_chooses() -> None:
    found = json.loads((FOLDER / "grafana.json").read_text())
    (source,) = found["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for panel in panels():
        assert all(one["datasource"]["uid"] == f"${{{source['name']}}}" for one in (panel, *panel["targets"]))
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_configuration_and_alerts(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "rlpto-token").write_text("rlpto_x")
    call = ["promtool", "check", "config", "prometheus.yaml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
