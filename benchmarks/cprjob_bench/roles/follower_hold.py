"""How long a follower holds readers in its process: lookups while deltas are applied, and while nothing happens.

The model has a static and a dynamic table. Each delta changes rows of both, and has new and removed keys.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cpr_trainer.publish.target import Target
from cpr_trainer.store.folder import FolderStore
from cprjob_bench.bench_documents import Holds
from cprjob_serving import Follower
from cprjob_serving.chain import Entry
from cprjob_serving.keyed_rows import Default
from cprjob_serving.transform import Feature, Table, Transform

_DIM, _SAMPLES = 64, 64
_STATIC, _DYNAMIC = "tables/users.safetensors", "tables/items.safetensors"
#: Seconds of lookups without an update after each one with an update.
_IDLE_S = 1.0


def measure(folder: Path, model_mib: int, updates: int, changed: float) -> Holds:
    """Publish a model of this size into `folder`, follow it, and look up during `updates` deltas.

    changed: the portion of rows in a delta.
    """
    rows = (model_mib << 20) // (2 * 4 * _DIM)
    made, of_delta = _Chain(folder / "chain", rows), max(int(rows * changed), 10)
    made.publish_base()
    update_s, updating_s, idle_s = list[float](), list[float](), list[float]()
    with _Reader(Follower((folder / "chain").as_uri(), folder / "model")) as reader:
        for _ in range(updates):
            made.publish_delta(of_delta)
            reader.longest_s()
            time.sleep(_IDLE_S)
            idle_s.append(reader.longest_s())
            begun_s = time.perf_counter()
            reader.follower.update()
            update_s.append(time.perf_counter() - begun_s)
            updating_s.append(reader.longest_s())
    return Holds(rows, of_delta, tuple(update_s), tuple(updating_s), tuple(idle_s))


class _Reader:
    """A thread that looks up samples in the newest model of a follower, one batch after the other."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        follower.update()
        self._over, self._lock, self._longest_s = threading.Event(), threading.Lock(), 0.0
        self._thread = threading.Thread(target=self._read, name="reader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.follower.stop()

    def longest_s(self) -> float:
        """Return the longest hold of a lookup since the last call."""
        with self._lock:
            found, self._longest_s = self._longest_s, 0.0
            return found

    def _read(self) -> None:
        generator = np.random.default_rng(2)
        while not self._over.is_set():
            users = generator.integers(self.follower.model.transform.tables[0].rows, size=_SAMPLES).tolist()
            items = generator.integers(2**31, size=_SAMPLES).tolist()
            begun_s, own_s, waited_s, all_s = time.perf_counter(), time.thread_time(), _waited_s(), time.process_time()
            self.follower.model.inputs({"user": users, "item": items})
            own_s = time.thread_time() - own_s
            blocked_s = time.perf_counter() - begun_s - own_s - (_waited_s() - waited_s)
            # A processor that other programs use is no hold: only time counts in which other threads of this one ran.
            held_s = min(blocked_s, time.process_time() - all_s - own_s)
            with self._lock:
                self._longest_s = max(self._longest_s, held_s)


def _waited_s() -> float:
    """Return the seconds for which this thread has been ready to run, and has waited for a processor."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9


class _Chain:
    """Writes a chain of models of one static and one dynamic table of `rows` rows each."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._target, self._scratch, self._rows = (
            Target(FolderStore(folder), "bench", 2),
            folder.parent / "scratch",
            rows,
        )
        self._generator = np.random.default_rng(1)
        self._keys = np.unique(self._generator.integers(2**63, size=rows, dtype=np.uint64))
        default = Default("Random", 1, 1)
        static = Table("users", _STATIC, rows, _DIM, "RowNumber", 0, "DefaultRow")
        dynamic = Table("items", _DYNAMIC, 2 * rows, _DIM, "Dynamic", 7, "DefaultRow", None, default)
        features = (Feature("user", "user", "users"), Feature("item", "item", "items"))
        self._transform = Transform(0, (), (static, dynamic), features, ("label",))

    def publish_base(self) -> None:
        """Write a whole model."""
        static = {"weight": self._vectors(self._rows)}
        self._publish(static, {"keys": self._keys, "weight": self._vectors(len(self._keys))}, is_base=True)

    def publish_delta(self, changed: int) -> None:
        """Write a delta with so many rows of each table, a tenth of them of new keys, and as many removed keys."""
        few, generator = changed // 10, self._generator
        rows = np.sort(generator.choice(self._rows, changed, replace=False)).astype(np.int64)
        removed = np.sort(generator.choice(self._keys, few, replace=False))
        stays = np.setdiff1d(self._keys, removed)
        new = generator.integers(2**63, size=few, dtype=np.uint64)
        keys = np.union1d(generator.choice(stays, changed - few, replace=False), new)
        self._keys = np.union1d(stays, new)
        dynamic = {"keys": keys, "weight": self._vectors(len(keys)), "removed": removed}
        self._publish({"rows": rows, "weight": self._vectors(changed)}, dynamic, is_base=False)

    def _vectors(self, rows: int) -> NDArray[np.float32]:
        return self._generator.random((rows, _DIM), np.float32)

    def _publish(self, static: Mapping[str, Any], dynamic: Mapping[str, Any], *, is_base: bool) -> None:
        chain = self._target.chain()
        number, last = chain.newest + 1, chain.last
        shutil.rmtree(self._scratch, ignore_errors=True)
        (self._scratch / "tables").mkdir(parents=True)
        safetensors.numpy.save_file(dict(static), self._scratch / _STATIC)
        safetensors.numpy.save_file(dict(dynamic), self._scratch / _DYNAMIC)
        (self._scratch / "transform.json").write_text(self._transform.to_json(), "utf-8")
        (self._scratch / "model.json").write_text(json.dumps({"anchor": str(number), "step": number}), "utf-8")
        if not is_base:
            (self._scratch / "delta.json").write_text(json.dumps({"since": str(number - 1), "anchor": str(number)}))
        base = number if is_base or last is None else last.entry.base
        previous = "" if is_base or last is None else last.digest
        entry = Entry(
            number, base, previous, "bench", "bench", str(number), 0, number, number, time.time(), "safetensors"
        )
        self._target.write(entry, self._scratch, None if last is None else last.entry)
