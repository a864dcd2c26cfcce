"""Files that go with a script: packed on one machine, checked by the service, written on the nodes."""

import base64
import io
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlpto.io.errors import ConfigError
from rlpto.store.code_files import LARGEST_UNPACKED, MOST_FILES, pack, unpack, unzip, write_files


def project(folder: Path) -> Path:
    """A script with a package, settings, and what should not go along."""
    for name in ("train.py", "settings.yaml", "model/__init__.py", "model/layers.py", "model/.secret", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "model" / "__pycache__").mkdir()
    (folder / "model" / "__pycache__" / "layers.pyc").write_bytes(b"\0")
    return folder / "train.py"


def test_files_arrive_as_they_were_and_no_hidden_ones(tmp_path: Path) -> None:
    script = project(tmp_path / "mine")
    chosen = [tmp_path / "mine" / "model", tmp_path / "mine" / "settings.yaml"]
    files = unpack(pack(script, chosen))
    assert files == {name: name.encode() for name in ("model/__init__.py", "model/layers.py", "settings.yaml")}
    assert unpack(pack(script, [tmp_path / "mine"])) == files
    write_files(tmp_path / "there", files)
    assert (tmp_path / "there" / "model" / "layers.py").read_text() == "model/layers.py"
    assert pack(script, chosen) == pack(script, [*reversed(chosen), chosen[0]])


def test_paths_that_cannot_go_along_are_named(tmp_path: Path) -> None:
    script = project(tmp_path / "mine")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "mine" / "a b.py").write_text("")
    with (tmp_path / "mine" / "large.bin").open("wb") as file:
        file.truncate(LARGEST_UNPACKED + 1)
    for name, said in (
        ("missing.py", "no such file"),
        ("x" * 5000, "no such file"),
        ("../other.py", "in the folder of the script"),
        ("a b.py", "names of letters"),
        ("large.bin", "bytes at most"),
    ):
        with pytest.raises(ConfigError, match=said):
            pack(script, [tmp_path / "mine" / name])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = project(tmp_path / "mine")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"--files .*settings\.yaml: cannot read the file: permission denied"):
        pack(script, [tmp_path / "mine" / "settings.yaml"])


def archive(*names: str, size: int = 1, method: int = zipfile.ZIP_DEFLATED, listed: int | None = None) -> str:
    """An archive as somebody else might make it. listed: size that its list of files states, in place of `size`."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", method) as made:
        for name in names:
            made.writestr(name, b"\0" * size)
    content = found.getvalue()
    if listed is not None:
        content = content.replace(size.to_bytes(4, "little"), listed.to_bytes(4, "little"))
    return base64.b64encode(content).decode()


def test_folders_and_hidden_files_of_others_are_left_out() -> None:
    assert unpack(archive("a.py", "folder/", ".gitignore", "folder/.git/config")) == {"a.py": b"\0"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%%%", "base64"),
        ("AAAA", "zip archive"),
        (archive("a.py")[:-40], "zip archive"),
        (archive("../a.py"), "name of letters"),
        (archive("/etc/passwd"), "name of letters"),
        (archive("a/../../b.py"), "name of letters"),
        (archive("a\\b.py"), "name of letters"),
        (archive(*(f"f{i}" for i in range(MOST_FILES + 1))), "files"),
        (partial(archive, "zeros", size=LARGEST_UNPACKED + 1), "bytes at most"),
        (partial(archive, "zeros", size=123_456_789, listed=1000), "zip archive"),
        (archive("a.py", size=1000, listed=70_000), "zip archive"),
        (archive("a.py", method=zipfile.ZIP_BZIP2), "stored or deflated"),
        (archive("a.py", method=zipfile.ZIP_LZMA), "stored or deflated"),
    ],
)
def test_archives_that_pack_would_not_make_are_refused(text: str | Callable[[], str], said: str) -> None:
    text = text if isinstance(text, str) else text()  # large ones take a second, which no other test should
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=said):
            unpack(text)
        assert tracemalloc.get_traced_memory()[1] < 2 * LARGEST_UNPACKED
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_archives_are_refused_in_one_line(method: int) -> None:
    whole, draw = base64.b64decode(archive("a.py", "b/c.py", size=300, method=method)), random.Random(method)
    said = list[str]()
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(len(broken))] ^= draw.randint(1, 255)
        try:
            unzip(bytes(broken[: draw.choice((None, draw.randrange(len(broken))))]))
        except ConfigError as refused:
            said.append(str(refused))
    assert all(text.startswith("files: ") and "\n" not in text for text in said)
