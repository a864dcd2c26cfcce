"""Ways to break a file: bytes, text, trees of plain data, archives and arrays. All drawn from one generator."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

NASTY: tuple[object, ...] = (
    *(0, -1, 1, True, False, None, "", " ", [], {}, [[]], "x", "ü" * 50, "a" * 5000, "../..", "\n", "%s", "${HOME}"),
    *(2**31, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 10**18, 10**30, 1e18, 1e300, -1e308, 1e-320, 0.1, -0.0),
    *(float("inf"), float("-inf"), float("nan"), "nan", "inf", "1e308", "9" * 400, "0x" + "f" * 300, "1:1:1:1"),
    *("9999-12-31 23:59:59", "0001-01-01 00:00:00", "2262-04-12 00:00:00", "1969-12-31 23:59:59", "2017-10-03"),
    *([1, [2, [3, [4]]]], {"a": {"b": {"c": 1}}}, [0] * 300, ["x"] * 300, "[" * 400, "!!python/object:os.system x"),
)
"""Values that are out of place nearly everywhere."""

WORDS = tuple(str(value) for value in NASTY if not isinstance(value, list | dict))
"""The same as they would stand in a text."""


def pick(rng: Generator, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


def broken_bytes(rng: Generator, data: bytes) -> bytes:
    """One to four of: bits flipped, a stretch cut, doubled, moved or overwritten, the end lost."""
    content = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if not content:
            break
        first, second = sorted(int(place) for place in rng.integers(len(content) + 1, size=2))
        second = min(second, first + int(rng.integers(1, 65)))
        change = int(rng.integers(6))
        if change == 0:
            content[min(first, len(content) - 1)] ^= 1 << int(rng.integers(8))
        elif change == 1:
            del content[first:second]
        elif change == 2:
            content[first:first] = content[first:second] * int(rng.integers(1, 30))
        elif change == 3:
            content[first:second] = rng.bytes(second - first)
        elif change == 4:
            content[first:second] = pick(rng, (b"\0", b"\xff\xff\xff\xff", b"\xef\xbb\xbf", b"\x1f\x8b", b"\n" * 20))
        else:
            del content[first:]
    return bytes(content)


def broken_text(rng: Generator, text: str) -> bytes:
    """A word replaced, a line lost, doubled, joined or moved, another encoding, too many of something, or bytes."""
    lines = text.splitlines(keepends=True) or [""]
    at = int(rng.integers(len(lines)))
    change = int(rng.integers(12))
    if change <= 3:
        lines[at] = _broken_line(rng, lines[at])
    elif change == 4:
        del lines[at]
    elif change == 5:
        lines[at:at] = [lines[at]] * int(rng.integers(1, 200))
    elif change == 6:
        lines[at] = lines[at].rstrip("\n")
    elif change == 7:
        return "".join(lines).encode(pick(rng, ("utf-16", "latin-1", "utf-8-sig", "utf-32")), "replace")
    elif change == 8:
        lines[at] = pick(rng, (",", '"', "[", "{", "- ", "&a [*a]", ": ", "\t", "1,")) * int(rng.integers(1, 100_000))
    elif change == 9:
        packed = gzip.compress("".join(lines).encode(), 1)
        return broken_bytes(rng, packed) if rng.random() < 0.5 else packed
    elif change == 10:
        return b""
    else:
        return broken_bytes(rng, text.encode())
    return "".join(lines).encode("utf-8", "replace")


def _broken_line(rng: Generator, line: str) -> str:
    """A line with one of its fields, however they are separated, replaced."""
    mark = pick(rng, [mark for mark in (",", " ", ":", "=") if mark in line] or [","])
    fields = line.rstrip("\n").split(mark)
    fields[int(rng.integers(len(fields)))] = pick(rng, WORDS)
    return mark.join(fields) + "\n"


def broken_tree(rng: Generator, tree: Any) -> Any:
    """Plain data with one of its values, or keys, replaced, removed or added."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = pick(rng, list(tree))
        others = {name: value for name, value in tree.items() if name != key}
        change = rng.random()
        if change < 0.1:
            return others
        if change < 0.2:
            return others | {pick(rng, ("x", 1, None, "", f"{key}s", 1.5, True)): tree[key]}
        return tree | {key: broken_tree(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at = int(rng.integers(len(tree)))
        if rng.random() < 0.15:
            return [*tree[:at], *tree[at + 1 :]]
        return [*tree[:at], broken_tree(rng, tree[at]), *tree[at + 1 :]]
    return pick(rng, NASTY)


def plain_json(tree: Any) -> bytes:
    """JSON as Python writes it, NaN and all."""
    return json.dumps(tree, default=str, skipkeys=True).encode("utf-8", "replace")


def broken_archive(rng: Generator, data: bytes, manifest: str | None) -> bytes:
    """A zip with one entry changed and packed anew, or broken as bytes."""
    change = int(rng.integers(8))
    if change == 0:
        return broken_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    name = pick(rng, list(contents))
    if change == 1:
        del contents[name]
    elif change == 2 and manifest is not None:
        contents[manifest] = plain_json(broken_tree(rng, json.loads(contents[manifest])))
    elif change == 3:
        contents[name] = bytes(int(rng.integers(1, 2**24)))
    elif change == 4:
        contents[pick(rng, ("x", "../x", "arrays/x.npy", name + "x"))] = contents[name]
    elif name.endswith(".npy"):
        contents[name] = _broken_array(rng, contents[name])
    else:
        contents[name] = broken_bytes(rng, contents[name])
    written = io.BytesIO()
    method = pick(rng, (zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(written, "w", method, compresslevel=1) as archive:
        for key, content in contents.items():
            archive.writestr(key, content)
    return written.getvalue()


def _broken_array(rng: Generator, content: bytes) -> bytes:
    """An .npy file with other numbers, another type or shape, or a header that lies."""
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    change = int(rng.integers(6))
    if change == 0 and array.dtype.kind == "f" and array.size:
        array.flat[int(rng.integers(array.size))] = pick(rng, (np.nan, np.inf, -1.0, 1e30, 1e300))
    elif change == 1 and array.dtype.kind in "iu" and array.size:
        array.flat[int(rng.integers(array.size))] = np.iinfo(array.dtype).max
    elif change == 2:
        array = np.zeros(array.shape, pick(rng, ("float16", "int8", "complex64", "U3", "bool", "S1")))
    elif change == 3:
        array = pick(
            rng, (array.ravel(), array[..., None], np.zeros(0), np.repeat(array, 2, axis=0) if array.ndim else array)
        )
    elif change == 4:
        return content.replace(b"'shape': (", b"'shape': (99999999999, ", 1)
    else:
        return broken_bytes(rng, content)
    written = io.BytesIO()
    np.lib.format.write_array(written, array, allow_pickle=False)
    return written.getvalue()
