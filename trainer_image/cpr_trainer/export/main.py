"""`python -m cpr_trainer export`: writes the model of an anchor into a folder, to stdout as an archive, or to a URI."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from cpr_contract import env
from cpr_contract.export import ExportRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.export.folder import export_model
from cpr_trainer.export.publish import is_uri, open_uri, publish
from cpr_trainer.runtime import optional_path, read_job
from cpr_trainer.store import Store, open_store
from cprjob_serving.model import ABOUT

#: In the place of a folder: the standard output.
STREAM = "-"


def run(environ: Mapping[str, str], request: ExportRequest, to: str, stream: BinaryIO) -> None:
    """Export by the job and the store that the environment names; to `stream` if `to` is `-`. Raises TrainerError."""
    job = read_job(environ)
    access = optional_path(environ, env.CREDENTIALS_DIR), optional_path(environ, env.CA_FILE)
    store = open_store(job.snapshots.store, *access)
    if is_uri(to):
        target = open_uri(to, job.snapshots.store, *access)
        with tempfile.TemporaryDirectory(prefix="model-") as scratch:
            export_model(store, job, request, Path(scratch))
            publish(target, Path(scratch), request)
    elif to == STREAM:
        stream_model(store, job, request, stream)
    else:
        export_model(store, job, request, Path(to))


def stream_model(store: Store, job: JobSpec, request: ExportRequest, stream: BinaryIO) -> None:
    """Write the model of an anchor as a tar archive, model.json last. Raises as `export_model`.

    All files are made first, in the folder for temporary files, because an archive begins each with its size.
    """
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        folder = Path(scratch)
        export_model(store, job, request, folder)
        names = sorted(path.name for path in folder.iterdir() if path.name != ABOUT)
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for name in (*names, ABOUT):
                archive.add(folder / name, arcname=name)
        stream.flush()
