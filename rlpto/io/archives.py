"""Zip archives from untrusted sources: an entry never unpacks to more bytes than the list of entries states."""

from __future__ import annotations

import zipfile
from typing import IO


class CheckedZip(zipfile.ZipFile):
    """A zip archive for reading. Raises ValueError if two entries have the same name, or an entry is neither stored nor
    deflated: `zipfile` unpacks bzip2 and lzma without any bound."""

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
