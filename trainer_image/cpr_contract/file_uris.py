"""URIs of files and folders, with the one conversion from `file://` to a path; its inverse is `Path.as_uri`."""

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


def page_url(host: str, port: int, page: str) -> str:
    """Return the URL of a page, which begins with a slash, on a pod's HTTP port. IPv6 has no brackets in `host`."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{page}"
