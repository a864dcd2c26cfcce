"""Policies that are named by a Python file and a class in it, and what is said of broken ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.policy import naming_line
from rlpto.io.errors import ConfigError, PolicyError
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import parse_spec, policy_label, split_specs

from .builders import J, make_state

MINE = """
from __future__ import annotations
import numpy as np
from rlpto.core.cluster import Allocation
from rlpto.io.settings import Settings


class Factors(Settings):
    factor: int = 1
    \"\"\"GPUs of each job.\"\"\"


class Mine:
    summary, source, Options = "the same for each", "a test", Factors

    def __init__(self, options):
        self.factor, self.name = options.factor, "mine"
        if options.factor == 7:
            raise ZeroDivisionError("seven")

    def reset(self, seed):
        pass

    def __call__(self, state):
        if state.capacity == 1:
            return state.capacty
        return Allocation(np.full(len(state.jobs), self.factor))


class Half:
    summary, Options = "no policy", Factors
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def test_a_class_in_a_file_is_a_policy_with_options_and_a_label(mine: Path) -> None:
    policy = make_policy("mine.py:Mine:factor=2")
    assert policy(make_state([J(), J()], 4)).gpus.tolist() == [2, 2]
    assert make_policy(f"{mine}:Mine").name == "mine.py:Mine", "without its folder"
    assert make_policy("./mine.py:Mine:factor=2,label=twice").name == "twice"
    assert policy_label("fifo>60:a/mine.py:Mine:factor=3") == "fifo>60:mine.py:Mine:factor=3"
    assert split_specs("mine.py:Mine:factor=2,label=a,./b.py:B,fifo") == [
        "mine.py:Mine:factor=2,label=a",
        "./b.py:B",
        "fifo",
    ]
    assert [str(path) for path in parse_spec("a/b.py:B:weights=w.yaml").paths] == ["a/b.py", "w.yaml"]
    assert not list(mine.parent.glob("__pycache__"))


def test_an_edit_counts_at_once(mine: Path) -> None:
    before = mine.stat()
    assert make_policy("mine.py:Mine")(make_state([J()], 4)).gpus.tolist() == [1]
    mine.write_text(MINE.replace("factor: int = 1", "factor: int = 3"))
    os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert make_policy("mine.py:Mine")(make_state([J()], 4)).gpus.tolist() == [3]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py:Mine", r"nowhere\.py: cannot read the file: no such file"),
        ("mine.py:Mina", r"no class 'Mina' in mine\.py; did you mean Mine\?"),
        ("mine.py", r"no class '' in mine\.py; expected one of Factors, Mine, Half"),
        ("mine.py:Half", r"mine\.py:Half: expected a class with .* it has no `source`, `reset`, `__call__`"),
        ("mine.py:np", r"mine\.py:np: expected a class"),
        ("mine.py:Mine:facto=2", r"option facto: unknown key, did you mean factor\?"),
        ("broken.py:Mine", r"policy broken\.py:Mine: broken\.py:2: SyntaxError: "),
        ("missing.py:Mine", r"policy missing\.py:Mine: missing\.py:3: ModuleNotFoundError: No module named 'nothing_'"),
        ("empty.py:Mine", r"the file is empty"),
        ("classless.py:Mine", r"no class 'Mine' in classless\.py; it has no classes"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(spec: str, message: str) -> None:
    Path("broken.py").write_text("x = 1\nclass Mine(:\n")
    Path("missing.py").write_text("def load():\n    import os\n    import nothing_\nload()\n")
    Path("empty.py").write_text("\n")
    Path("classless.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=message) as caught:
        make_policy(spec)
    assert "\n" not in str(caught.value)


def test_an_exception_names_the_line_of_the_users_code(mine: Path) -> None:
    lines = dict(zip(map(str.strip, MINE.splitlines()), range(1, 100), strict=False))
    wrong = lines['raise ZeroDivisionError("seven")']
    with pytest.raises(PolicyError, match=rf"mine\.py:{wrong}: ZeroDivisionError: seven"):
        make_policy("mine.py:Mine:factor=7")
    policy, wrong = make_policy(f"{mine}:Mine"), lines["return state.capacty"]
    with pytest.raises(PolicyError, match=f"^policy m: {mine}:{wrong}: AttributeError"), naming_line("m", policy):
        policy(make_state([J()], 1))


def test_an_exception_of_rlpto_itself_passes() -> None:
    with pytest.raises(ZeroDivisionError), naming_line("fifo", make_policy("fifo")):
        np.testing.assert_equal(1 // len([]), 0)
