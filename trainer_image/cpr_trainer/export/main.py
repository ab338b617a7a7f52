"""`python -m cpr_trainer export`: writes the model of an anchor into a folder, to stdout as an archive, or to a URI."""

from __future__ import annotations

import hashlib
import json
import mmap
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from cpr_contract.file_uris import is_file_uri, path_of
from cpr_contract.requests import ExportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.export.model_folder import export_model
from cpr_trainer.runtime import BadSpecError, read_job, store_access
from cpr_trainer.store import Store, in_parallel, open_store
from cpr_trainer.store.folder import FolderStore
from cprjob_serving.exported import ABOUT, CURRENT

#: The destination that stands for the standard output.
STREAM = "-"
_DIGITS = 12


def run(environ: Mapping[str, str], request: ExportRequest, to: str, stream: BinaryIO) -> None:
    """Export the model of the job and the store in `environ`; to `stream` if `to` is `-`. Raises TrainerError."""
    job = read_job(environ)
    access = store_access(environ)
    store = open_store(job.snapshots.store, *access)
    if to != STREAM and "://" not in to:
        export_model(store, job, request, Path(to))
        return
    target = None if to == STREAM else open_uri(to, job.snapshots.store, *access)
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        folder = Path(scratch)
        export_model(store, job, request, folder)
        if target is not None:
            publish(target, folder, request)
            return
        # An archive needs the size of each file before its content; model.json marks the others as complete.
        names = sorted(path.name for path in folder.iterdir() if path.name != ABOUT)
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for name in (*names, ABOUT):
                archive.add(folder / name, arcname=name)
        stream.flush()


def open_uri(uri: str, store: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Store:
    """Return the store of `s3://bucket/prefix`, at the endpoint of the job's store, or of `file:///folder`.

    Raises BadSpecError, StoreError.
    """
    if is_file_uri(uri) and path_of(uri).is_absolute() and path_of(uri) != Path("/"):
        return FolderStore(path_of(uri))
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise BadSpecError(f"Nothing can be exported to {uri}.", "Give s3://bucket/prefix or file:///folder.")
    if is_file_uri(store.endpoint):
        raise BadSpecError(
            f"{uri} needs the endpoint of an S3 store, and the job's store is a folder.", "Give file:///folder."
        )
    return open_store(replace(store, bucket=parts.netloc, prefix=unquote(parts.path)), credentials_dir, ca_file)


def publish(target: Store, folder: Path, request: ExportRequest) -> None:
    """Copy a model to a folder of its own in `target`, then name it in `current.json`.

    The same export of the same anchor writes the same files again. Raises StoreError.
    """
    about = json.loads((folder / ABOUT).read_text("utf-8"))
    digest = hashlib.sha256(f"{request.anchor} {request.since}".encode()).hexdigest()[:_DIGITS]
    name = f"{about['job']}-{about['step']:09d}-{digest}-{request.format}{'-delta' if request.since else ''}"
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / ABOUT]
    in_parallel(lambda path: _put(target, f"{name}/{path.relative_to(folder).as_posix()}", path), sorted(files))
    _put(target, f"{name}/{ABOUT}", folder / ABOUT)  # It marks the others as complete.
    document = {
        "model": name,
        "format": request.format,
        "anchor": request.anchor,
        "since": request.since,
        "step": about["step"],
        "samples": about["samples"],
    }
    target.put(CURRENT, (json.dumps(document, indent=2) + "\n").encode())


def _put(target: Store, key: str, path: Path) -> None:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        target.put(key, view)
