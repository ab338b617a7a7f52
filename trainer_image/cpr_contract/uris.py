"""URIs of files and folders: the one conversion from `file://` to a path. `Path.as_uri` is its inverse."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

FILE = "file://"


def is_file_uri(uri: str) -> bool:
    """Return whether a URI names a file or a folder of this machine."""
    return uri.startswith(FILE)


def path_of(uri: str) -> Path:
    """Return the path of a `file://` URI, with percent-encoding decoded.

    A `#` or `?` is part of the path: files have no fragment or query, but names of folders contain these characters.
    """
    return Path(unquote(uri.removeprefix(FILE).removeprefix("localhost")))
