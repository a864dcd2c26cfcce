"""Unpacking of gzip, bzip2, xz, lzma and zip data, to no more bytes than allowed. Only this module unpacks."""

from __future__ import annotations

import bz2
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from rlpto.io.errors import RlptoError

_MIB = 2**20
_PIECE_BYTES = 2**16
_LARGEST_WINDOW_BYTES = 128 * _MIB  # of xz and lzma: the file itself states the size, `xz -9` takes 65 MiB
_PADDING = re.compile(rb"\0*")
_UNPACKERS: Mapping[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_LARGEST_WINDOW_BYTES),
    "lzma": lambda: lzma.LZMADecompressor(memlimit=_LARGEST_WINDOW_BYTES),
}
_BEGINS = {
    rb"\x1f\x8b": "gzip", rb"BZh[1-9](?:1AY&SY|\x17rE8P)": "bzip2", rb"\xfd7zXZ\0": "xz", rb"\x5d\0\0": "lzma",
    rb"PK[\x03\x05][\x04\x06]": "zip", rb"\x28\xb5\x2f\xfd": "zstd", rb"7z\xbc\xaf": "7z", rb"Rar!\x1a": "rar",
    rb"\x04\x22\x4d\x18": "lz4", rb"\x1f\x9d": "compress",
}  # fmt: skip


def packing_of(data: bytes) -> str | None:
    """Return the name of the packing by the first bytes of the data, for example `gzip`; None if unknown."""
    return next((name for begin, name in _BEGINS.items() if re.match(begin, data)), None)


def unpack(data: bytes, most: int, place: Path | str, error: type[RlptoError], expected: str) -> bytes:
    """Return the content, of at most `most` bytes, of gzip, bzip2, xz or lzma data of one or more streams.

    Raises `error` in one line, `place` first, if the content is larger, if data are damaged, cut off or followed by
    something else, or if they are packed in another way. Memory stays near `most`, however large the content is.
    """
    name = str(packing_of(data))
    if name not in _UNPACKERS:
        raise error(f"{place}: packed as {name}: unpack it, expected {expected}, or one packed as gzip, bzip2 or xz")
    view, at, size, parts = memoryview(data), 0, 0, []
    while at < len(data):
        unpacker = _UNPACKERS[name]()
        while not unpacker.eof:
            piece = view[at : at + _PIECE_BYTES]
            try:
                parts.append(unpacker.decompress(piece, most - size + 1))
            except (OSError, EOFError, zlib.error, lzma.LZMAError):
                piece = piece[:0]
            if not piece:
                raise error(f"{place}: broken {name} data, expected {expected}, packed as a whole")
            size += len(parts[-1])
            if size > most:
                raise error(f"{place}: more than {most / _MIB:,.4g} MiB unpacked, expected {expected} of at most that")
            at += len(piece)
        padding = _PADDING.match(data, at - len(unpacker.unused_data))
        at = len(data) if padding is None else padding.end()
    return b"".join(parts)


class CheckedZip(zipfile.ZipFile):
    """A zip archive for reading: an entry never unpacks to more bytes than the list of entries states.

    Raises ValueError if two entries have the same name, or an entry is neither stored nor deflated: `zipfile`
    unpacks bzip2 and lzma without any bound.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        infos = self.infolist()
        if len({info.filename for info in infos}) < len(infos):
            raise ValueError("two entries of one name")
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
            raise ValueError("entries are packed in another way than stored or deflated")

    def read(self, name: str | zipfile.ZipInfo, pwd: bytes | None = None) -> bytes:
        """Return the content of an entry. Raises BadZipFile if it is larger or smaller than listed."""
        info = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        with self.open(info, pwd=pwd) as entry:
            found = entry.read(info.file_size + 1)  # without a number it unpacks everything before it cuts the result
        if len(found) != info.file_size:
            raise zipfile.BadZipFile(f"{len(found)} bytes of an entry that is listed with {info.file_size}")
        return found
