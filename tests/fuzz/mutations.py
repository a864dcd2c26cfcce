"""Ways to break a file, each a hypothesis strategy: bytes, text, trees of plain data, archives and arrays."""

import gzip
import json
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from safetensors.numpy import load, save

from rlpto.io.arrays import AnyArray

NASTY: list[object] = [
    *(0, -1, 1, True, False, None, "", " ", [], {}, [[]], "x", "ü" * 50, "a" * 5000, "../..", "\n", "%s", "${HOME}"),
    *(2**31, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 10**18, 10**30, 1e18, 1e300, -1e308, 1e-320, 0.1, -0.0),
    *(float("inf"), float("-inf"), float("nan"), "nan", "inf", "1e308", "9" * 400, "0x" + "f" * 300, "1:1:1:1"),
    *("9999-12-31 23:59:59", "0001-01-01 00:00:00", "2262-04-12 00:00:00", "1969-12-31 23:59:59", "2017-10-03"),
    *([1, [2, [3, [4]]]], {"a": {"b": {"c": 1}}}, [0] * 300, ["x"] * 300, "[" * 400, "!!python/object:os.system x"),
    *("~nobody-of-this-name/x", "~", "a[b", "index:weights=x>3600:fifo"),
]
"""Values that are out of place nearly everywhere."""
WORDS = [str(value) for value in NASTY if not isinstance(value, list | dict)]
"""The same as they would stand in a text."""

values = st.sampled_from(NASTY) | st.recursive(
    st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def broken_bytes(draw: DrawFn, data: bytes) -> bytes:
    """One to four of: a bit flipped, a stretch cut, doubled or overwritten, the end lost."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if not content:
            break
        first = draw(st.integers(0, len(content) - 1))
        last = min(len(content), first + draw(st.integers(1, 64)))
        change = draw(st.sampled_from(["flip", "cut", "double", "random", "marker", "end"]))
        if change == "flip":
            content[first] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut":
            del content[first:last]
        elif change == "double":
            content[first:first] = content[first:last] * draw(st.integers(1, 30))
        elif change == "random":
            content[first:last] = draw(st.binary(min_size=last - first, max_size=last - first))
        elif change == "marker":
            markers = [b"\0", b"\xff\xff\xff\xff", b"\xef\xbb\xbf", b"\x1f\x8b", b"\n" * 20]
            content[first:last] = draw(st.sampled_from(markers))
        else:
            del content[first:]
    return bytes(content)


@st.composite
def broken_text(draw: DrawFn, text: str) -> bytes:
    """A field replaced, a line lost, repeated, joined or flooded, another encoding, or bytes."""
    lines = text.splitlines(keepends=True) or [""]
    at = draw(st.integers(0, len(lines) - 1))
    changes = ["field", "lose", "repeat", "join", "encode", "flood", "pack", "empty", "bytes"]
    change = draw(st.sampled_from(["field"] * 3 + changes))
    if change == "field":
        mark = draw(st.sampled_from([mark for mark in (",", " ", ":", "=") if mark in lines[at]] or [","]))
        fields = lines[at].rstrip("\n").split(mark)
        fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(WORDS) | st.text(max_size=20))
        lines[at] = mark.join(fields) + "\n"
    elif change == "lose":
        del lines[at]
    elif change == "repeat":
        lines[at:at] = [lines[at]] * draw(st.integers(1, 200))
    elif change == "join":
        lines[at] = lines[at].rstrip("\n")
    elif change == "encode":
        return text.encode(draw(st.sampled_from(["utf-16", "latin-1", "utf-8-sig", "utf-32"])), "replace")
    elif change == "flood":
        mark = draw(st.sampled_from([",", '"', "[", "{", "- ", "&a [*a]", ": ", "\t", "1,"]))
        lines[at] = mark * draw(st.integers(1, 100_000))
    elif change == "pack":
        packed = gzip.compress(text.encode(), 1)
        return draw(st.just(packed) | broken_bytes(packed))
    elif change == "empty":
        return b""
    else:
        return draw(broken_bytes(text.encode()))
    return "".join(lines).encode("utf-8", "replace")


@st.composite
def broken_tree(draw: DrawFn, tree: Any) -> Any:
    """Plain data with one of its values, or keys, replaced, removed or added."""
    if isinstance(tree, dict) and tree:
        key = draw(st.sampled_from(list(tree)))
        change = draw(st.sampled_from(["inside"] * 7 + ["all", "remove", "rename"]))
        others = {name: value for name, value in tree.items() if name != key}
        if change == "inside":
            return tree | {key: draw(broken_tree(tree[key]))}
        if change == "remove":
            return others
        if change == "rename":
            return others | {draw(st.sampled_from(["x", 1, None, "", f"{key}s", 1.5, True])): tree[key]}
    elif isinstance(tree, list) and tree:
        at = draw(st.integers(0, len(tree) - 1))
        change = draw(st.sampled_from(["inside"] * 5 + ["all", "remove"]))
        if change == "inside":
            return [*tree[:at], draw(broken_tree(tree[at])), *tree[at + 1 :]]
        if change == "remove":
            return [*tree[:at], *tree[at + 1 :]]
    return draw(values)


def as_json(tree: Any) -> bytes:
    """JSON as Python writes it, NaN and all."""
    return json.dumps(tree, default=str, skipkeys=True).encode("utf-8", "replace")


def broken_yaml(text: str) -> SearchStrategy[bytes]:
    """A YAML text broken as text, or with one of its values replaced."""
    trees = broken_tree(yaml.safe_load(text))
    return broken_text(text) | trees.map(lambda tree: yaml.dump(tree, allow_unicode=True).encode("utf-8", "replace"))


def broken_json(content: bytes) -> SearchStrategy[bytes]:
    """A JSON text broken as bytes, or with one of its values replaced."""
    return broken_bytes(content) | broken_tree(json.loads(content)).map(as_json)


@st.composite
def broken_archive(draw: DrawFn, data: bytes) -> bytes:
    """A safetensors file with a part of its contents changed, with a header that states something false, or broken as
    bytes."""
    change = draw(
        st.sampled_from(["bytes", "header", "remove", "manifest", "manifest", "zeros", "copy", "array", "array"])
    )
    if change == "bytes":
        return draw(broken_bytes(data))
    size = int.from_bytes(data[:8], "little")
    if change == "header":
        forged = as_json(draw(broken_tree(json.loads(data[8 : 8 + size]))))
        return len(forged).to_bytes(8, "little") + forged + data[8 + size :]
    manifest = json.loads(data[8 : 8 + size])["__metadata__"]["rlpto"]
    arrays = dict(sorted(load(data).items()))
    name = draw(st.sampled_from(list(arrays)))
    if change == "remove":
        del arrays[name]
    elif change == "manifest":
        manifest = as_json(draw(broken_tree(json.loads(manifest)))).decode()
    elif change == "zeros":
        arrays[name] = np.zeros(draw(st.integers(1, 2**24)), np.uint8)
    elif change == "copy":
        arrays[draw(st.sampled_from(["x", "../x", "", name + "/x"]))] = arrays[name]
    else:
        arrays[name] = draw(_broken_array(arrays[name].copy()))
    return save(arrays, {"rlpto": manifest})


@st.composite
def _broken_array(draw: DrawFn, array: AnyArray) -> AnyArray:
    """An array with other numbers, or of another type or shape."""
    change = draw(st.sampled_from(["value", "value", "type", "flat", "deep", "empty"]))
    if change == "value" and array.dtype.kind == "f" and array.size:
        array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -1.0, 1e30, 1e300]))
    elif change == "value" and array.dtype.kind in "iu" and array.size:
        array.flat[draw(st.integers(0, array.size - 1))] = np.iinfo(array.dtype).max
    elif change == "type":
        array = np.zeros(array.shape, draw(st.sampled_from(["float16", "int8", "complex64", "bool"])))
    elif change == "flat":
        array = array.ravel()
    elif change == "deep":
        array = array[..., None]
    else:
        array = np.zeros(0)
    return array
