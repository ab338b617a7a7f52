"""Puts the rows that changed (`cprjob export --since`) on top of a model."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from cprjob_serving.model import ABOUT, DELTA, TRANSFORM, tensors
from cprjob_serving.transform import Transform


class DeltaError(Exception):
    """A delta does not fit a model. The message names both."""


def apply_delta(base: Path, delta: Path, to: Path) -> None:
    """Make the folder `to` of the model in `base` and the rows in `delta`: byte for byte what a whole export holds.

    It appears whole or not at all. Raises DeltaError if `delta` does not start at the anchor of `base`, or `to` is
    there; OSError.
    """
    if not (delta / DELTA).is_file() or not (delta / ABOUT).is_file():
        raise DeltaError(f"{delta} holds no whole delta; give a folder that `cprjob export --since` has written")
    if (base / DELTA).is_file() or not (base / ABOUT).is_file():
        raise DeltaError(f"{base} holds no whole model; give a folder that an export without --since has written")
    since = json.loads((delta / DELTA).read_text("utf-8"))["since"]
    anchor = json.loads((base / ABOUT).read_text("utf-8"))["anchor"]
    if since != anchor:
        raise DeltaError(
            f"{delta} has the rows since {since}, but {base} is of {anchor}; apply what lies between first"
        )
    if to.exists():
        raise DeltaError(f"{to} is there already; name a new folder")
    transform = Transform.of_json((delta / TRANSFORM).read_text("utf-8"))
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as scratch:
        made = Path(scratch, "model")
        shutil.copytree(delta, made, ignore=shutil.ignore_patterns(DELTA, "tables"))
        (made / "tables").mkdir()
        for table in transform.tables:
            shutil.copyfile(base / table.file, made / table.file)
            changed = tensors(delta / table.file)
            if len(changed["rows"]):
                tensors(made / table.file, write=True)["weight"][changed["rows"]] = changed["weight"]
        os.rename(made, to)  # noqa: PTH104 -- fails if a folder with files has come there meanwhile
