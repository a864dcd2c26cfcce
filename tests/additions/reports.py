"""Additions to what is asked for and shown: verbs, metrics and studies."""

from __future__ import annotations

from .base import Addition

REPORTS = {
    "a metric": Addition(
        inserted=(
            (
                "rlpto/evaluation/metrics.py",
                '    CellMetric("gpu_hours"',
                '    CellMetric("queueing_max", "queue max", "s", "lower", "Longest time to the first GPU."),\n',
            ),
            (
                "rlpto/evaluation/metrics.py",
                '        "gpu_hours": float(',
                '        "queueing_max": _percentile(waited, 100),\n',
            ),
        ),
        use="""
figures = evaluated()
assert figures.queueing_max == 2 * figures.queueing_mean > 0, "one of two jobs waits"
summary = pd.read_csv("out/summary.csv").set_index(["policy", "metric"])
assert summary.loc[("fifo", "queueing_max"), "mean"] == figures.queueing_max
""",
    ),
    "a verb": Addition(
        new={
            "rlpto/cli/greet.py": '''\
"""`rlpto greet`: be friendly."""

from __future__ import annotations

from rlpto.cli.common import LISTS, Verb


def greet(name: str) -> None:
    """Say hello."""
    print(f"hello {name}")


VERB = Verb(greet, LISTS, "rlpto greet you")
'''
        },
        use="""
import contextlib, io

said = io.StringIO()
with contextlib.redirect_stdout(said):
    rlpto_command("--help")
    rlpto_command("greet", "--help")
    rlpto_command("greet", "you")
assert "greet" in said.getvalue() and "Example: rlpto greet you" in said.getvalue()
assert said.getvalue().endswith("hello you\\n")
""",
    ),
    "a study of `make results`": Addition(
        inserted=(
            (
                "benchmarks/studies.yaml",
                "\nreward:\n",
                """
longest:
  function: _study_agents.longest
  runs:
  - policies: [config]

""",
            ),
            (
                "benchmarks/_study_agents.py",
                "\ndef ablations(",
                """
def longest(plan: Plan, study: Study) -> Measured:
    \"\"\"How many workloads and policies the study is about.\"\"\"
    return Measured(facts={"workloads": len(plan.workloads), "runs": len(study.runs)})


""",
            ),
            (
                "benchmarks/results.md.j2",
                "\n## Ablations\n",
                """
{% endif %}
{% if longest %}
## Longest

{{ longest.runs }} run on {{ longest.workloads }} workload.
{% endif %}
{% if ablations %}
""",
            ),
        ),
        use="""
import subprocess
from pathlib import Path

program = Path(rlpto.__file__).parents[1] / "benchmarks" / "study.py"
options = ["longest", "--set", "workloads=[synthetic]", "--folder", "kept", "--pages", "pages"]
subprocess.run([sys.executable, str(program), *options], check=True)
page = Path("pages/results.md").read_text()
assert "## Longest" in page and "1 run on 1 workload." in page
""",
    ),
}
