"""Probes in the product during a run: the services of processes, rare states, and crash points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.parts import rows_per_part
from cpr_trainer.checkpoint.write.writer import WriterThread
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.capture import Capture
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.embedding.dynamic.table import Update
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.exchange.ring import Ring
from cpr_trainer.parity.parity_server import ParityStore
from cpr_trainer.parity.rebuild import RemoteStripe, rebuild
from cpr_trainer.shard.lifecycle import Lifecycle
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.server import Server
from cpr_trainer.shard.service import Service
from simulation.data_plane.clock import Killed, Process
from simulation.data_plane.threads import Event
from simulation.data_plane.workload import coarse
from support.killed_lines import killed_at

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster

#: Functions in which a server may be killed between two lines, and the number of lines that may precede the kill.
_FILES = (
    "embedding/arena.py",
    "embedding/buffer.py",
    "dynamic/rows.py",
    "dynamic/table.py",
    "embedding/segments.py",
    "shard/service.py",
    "shard/steps.py",
    "shard/resume.py",
    "shard/lifecycle.py",
    "write/checkpointer.py",
    "parity/parity_server.py",
    "parity/journal.py",
)
MOST_LINES = 250
_ROW_BYTES = 24

Call = Callable[..., Any]


@contextmanager
def probes_installed(cluster: Cluster) -> Iterator[None]:
    """Install all probes. Sizes shrink, too: saves have several parts, captures several blocks, and so on.

    Parity of the thousands of slots of a dynamic table travels in larger pieces.
    """
    watch, rng = _Probes(cluster), cluster.rng
    many = cluster.workload.expected_table is not None
    replaced: list[tuple[Any, str, Any]] = [
        (owner, name, _around(vars(owner)[name], wrapper)) for owner, name, wrapper in watch.wrappers()
    ]
    replaced += [
        (_module_of(rows_per_part), "_SMALLEST", 30 * _ROW_BYTES),
        (_module_of(Capture), "_BLOCK_BYTES", 7 * _ROW_BYTES),
        (_module_of(Arena), "_SMALLEST_LOG_BYTES", rng.choice((6 * _ROW_BYTES, 8 << 20))),
        (_module_of(rebuild), "_PIECE_BYTES", (300 if many else 9) * _ROW_BYTES),
        (_module_of(Redundancy), "FLUSH_BYTES", rng.choice((20_000 if many else 600, 8 << 20))),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in replaced:
            patch.setattr(owner, name, value)
        yield


class _Probes:
    """Wrappers of the product's calls. Each method gets the call, and its arguments."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._probes = cluster.probes

    def wrappers(self) -> list[tuple[type, str, Call]]:
        return [
            (Lifecycle, "__init__", self._lifecycle),
            (Lifecycle, "cut", self._cut),
            (Lifecycle, "tick", self._at_some_line),
            (Lifecycle, "_on_given_up", self._given_up),
            (Lifecycle, "_serve", self._serve),
            (Redundancy, "__init__", self._redundancy),
            (Service, "_account", self._account),
            (Service, "retry", self._retry),
            (Server, "_on_frame", self._at_some_line),
            (Arena, "reapply_last_push", self._reapply_last_push),
            (Ring, "take", self._take),
            (RemoteStripe, "member", self._member),
            (ParityStore, "undo", self._undo),
            (WriterThread, "submit", self._submit),
            (Seeding, "values", self._first_values),
            (DynamicRows, "note", self._note_step),
        ]

    @property
    def _me(self) -> Process:
        return self._cluster.scheduler.task.process

    def _catching_up(self) -> int:
        services = self._cluster.serving_services()
        return sum(each.progress is not None and not each.progress.replay_barrier.open for each in services)

    def _lifecycle(self, call: Call, lifecycle: Lifecycle, *arguments: Any) -> None:
        call(lifecycle, *arguments)
        self._cluster.services[self._me] = lifecycle._service

    def _redundancy(self, call: Call, redundancy: Redundancy, *arguments: Any) -> None:
        call(redundancy, *arguments)
        self._cluster.redundancies[self._me] = redundancy

    def _reapply_last_push(self, call: Call, arena: Arena) -> None:
        self._probes["the last push was reapplied"] += 1
        call(arena)

    def _cut(self, call: Call, lifecycle: Lifecycle) -> None:
        self._probes["a cut was taken while a shard caught up"] += self._catching_up() > 0
        call(lifecycle)

    def _account(self, call: Call, service: Service, progress: Any, header: Any) -> None:
        if progress.replay_barrier.replays(header.rank, header.step):
            self._probes["a push was replayed"] += 1
            self._probes["a push was replayed while a cut was announced"] += progress.cuts.pending > 0
            self._probes["two shards caught up at once"] += self._catching_up() > 1
        call(service, progress, header)

    def _take(self, call: Call, ring: Ring, size_bytes: int, step: int) -> Any:
        block = call(ring, size_bytes, step)
        self._probes["memory for pushes was full"] += block is None
        return block

    def _member(self, call: Call, stripe: RemoteStripe, *arguments: Any) -> Any:
        image = call(stripe, *arguments)
        self._probes["rows of a stripe had to be asked for again"] += image is None
        return image

    def _undo(self, call: Call, store: ParityStore, part: int, moment: Any) -> bool:
        point = store.position(part).point
        found: bool = call(store, part, moment)
        self._probes["a holder undid a flush"] += store.position(part).point != point
        return found

    def _given_up(self, call: Call, lifecycle: Lifecycle, event: Any) -> None:
        self._probes[f"a save was given up: {event.problem.reason}"] += 1
        call(lifecycle, event)

    def _serve(self, call: Call, lifecycle: Lifecycle, restored: Any) -> None:
        source = "parity" if restored.rebuilt else "a save" if restored.save else "first values"
        self._probes[f"rows came from {source}"] += 1
        call(lifecycle, restored)

    def _retry(self, call: Call, service: Service) -> None:
        self._probes["a push waited for a save"] += service.push_waits
        call(service)

    def _submit(self, call: Call, writer: WriterThread, save: Any) -> None:
        if save is not None and not save.may_commit.is_set():  # its class was made before there was a cluster
            object.__setattr__(save, "may_commit", Event(self._cluster.scheduler))
        call(writer, save)

    def _first_values(self, call: Call, seeding: Seeding, tables: Ints, rows: Ints) -> Floats:
        """First values of static tables are coarse. No call is for both kinds of tables."""
        found: Floats = call(seeding, tables, rows)
        of_keys = len(tables) and self._cluster.workload.job.model.tables[int(tables[0])].dynamic
        return found if of_keys else coarse(found)

    def _note_step(self, call: Call, band: DynamicRows, update: Update) -> None:
        changes = update.changes
        self._probes["a key was evicted"] += int(changes.evicted.sum())
        self._probes["a key took the slot of an expired one"] += int(changes.expired.sum())
        self._probes["a key was counted"] += int(changes.waiting.sum())
        self._probes["a gradient was dropped, because all slots were pinned"] += int(changes.dropped.sum())
        call(band, update)

    def _at_some_line(self, call: Call, *arguments: Any) -> None:
        """Kill the process that runs before one of the next lines, if that is to be."""
        cluster, process = self._cluster, self._me
        if not (line := cluster.armed.get(process, 0)):
            call(*arguments)
        elif killed_at(line, lambda: call(*arguments), *_FILES):
            del cluster.armed[process]
            self._probes["a server was killed between two lines"] += 1
            cluster.scheduler.kill(process)
            raise Killed
        else:
            cluster.armed[process] = cluster.rng.randint(1, MOST_LINES)


def _around(call: Call, wrapper: Call) -> Call:
    """Return a method that is `wrapper` with `call` as its first argument."""

    def method(*arguments: Any) -> Any:
        return wrapper(call, *arguments)

    return method


def _module_of(thing: Any) -> Any:
    return sys.modules[thing.__module__]
