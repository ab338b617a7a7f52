"""Tables of Delta Lake, Apache Hudi and Apache Iceberg: a log beside their files lists which of the files are valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from cpr_trainer.errors import DataError

_KINDS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
_LOG = re.compile(r"(.*/|)(?:(_delta_log|\.hoodie)/.*|(metadata)/[^/]+\.metadata\.json(?:\.gz)?)")
#: Prefixes of a log's keys. Names of Iceberg's metadata begin with a version, as v3 or 00003.
_PREFIXES = ("_delta_log/", ".hoodie/", "metadata/v", "metadata/0")

#: Returns the first key that begins with a prefix, None without one.
FirstKey = Callable[[str], str | None]


def check_no_table(uri: str, files: Sequence[str], keys: Iterable[str], root: str, first_key: FirstKey) -> None:
    """Raise DataError if one of `files`, which `uri` names, is one of a table whose log lists its valid files.

    `keys` are all keys below the folder `root`; `first_key` looks for logs in the folders above it.
    """
    above = (first_key(folder + prefix) for folder in _folders_above(root) for prefix in _PREFIXES)
    found = (_LOG.fullmatch(key) for key in (*keys, *above) if key is not None)
    for table, log in sorted({(each[1], each[2] or each[3]) for each in found if each}):
        if any(file.startswith(table) for file in files):
            raise DataError(
                f"{uri} names files of the {_KINDS[log]} table in {table or '/'}. Only the table's log ({log}) lists "
                "which of its files are valid: others hold rows that were deleted, or that stand in a newer file too.",
                "Copy the table's rows into Parquet files outside of it and give their folder as data.uri, or read the "
                "table by code of your own (data.format: Custom).",
            )


def _folders_above(root: str) -> Iterator[str]:
    """Yield the folders in which `root` lies, each with its slash; the root of a bucket is the empty key."""
    if root and not root.startswith("/"):
        yield ""
    yield from (root[: place + 1] for place, letter in enumerate(root[:-1]) if letter == "/")
