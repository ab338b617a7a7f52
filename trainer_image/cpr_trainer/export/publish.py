"""An export to a URI: a folder of its own for each model, and `current.json`, which names the newest whole one."""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cpr_contract.export import ExportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store, in_parallel, open_store
from cpr_trainer.store.folder import FolderStore
from cprjob_serving.model import ABOUT, CURRENT

_DIGITS = 12


def is_uri(to: str) -> bool:
    """Whether a destination is a URI, and not a folder."""
    return "://" in to


def open_uri(uri: str, store: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Store:
    """Return what `s3://bucket/prefix`, at the endpoint of the job's store, or `file:///folder` names.

    Raises BadSpecError, StoreError.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.path.strip("/"):
        return FolderStore(Path(unquote(parts.path)))
    if parts.scheme != "s3" or not parts.netloc:
        raise BadSpecError(f"Nothing can be exported to {uri}.", "Give s3://bucket/prefix or file:///folder.")
    if urlsplit(store.endpoint).scheme == "file":
        raise BadSpecError(
            f"{uri} needs the endpoint of an S3 store, and the job's store is a folder.", "Give file:///folder."
        )
    return open_store(replace(store, bucket=parts.netloc, prefix=unquote(parts.path)), credentials_dir, ca_file)


def publish(target: Store, folder: Path, request: ExportRequest) -> None:
    """Copy a model to `target`, and name it in `current.json` once all of it is there.

    An export of the same anchor in the same way writes the same files again. Raises StoreError.
    """
    about = json.loads((folder / ABOUT).read_text("utf-8"))
    name = _name(about["job"], about["step"], request)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.name == ABOUT)  # it says that the others are there
    *others, last = files
    in_parallel(lambda path: _put(target, f"{name}/{path.relative_to(folder).as_posix()}", path), others)
    _put(target, f"{name}/{ABOUT}", last)
    document = {
        "model": name,
        "format": request.format,
        "anchor": request.anchor,
        "since": request.since,
        "step": about["step"],
        "samples": about["samples"],
    }
    target.put(CURRENT, (json.dumps(document, indent=2) + "\n").encode())


def _name(job: str, step: int, request: ExportRequest) -> str:
    """Return the name of a model's folder: the same for the same request, and for no other."""
    digest = hashlib.sha256(f"{request.anchor} {request.since}".encode()).hexdigest()[:_DIGITS]
    return f"{job}-{step:09d}-{digest}-{request.format}{'-delta' if request.since else ''}"


def _put(target: Store, key: str, path: Path) -> None:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        target.put(key, view)
