"""Files that accompany a developer's script, such as modules and settings: a zip archive, encoded as base64 text."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlpto.io.errors import ConfigError, JobError, refusals_as
from rlpto.io.files import is_there, whole_file
from rlpto.io.reading import parsing
from rlpto.io.unpacking import CheckedZip

MOST_FILES = 500
LARGEST_TEXT = 256 * 1024
"""Most characters of the archive's text."""
LARGEST_UNPACKED = 4 * 1024 * 1024
"""Most bytes of all files together."""
_EXPECTED = "a zip archive in base64, its entries stored or deflated"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_LONGEST_NAME = 200


def pack(script: Path, chosen: Sequence[Path]) -> str:
    """Pack files and folders from a script's folder into text, with names relative to that folder. Equal files give
    equal text. Hidden files and `__pycache__` of folders are left out.

    Raises ConfigError for a path that is missing, unreadable or outside the folder, for names with other characters
    than letters, digits, `_`, `.` and `-`, and for too many or too large files.
    """
    root = script.parent.resolve()
    files = {name: path for one in chosen for name, path in _named(root, one) if path != script.resolve()}
    if len(files) > MOST_FILES:
        raise ConfigError(f"--files: expected {MOST_FILES} files at most, got {len(files)}")
    if sum(path.stat().st_size for path in files.values()) > LARGEST_UNPACKED:
        raise ConfigError(f"--files: expected {LARGEST_UNPACKED} bytes at most, all files together")
    try:
        return packed({name: _content(path) for name, path in files.items()})
    except ValueError as wrong:
        raise ConfigError(f"--files: {wrong}") from None


def _content(path: Path) -> bytes:
    with refusals_as(ConfigError, f"--files {path}: cannot read the file"):
        return path.read_bytes()


def packed(files: Mapping[str, bytes]) -> str:
    """Pack files, given by name, into text; empty if there are none. Raises ValueError if the text is too long."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, compresslevel=9)
    text = base64.b64encode(found.getvalue()).decode("ascii") if files else ""
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"expected {LARGEST_TEXT * 3 // 4} bytes at most when compressed")
    return text


def _named(root: Path, chosen: Path) -> Iterator[tuple[str, Path]]:
    """Files below a path, with their names relative to `root`. Raises ConfigError for unsuitable paths."""
    path = chosen.resolve()
    if not is_there(path):
        raise ConfigError(f"--files {chosen}: there is no such file or folder")
    if not path.is_relative_to(root):
        raise ConfigError(f"--files {chosen}: expected a path in the folder of the script, {root}")
    with refusals_as(ConfigError, f"--files {chosen}: cannot read the folder"):
        files = [file for file in ([path] if path.is_file() else sorted(path.rglob("*"))) if file.is_file()]
    for file in files:
        inside = file.relative_to(path).parts
        if any(part.startswith(".") or part == "__pycache__" for part in inside):
            continue
        name = file.relative_to(root).as_posix()
        if not _is_plain(name):
            raise ConfigError(f"--files {file}: expected names of letters, digits, `_`, `.` and `-`")
        yield name, file


def _is_plain(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def unpack(text: str) -> dict[str, bytes]:
    """Unpack text into file contents by name. Raises ConfigError under the conditions of `unzip`."""
    with parsing("files", _EXPECTED, ConfigError):
        archive = base64.b64decode(text, validate=True)
    return unzip(archive)


def unzip(archive: bytes) -> dict[str, bytes]:
    """Unpack an archive into file contents by name, without hidden files. Raises ConfigError for an invalid archive,
    for names that `pack` would refuse, and for too many or too large files."""
    with parsing("files", _EXPECTED, ConfigError), CheckedZip(io.BytesIO(archive)) as opened:
        listed = [one for one in opened.infolist() if not one.is_dir() and not _is_hidden(one.filename)]
        if len(listed) > MOST_FILES or sum(one.file_size for one in listed) > LARGEST_UNPACKED:
            raise ConfigError(f"files: expected {MOST_FILES} files and {LARGEST_UNPACKED} bytes at most, unpacked")
        for one in listed:
            if not _is_plain(one.filename):
                named = f"{one.filename[:_LONGEST_NAME]!r}: expected a name of letters, digits, _ . - and /"
                raise ConfigError(f"files: {named}")
        return {one.filename: opened.read(one) for one in listed}


def _is_hidden(name: str) -> bool:
    """True for `.git/config`. False for `../a`, which is refused elsewhere."""
    return any(part.startswith(".") and part.strip(".") for part in name.split("/"))


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder; unchanged files are not touched. Raises JobError if a file cannot be written."""
    for name, content in files.items():
        path = folder / name
        with suppress(OSError):
            if path.read_bytes() == content:
                continue  # another worker of the job may be importing it
        with whole_file(path, "a file of a script", JobError) as unfinished:
            unfinished.write_bytes(content)
