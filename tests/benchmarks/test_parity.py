"""Parity against figures of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARITY = [sys.executable, str(ROOT / "benchmarks" / "parity.py"), "--policies", "tiresias"]


def parity(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PARITY, *map(str, arguments)], capture_output=True, text=True)


def test_figures_of_a_file_are_compared(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    rows = (shared_data / "traces" / "pollux" / "workload-1.csv").read_text().splitlines()[:9]
    (tmp_path / "few" / "mine.csv").write_text("\n".join(rows) + "\n")
    folders = ("--workloads", tmp_path / "few", "--profiles", shared_data / "profiles")
    expected = tmp_path / "expected.csv"
    expected.write_text("policy,workload,mean_jct\nTiresias,mine.csv,1\n")
    first = parity(*folders, "--expect", expected)
    assert first.returncode == 1, first.stderr
    assert "SHORT tiresias on mine, off by" in first.stdout
    found = first.stdout.split("tiresias on mine, mean JCT [s]: ")[1].split()[0]
    expected.write_text(f"policy,workload,mean_jct\ntiresias,mine,{1.02 * float(found)}\n")
    assert parity(*folders, "--expect", expected, "--within", 3).returncode == 0


@pytest.mark.parametrize("text", ["", "policy,workload\na,b\n", "policy,workload,mean_jct\na,b,c\n"])
def test_a_file_of_another_form_is_refused(shared_data: Path, tmp_path: Path, text: str) -> None:
    expected = tmp_path / "expected.csv"
    expected.write_text(text)
    done = parity("--profiles", shared_data / "profiles", "--expect", expected)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{expected}: expected columns policy, workload, mean_jct" in done.stderr


def test_a_figure_of_no_workload_is_refused(shared_data: Path, tmp_path: Path) -> None:
    expected = tmp_path / "expected.csv"
    expected.write_text("policy,workload,mean_jct\ntiresias,workload-99,1\n")
    done = parity("--profiles", shared_data / "profiles", "--expect", expected)
    assert done.returncode == 2
    assert "workload-99" in done.stderr
