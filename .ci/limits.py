"""Lines of code by package and words that the project avoids, each against its budget in `pyproject.toml`.

`make lint` prints both tables and fails above a budget. A package may get larger, if the commit that raises its budget
says why; the budgets of words only fall. `--shrink` lowers all budgets to the present counts.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path, PurePosixPath

ALTERNATIVES = {
    "told|tell|tells": "known, estimated, shown",
    "whoever|whatever|whichever": "the caller, any, the one that",
    "nobody|somebody|everybody": "no user, a user, all users",
    "so many": "n, that number of",
    "beside": "next to, in addition to",
    "anew": "again",
    "of which": "split the sentence",
    "by itself|of itself": "on its own, by default",
    "is to be|are to be|is to have|are to have": "should",
    "gets on|get on": "makes progress",
    "books": "database, store",
}


def project_files(root: Path, *patterns: str) -> list[PurePosixPath]:
    """The project's files, new ones included, without those that git ignores."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [PurePosixPath(name) for name in sorted(set(names)) if name and (root / name).is_file()]


def lines_by_package(root: Path) -> Counter[str]:
    """Lines of Python: of every package of `rlpto`, of every other top folder."""
    count: Counter[str] = Counter()
    for path in project_files(root, "*.py"):
        depth = 2 if path.parts[0] == "rlpto" and len(path.parts) > 2 else 1
        package = "/".join(path.parts[:depth]) if len(path.parts) > 1 else "."
        count[package] += len((root / path).read_bytes().splitlines())
    return count


def avoided_words(root: Path, patterns: list[str]) -> Counter[str]:
    """How often each of the patterns stands in pages, source, docstrings and messages; tests are left out."""
    files = [path for path in project_files(root, "*.py", "*.md") if path.parts[0] not in ("tests", ".ci")]
    text = "\n".join((root / path).read_text(encoding="utf-8") for path in files if path.name != "CHANGELOG.md")
    return Counter({word: len(re.findall(rf"\b(?:{word})\b", text, re.IGNORECASE)) for word in patterns})


def table(title: str, counts: Counter[str], budgets: dict[str, int], note: dict[str, str]) -> list[str]:
    """Print counts next to their budgets, return what is wrong."""
    width = max(len(name) for name in [title, *counts, *budgets])
    print(f"{title:{width}}  {'now':>7} {'budget':>7}")
    wrong = []
    for name in sorted(counts.keys() | budgets.keys()):
        if name not in budgets:
            wrong.append(f"{name}: has no budget")
        elif counts[name] > budgets[name]:
            wrong.append(f"{name}: {counts[name]}, budget {budgets[name]}{note.get(name, '')}")
        print(f"{name:{width}}  {counts[name]:>7,} {budgets.get(name, 0):>7,}")
    print(f"{'sum':{width}}  {sum(counts.values()):>7,} {sum(budgets.values()):>7,}\n")
    return wrong


def shrink(settings: Path, section: str, counts: Counter[str]) -> None:
    """Lower the budgets of one section to what is there now; a package without lines loses its budget."""
    lines, inside = [], False
    for line in settings.read_text(encoding="utf-8").splitlines():
        inside = line == f"[{section}]" if line.startswith("[") else inside
        budget = re.fullmatch(r'"(.+)" = (\d+)', line) if inside else None
        if not budget:
            lines.append(line)
        elif counts[budget[1]] or "words" in section:
            lines.append(f'"{budget[1]}" = {min(int(budget[2]), counts[budget[1]])}')
    settings.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Both tables; 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shrink", action="store_true", help="lower all budgets to the present counts")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="folder of the project")
    options = parser.parse_args(arguments)
    settings = options.root / "pyproject.toml"
    budgets = tomllib.loads(settings.read_text(encoding="utf-8"))["tool"]["rlpto"]
    lines = lines_by_package(options.root)
    words = avoided_words(options.root, list(budgets["words"]))
    instead = {word: f'; write "{better}"' for word, better in ALTERNATIVES.items()}
    wrong = table("lines of Python", lines, budgets["lines"], {}) + table("words", words, budgets["words"], instead)
    if options.shrink:
        shrink(settings, "tool.rlpto.lines", lines)
        shrink(settings, "tool.rlpto.words", words)
    print("\n".join(["Above the budgets of pyproject.toml:", *wrong] if wrong else ["All within budget."]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
