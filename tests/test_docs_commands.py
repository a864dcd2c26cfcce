"""Every command that a page shows can be called as it stands: verbs, options, files, keys, policies, programs."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from rlpto.cli.main import make_app
from rlpto.experiments.config import load_config
from rlpto.io.paths import example_config
from rlpto.policies.registry import own_policies
from rlpto.policies.spec import parse_spec, split_specs
from tests.pages import FENCE, MARK, blocks
from tests.plugins import SHOCKWAVE, policies_of

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "submissions", "configs/microsoft", "configs/pretrained", "examples/plugins")
READMES = [ROOT / folder / "README.md" for folder in FOLDERS]
PAGES = sorted([*READMES, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
KNOWN = own_policies().keys() | policies_of(SHOCKWAVE).keys()
PROGRAMS = ("rlpto", "python", "make", "pytest")


def commands(page: str) -> Iterator[tuple[str, bool]]:
    """Lines of code blocks and code in sentences that call one of PROGRAMS, and whether it is a whole line."""
    for block in blocks(page):
        lines = block.text.replace("\\\n", " ").splitlines()
        yield from ((line, True) for line in lines if line.split(" ")[0] in PROGRAMS)
    for span in re.findall(r"`([^`]+)`", FENCE.sub("", MARK.sub("", page))):
        text = " ".join(span.split())
        if text.split(" ")[0] in PROGRAMS:
            yield text, False


def words_of(line: str) -> list[str]:
    """The first command of a line, without its comment and what follows a pipe or semicolon."""
    words = shlex.split(re.sub(r" \[(-[^\]]*)\]", r" \1", line), comments=True)  # [--optional] is shown in brackets
    for end in ("|", ";", "&&", "&", ">", "..."):
        if end in words:
            words = words[: words.index(end)]
    cut = next((i for i, word in enumerate(words) if word.endswith(";")), len(words))
    return [word.rstrip(";") for word in words[: cut + 1]]


@cache
def application() -> click.Command:
    return typer.main.get_command(make_app())


def check_rlpto(words: list[str], whole: bool) -> None:
    """Verb and options exist; of a whole line also what it must have; files, keys and policies that it names."""
    command, context, rest = application(), click.Context(application(), info_name="rlpto"), words[1:]
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no verb {rest[0]!r}"
        command, context, rest = found, click.Context(found, context, info_name=rest[0]), rest[1:]
    values: dict[str, Any] = {}
    if whole:
        try:
            with command.make_context(command.name, list(rest), parent=context.parent) as parsed:
                values = parsed.params
        except click.exceptions.Exit:
            return  # --help, --version
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest[: rest.index("--")] if "--" in rest else rest:  # what follows are arguments of another program
        name = word.partition("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", name):
            assert name in options | {"--help"}, f"{command.name} has no option {name}"
        if re.fullmatch(r"configs/[\w/.-]+\.(yaml|safetensors)", word):
            assert (ROOT / word).is_file(), f"there is no file {word}"
    settings = next(
        (values[item.name] for item in command.params if "--set" in item.opts and values.get(item.name)), []
    )
    config = values.get("config")
    if config and settings:
        known = example_config(config) or ROOT / config
        load_config(known if known.is_file() else "quickstart", [str(one) for one in settings])  # else a file of yours
    policies = values.get("policies")
    for text in split_specs(policies) if isinstance(policies, str) and policies != "all" else []:
        spec = parse_spec(text)
        for one in spec.singles:
            assert one.name in KNOWN or (ROOT / one.file).is_file(), f"there is no policy {one.name}"


def check_program(words: list[str]) -> None:
    """A program of this project that is called with Python exists, and knows the options."""
    if len(words) < 2 or not words[1].endswith(".py"):
        return
    program = ROOT / words[1]
    assert program.is_file(), f"there is no program {words[1]}"
    source = "".join(path.read_text(encoding="utf-8") for path in [program, program.parent / "_common.py"])
    for word in words[2:]:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in source, f"{words[1]} has no option {word}"


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words[1:]:
        assert "=" in word or word in targets, f"make has no target {word}"


def check_pytest(words: list[str]) -> None:
    options = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    for word in words[1:]:
        assert not word.startswith("tests") or (ROOT / word.partition("::")[0]).exists(), f"there is no {word}"
        known = not word.startswith("--") or word.startswith("--dur") or f'"{word.partition("=")[0]}"' in options
        assert known, f"pytest has no option {word}"
    asked = words[words.index("-k") + 1].split(" or ") if "-k" in words else [""]
    for file in (ROOT / word for word in words[1:] if word.endswith(".py") and "--all" not in words):
        slow = [is_slow for name, is_slow in cases_of(file) if any(part in name for part in asked)]
        assert slow, f"{file.name}: no test of that name"
        assert not all(slow), f"{file.name}: no test is run, as all of that name are slow: expected --all"


def cases_of(file: Path) -> Iterator[tuple[str, bool]]:
    """The tests of a file by name, and whether all cases of each are slow."""
    text = file.read_text(encoding="utf-8")
    all_slow = re.search(r"^pytestmark = .*pytest\.mark\.slow", text, re.MULTILINE) is not None
    for found in ast.walk(ast.parse(text)):
        if isinstance(found, ast.FunctionDef) and found.name.startswith("test_"):
            yield found.name, all_slow or "pytest.mark.slow" in map(ast.unparse, found.decorator_list)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_can_be_called(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wrong = []
    for line, whole in commands(page.read_text(encoding="utf-8")):
        try:
            words = words_of(line)
            match words[0]:
                case "rlpto":
                    check_rlpto(words, whole)
                case "python":
                    check_program(words)
                case "make":
                    check_make(words)
                case "pytest":
                    check_pytest(words)
        except Exception as error:  # all that are wrong at once
            wrong.append(f"{line}\n    {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)


def verbs(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All verbs below a command, with the words that call them."""
    if not hasattr(command, "commands"):
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, *path, name)


def test_every_verb_has_an_example_that_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path, verb in verbs(application()):
        example = str(verb.epilog).removeprefix("Example: ")
        assert example.startswith(" ".join(["rlpto", *path]))
        check_rlpto(words_of(example), whole=True)


def test_commands_are_found() -> None:
    found = [words_of(line)[0] for page in PAGES for line, _ in commands(page.read_text(encoding="utf-8"))]
    assert found.count("rlpto") > 100
    assert found.count("python") > 30


NAMED = re.compile(
    r"(?<![\w/.-])(?P<file>(?:rlpto|agents|envs|forecasting|benchmarks|tests|examples|configs|deploy)/[\w/.-]*\w)(?::(?P<of>[A-Za-z_]\w*))?"
    r"|\b(?P<module>rlpto(?:\.[A-Za-z_]\w*)+)"
)
"""What pages name: `folder/file.py`, `folder/file.py:Name`, `rlpto.package.module` and `rlpto.package.module.Name`."""


def defines(source: Path, name: str) -> bool:
    """Whether a file has a definition, an assignment or a table's entry of that name."""
    return (
        re.search(rf"^\s*(?:(?:async )?def |class )?{name}\b", source.read_text(encoding="utf-8"), re.MULTILINE)
        is not None
    )


def exists(named: re.Match[str]) -> bool:
    """Whether the file, the module or the definition is in the project."""
    if named["module"]:
        *packages, last = named["module"].split(".")
        holder = ROOT.joinpath(*packages)
        if (holder / last).is_dir() or (holder / f"{last}.py").is_file():
            return True
        sources = [path for path in (holder.with_suffix(".py"), holder / "__init__.py") if path.is_file()]
        return any(defines(source, last) for source in sources)
    path = ROOT / named["file"]
    return path.exists() and (named["of"] is None or defines(path, named["of"]))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [
        named[0]
        for named in NAMED.finditer(text)
        if not (page.name == "removed.md" or "commit" in text[named.end() : named.end() + 40])  # of an earlier state
        and not named[0].startswith(("rlpto/Cluster-v", "rlpto/Nodes-v", "rlpto/Bench-"))  # environments of Gymnasium
        and not exists(named)
    ]
    assert missing == []
