"""Code blocks of a page, and one shell script of all that a reader of it types, with the page's line numbers.

Blocks without a language, or with `sh`, are typed into one terminal, in the order printed. A `python` block is a
program of its own. A block whose first line is a comment with a file's name, such as `# my_policy.py`, is saved under
that name. A `text` block is looked at. Any other block needs a mark. Marks are HTML comments above the block that they
are about, and hold for that block alone:

    <!-- test: skip, REASON -->                        it is not run
    <!-- test: skip `TEXT`, REASON -->                 commands with TEXT are not run
    <!-- test: needs `FILE` -->                        it is run only where $RLPTO_DATA has that file
    <!-- test: slow -->                                it is run by `make test-all` alone
    <!-- test: replace `TEXT` by `OTHER` -->           smaller settings, or a value that a reader fills in
    <!-- test: background `TEXT`, until `OUTPUT` -->   that command runs until the page ends; the next one is typed
                                                       when it has printed OUTPUT

TEXT has to be in the block. Commands that install, `make` among them, are not run unless a mark replaces them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- test: (.*?) -->", re.DOTALL)
GRAMMAR = re.compile(
    r"(?P<verb>slow|skip|needs|replace|background)(?: `(?P<text>[^`]+)`)?"
    r"(?: by `(?P<other>[^`]*)`|, until `(?P<output>[^`]+)`|, (?P<reason>[^`].*))?"
)
COMMAND = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n")
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml|ya?ml))\n")
SHELL = ("", "sh")
INSTALLS = re.compile(r"(pip install|make|source|\.ci/run)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: number of its first line, from 1. marks: what the comments above it say."""

    line: int
    language: str
    text: str
    marks: tuple[str, ...]


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    end = 0
    for found in FENCE.finditer(page):
        marks = tuple(" ".join(mark.split()) for mark in MARK.findall(page, end, found.start()))
        yield Block(page.count("\n", 0, found.start(2)) + 1, found[1], found[2], marks)
        end = found.end()


@dataclass
class Script:
    """What is typed of a page.

    lines: of a script for bash, numbered as in the page. skipped: what is not run, as (line, command, reason). wrong:
    what cannot be understood.
    """

    lines: list[str]
    skipped: list[tuple[int, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, block: Block, slow: bool, has: Callable[[str], bool]) -> None:
        """Add what is typed of a block."""
        parsed = [GRAMMAR.fullmatch(mark) for mark in block.marks]
        marks = [mark.groupdict() for mark in parsed if mark]
        for said, mark in zip(block.marks, parsed, strict=True):
            if not mark or (mark["verb"] != "needs" and (mark["text"] or "") not in block.text):
                self.wrong.append(f"line {block.line}: the mark {said!r} is unknown, or its text is not in the block")
        why = [str(mark["reason"]) for mark in marks if mark["verb"] == "skip" and not mark["text"]]
        why += [f"needs {mark['text']}" for mark in marks if mark["verb"] == "needs" and not has(mark["text"])]
        why += ["slow" for mark in marks if mark["verb"] == "slow" and not slow]
        if why:
            self.skipped.append((block.line, block.text.strip().partition("\n")[0], why[0]))
            return
        saved, whole = FILE.match(block.text), replaced(block.text, marks)
        if saved:
            text = f"mkdir -p $(dirname {saved[1]}); cat > {saved[1]} << 'END'\n{whole}END\n"
        elif block.language == "python":
            text = f"python - << 'END'\n{whole}END\n"
        elif block.language in SHELL:
            text = "\n" + "".join(self.typed(block, marks))
        elif block.language == "text":
            return
        else:
            self.wrong.append(f"line {block.line}: expected the name of a file in the first line, or a mark")
            return
        lines = text.split("\n")
        self.lines[block.line - 2 : block.line - 2 + len(lines)] = lines

    def typed(self, block: Block, marks: list[dict[str, str]]) -> Iterator[str]:
        """Commands of a block, without those that are skipped."""
        for found in COMMAND.finditer(block.text):
            printed, line = found[0], block.line + block.text.count("\n", 0, found.start())
            here = [mark for mark in marks if mark["text"] and mark["text"] in printed]
            command = replaced(printed, here)
            why = [mark["reason"] for mark in here if mark["verb"] == "skip"]
            why += ["installs"] if INSTALLS.match(command) else []
            until = [f"background '{mark['output']}' " for mark in here if mark["verb"] == "background"]
            if why:
                self.skipped.append((line, printed.strip(), why[0]))
            yield "\n" * printed.count("\n") if why else "".join(until) + command


def replaced(text: str, marks: Iterable[dict[str, str]]) -> str:
    """A text with what its marks say in place of what is printed."""
    for mark in marks:
        if mark["verb"] == "replace":
            text = text.replace(mark["text"], mark["other"])
    return text


def script(page: str, slow: bool, has: Callable[[str], bool]) -> Script:
    """What a reader types. slow: with blocks that are slow. has: whether $RLPTO_DATA has a file."""
    made = Script([""] * (page.count("\n") + 1))
    for block in blocks(page):
        made.add(block, slow, has)
    return made
