"""Where the bench saves: a folder that is deleted afterwards, or a place in a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cpr_operator.cli.console import OptionError

_SPECIMENS = "file:///folder, or s3://bucket/prefix with --endpoint http[s]://host:port"


@contextmanager
def bench_store(uri: str | None, endpoint: str | None) -> Iterator[dict[str, Any]]:
    """The store of a URI in the form of `snapshots.store`; without a URI, a temporary folder.

    Raises OptionError.
    """
    place = urlsplit(uri or "")
    if place.scheme == "s3":
        if not endpoint or not place.netloc:
            raise OptionError(f"--store {uri}: use {_SPECIMENS}")
        yield {"endpoint": endpoint, "bucket": place.netloc, "prefix": place.path.strip("/")}
        return
    if place.scheme not in {"", "file"} or (uri and not place.path) or endpoint:
        raise OptionError(f"--store {uri}: use {_SPECIMENS}")
    parent = Path(unquote(place.path)) if uri else None
    if parent is not None and not parent.is_dir():
        raise OptionError(f"--store {uri}: the folder {parent} does not exist")
    with tempfile.TemporaryDirectory(prefix="cprjob-bench-", dir=parent) as folder:
        yield {"endpoint": Path(folder).resolve().as_uri(), "bucket": "saves"}
