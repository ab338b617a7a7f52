"""`Follower`: keeps a copy of the newest published model of a job in a folder of this machine.

The folder has a whole model in a folder of its own, and `current.json` with its name, as an export to a URI has. It is
replaced at once: a reader that opened a model keeps its files, also after they are deleted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from cprjob_serving.chain import ChainError, Entry, Found, newest_entry, way_to
from cprjob_serving.exported import ABOUT, CURRENT, DeltaError, Model, NoModelError, apply_delta
from cprjob_serving.sources import Source, SourceError, fetch, read, source_of

_LOG = logging.getLogger(__name__)
_LOCK, _SCRATCH, _MODEL = "lock", ".scratch", "model-"


class Follower:
    """A copy, in `folder`, of the newest model of the chain at `uri`. `model` is that model, opened.

    `update` looks once. Between `start` and `stop`, or in a `with` block, a thread looks every `every_s` seconds. An
    update holds no reader: it prepares another folder, opens the model, and then replaces one reference.
    """

    def __init__(self, uri: str, folder: Path, *, every_s: float = 1.0, source: Source | None = None) -> None:
        """Take the folder. Raises SourceError for a URI that cannot be followed, or a folder in use; OSError."""
        self._source = source or source_of(uri)
        self._uri, self._folder, self._every_s = uri, folder, every_s
        self._lock = _locked(folder)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._model: Model | None = None
        self._have: tuple[int, str] | None = None
        self._open_current()

    @property
    def model(self) -> Model:
        """The newest model so far, which never changes: keep it while one answer needs it.

        Raises NoModelError.
        """
        if self._model is None:
            raise NoModelError(f"{self._uri} has no published model yet")
        return self._model

    @property
    def sequence(self) -> int:
        """The place of the model in its chain; 0 without one."""
        return self._have[0] if self._have else 0

    def update(self) -> bool:
        """Take the newest model; return whether it is another one. Raises ChainError, SourceError, OSError."""

        def get(key: str) -> bytes | None:
            return read(self._source, key)

        newest = newest_entry(get, self.sequence)
        if newest is None or newest.entry.sequence < self.sequence or self._have == _name_of(newest):
            return False
        have = self._have if self._model is not None and (self._model.folder / ABOUT).is_file() else None
        for found in way_to(newest, have, get):
            self._take(found, last=found is newest)
        return True

    def start(self) -> None:
        """Take the newest model if there is one, and begin to look for others."""
        self._look()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and release the folder. The model stays."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._lock.close()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop."""
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        try:
            if self.update():
                _LOG.info("model %d of %s is of step %s", self.sequence, self._uri, self.model.about["step"])
        except (ChainError, SourceError, DeltaError, OSError) as error:
            _LOG.warning("%s is not followed now: %s", self._uri, error)

    def _take(self, found: Found, *, last: bool) -> None:
        """Make the folder of an entry's model, from the one before it if it is a delta; name it if it is the last."""
        entry, name = found.entry, _folder_name(found)
        to = self._folder / name
        if not (to / ABOUT).is_file():
            scratch = self._folder / _SCRATCH
            shutil.rmtree(scratch, ignore_errors=True)
            _download(self._source, entry, scratch)
            if entry.is_base:
                shutil.rmtree(to, ignore_errors=True)
                scratch.rename(to)
            else:
                before = self._folder / f"{_MODEL}{entry.sequence - 1:012d}-{entry.previous[:12]}"
                apply_delta(before, scratch, to)
                shutil.rmtree(scratch)
        if last:
            self._name(found, name)

    def _name(self, found: Found, name: str) -> None:
        model = Model.open(self._folder / name)
        entry = found.entry
        document = {
            "model": name,
            "sequence": entry.sequence,
            "digest": found.digest,
            "anchor": entry.anchor,
            "step": entry.step,
            "time": entry.time_s,
        }
        unfinished = self._folder / f".{CURRENT}"
        unfinished.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        unfinished.replace(self._folder / CURRENT)
        before, self._model, self._have = self._model, model, (entry.sequence, found.digest)
        if before is None:
            self._delete_all_but(name)
        else:
            # A process may have read the earlier name, and not have opened its files yet.
            self._delete_all_but(name, before.folder.name)
            before.release_pages()  # a reader that has taken it keeps its mapped files

    def _open_current(self) -> None:
        """Open the model that an earlier process has left in the folder, if it is whole, and delete all others."""
        try:
            document = json.loads((self._folder / CURRENT).read_text("utf-8"))
            name, have = str(document["model"]), (int(document["sequence"]), str(document["digest"]))
            self._model, self._have = Model.open(self._folder / name), have
        except (FileNotFoundError, NoModelError, ValueError, KeyError):
            name = ""
        self._delete_all_but(name)

    def _delete_all_but(self, *names: str) -> None:
        """Delete the folders of other models, and of those that a process did not complete."""
        for pattern in (f"{_MODEL}*", f".{_MODEL}*"):
            for path in self._folder.glob(pattern):
                if path.name not in names:
                    shutil.rmtree(path, ignore_errors=True)


def _name_of(found: Found) -> tuple[int, str]:
    return found.entry.sequence, found.digest


def _folder_name(found: Found) -> str:
    return f"{_MODEL}{found.entry.sequence:012d}-{found.digest[:12]}"


def _download(source: Source, entry: Entry, to: Path) -> None:
    """Write the files of an entry, `model.json` last. Raises ChainError, SourceError, OSError."""
    for each in sorted(entry.files, key=lambda file: (file.path == ABOUT, file.path)):
        fetch(source, each.key, to / each.path, each.size_bytes, each.sha256)


def _locked(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / _LOCK).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise SourceError(f"another process follows into {folder}; give each one a folder of its own") from None
    return lock
