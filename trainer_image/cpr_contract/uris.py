"""URIs of files and folders: the one rule by which `file://` becomes a path. `Path.as_uri` is the way back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

FILE = "file://"


def is_file_uri(uri: str) -> bool:
    """Return whether a URI names a file or a folder of this machine."""
    return uri.startswith(FILE)


def path_of(uri: str) -> Path:
    """Return the path that a `file://` URI names, with percent-encoding taken away.

    A `#` or `?` is part of the path: no file has a fragment or a query, and names of folders have these characters.
    """
    return Path(unquote(uri.removeprefix(FILE).removeprefix("localhost")))
