"""The job that a seed draws, and the steps that its trainers take.

Gradients are whole numbers, the optimizer is SGD with rate 1, and first values are multiples of a power of two: so sums
are exact in any order, and a push that is lost, doubled or foreign shows in the bits. Each rank has a row of its own on
every shard, its *tally*: step s adds one bit of its own there, so a shard's rows show which steps they hold. The rows
of one table may be bfloat16, with the same bits whenever a step is applied again. Tallies are of the other one.

Some of the jobs that merge steps have a dynamic table as well (`dynamic_keys.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cpr_contract.choices import Precision
from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.bfloat16 import round_stochastically, rounding_keys, widen
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.embedding.unique_rows import UniqueRows
from cprjob_serving.hashes import U64
from simulation.data_plane.dynamic_keys import SHARE, draw_keys, draw_others, draw_table, universe
from simulation.data_plane.expected_table import ExpectedTable, KeyPush
from support.shard_job import small_job

DIM = 6
#: Bits in a column of a tally: the sum stays far below 2**24 with what a first value brings along.
BITS = 16
MOST_STEPS = DIM * BITS
#: First values are multiples of this.
UNIT = 2.0**-5


@dataclass(frozen=True, eq=False)
class Workload:
    """A job, as a seed draws it. `interval_s` is the time between two cuts, `step_s` that of a step at most.

    `supervised`: trainers have a supervisor. `priority_interval_s`: see `ShardRoster`. `faults`: the only ones, or any
    if empty. `follows`: its data arrives while it trains.
    """

    job: JobSpec
    seed: int
    interval_s: float
    step_s: float
    supervised: bool
    priority_interval_s: float = 0.0
    faults: tuple[str, ...] = ()
    follows: bool = False

    @classmethod
    def draw(cls, seed: int, rng: random.Random) -> Workload:
        """Draw a workload."""
        shards, trainers = rng.choice((1, 2, 3, 3, 4, 5)), rng.choice((1, 2, 2, 3))
        steps = rng.randint(25, MOST_STEPS)
        replays = rng.random() < 0.9
        k = rng.randint(1, min(shards - 1, 3)) if replays and shards > 1 and rng.random() < 0.6 else 0
        job = small_job(Path("unused"), shards=shards, trainers=trainers, rows=(60, 31), dim=DIM)
        sgd = SparseOptimizerSpec("SGD", 1.0)
        half: Precision = "bf16" if random.Random(f"precision of {seed}").random() < 0.4 else "fp32"
        tables = (TableSpec("t0", 60), TableSpec("t1", 31, precision=half))
        batch = 2 * trainers
        job = replace(
            job,
            model=replace(job.model, tables=tables, sparse_optimizer=sgd),
            data=replace(job.data, samples=steps * batch - rng.randint(0, 1), batch_size=batch),
            silence_s=rng.choice((1.5, 3.0)),
            replay_bytes=rng.choice((40_000, 1 << 20, 1 << 20)) if replays else 0,
            parity_shards=k,
            snapshots=replace(job.snapshots, rebase=rng.choice(("Consecutive", "OneShot", "Intermittent"))),
            sparse_updates="PerStep" if random.Random(f"steps of {seed}").random() < 0.7 else "PerPush",
        )
        job = with_dynamic_table(rounded_in_order(job), seed)
        return cls(job, seed, rng.choice((0.2, 0.5, 2.0)), rng.choice((0.03, 0.1, 0.2)), rng.random() < 0.5)

    @cached_property
    def placement(self) -> Placement:
        return Placement.of(self.job.model, self.job.shards)

    @property
    def last_step(self) -> int:
        data = self.job.data
        assert data.samples is not None
        return -(-data.samples // data.batch_size)

    @cached_property
    def seeding(self) -> Seeding:
        return Seeding.of(self.job.model, self.job.data.seed)

    @cached_property
    def tallies(self) -> Ints:
        """The number of the row that tallies each rank on each shard, int64 [S, W]."""
        return np.array([self.numbers_on(shard)[: self.job.trainers] for shard in range(self.job.shards)])

    @cached_property
    def static_rows(self) -> int:
        """The number of rows of static tables. They come first, on each shard as well."""
        return sum(table.rows for table in self.job.model.tables if table.dynamic is None)

    @cached_property
    def static_bands(self) -> int:
        """The number of bands of static tables."""
        return self.placement.table_bands - len(self.job.model.dynamic_tables)

    @cached_property
    def expected_table(self) -> ExpectedTable | None:
        """The job's dynamic table as it has to be, if there is one."""
        return ExpectedTable(self.job, self.seeding, self.keys_on) if self.job.model.dynamic_tables else None

    @cached_property
    def _keys(self) -> U64:
        pages = [len(self.placement.pages(self.static_bands, 0).order) for _ in self.job.model.dynamic_tables]
        return universe(*pages) if pages else np.empty(0, np.uint64)

    @cache  # noqa: B019 -- a workload lives with its cluster
    def numbers_on(self, shard: int) -> Ints:
        """The numbers of a shard's rows of static tables, int64 [n], in the order of their slots."""
        chunks = [chunk for chunk in self.placement.rows_of(shard) if chunk.band < self.static_bands]
        return np.concatenate([self.placement.offsets[chunk.tables] + chunk.rows for chunk in chunks])

    def first_values(self, shard: int) -> Floats:
        """The first values of a shard's rows of static tables, float32 [n, D]."""
        return self.seeding.values(*self.placement.tables_of(self.numbers_on(shard)))

    @cache  # noqa: B019
    def push(self, rank: int, step: int) -> tuple[UniqueRows, Floats]:
        """The rows that a rank changes in a step, and their gradients, float32 [u, D]."""
        rng = np.random.default_rng((self.seed, rank, step))
        numbers = rng.permutation(self.static_rows)[: rng.integers(1, 30)]
        numbers = np.concatenate((np.setdiff1d(numbers, self.tallies), self.tallies[:, rank]))
        rows = self._unique(numbers, draw_keys(rng, self._keys, step) if len(self._keys) else self._keys)
        if self.job.per_step:  # with three trainers the bits depend on the order of sums
            gradients = rng.standard_normal((len(rows), DIM), np.float32)
        else:  # the sum is exact, whatever the order of pushes
            gradients = rng.integers(-3, 4, (len(rows), DIM)).astype(np.float32)
        mine = np.isin(rows.numbers, self.tallies)  # no key is as small
        gradients[mine] = 0.0
        gradients[mine, (step - 1) // BITS] = -(2.0 ** ((step - 1) % BITS))
        return rows, gradients

    @cache  # noqa: B019
    def requested_rows(self, rank: int, step: int) -> UniqueRows:
        """Return the rows that a rank requests in a step: those that it changes, all tallies, and further keys."""
        numbers = self.push(rank, step)[0].numbers
        static = (numbers >= 0) & (numbers < self.static_rows)
        others = np.empty(0, np.uint64)
        if len(self._keys):
            others = draw_others(np.random.default_rng((self.seed, rank, step, 1)), self._keys)
        keys = np.union1d(numbers[~static].view(np.uint64), others)
        return self._unique(np.union1d(numbers[static], self.tallies), keys)

    def static_part(self, rows: UniqueRows, shard: int) -> slice:
        """Return where those of some rows lie that are of static tables on a shard."""
        first = shard * rows.bands
        return slice(rows.bounds[first], rows.bounds[first + self.static_bands])

    def key_part(self, rows: UniqueRows, shard: int) -> slice:
        """Return where those of some rows lie that are keys on a shard."""
        return slice(self.static_part(rows, shard).stop, rows.on_shard(shard).stop)

    def on_shard(self, shard: int, rank: int, step: int) -> tuple[Ints, Floats]:
        """The slots of static tables on a shard that a push changes, int64 [n], and their gradients, float32 [n, D]."""
        rows, gradients = self.push(rank, step)
        part = self.static_part(rows, shard)
        return rows.places[part] - self.placement.starts[shard], gradients[part]

    def keys_on(self, shard: int, rank: int, step: int) -> KeyPush:
        """The keys on a shard in a push, and their gradients."""
        rows, gradients = self.push(rank, step)
        part = self.key_part(rows, shard)
        return rows.numbers[part].view(np.uint64), gradients[part]

    def steps_in(self, sums: Floats) -> set[int]:
        """Return the steps in a tally with this sum of gradients, float32 [D]. Raises AssertionError if there are
        none."""
        found = set[int]()
        for column, value in enumerate(-sums.astype(np.float64)):
            assert value == int(value), f"a tally is {sums}"
            assert 0 <= value < 2**BITS, f"a tally is {sums}: a push was doubled, or taken back"
            found |= {column * BITS + bit + 1 for bit in range(BITS) if int(value) >> bit & 1}
        return found

    def after(self, values: Floats, numbers: Ints, step: int) -> Floats:
        """Return rows of static tables that a step has changed to these values, float32 [k, D].

        Those of bfloat16 are rounded.
        """
        found = values.copy()
        precisions = np.array(self.job.model.table_precisions)[self.placement.tables_of(numbers)[0]]
        half = np.flatnonzero(precisions == "bf16")
        halves = np.empty((len(half), DIM), np.uint16)
        round_stochastically(values[half], rounding_keys(numbers[half], step * MAX_TRAINERS), halves)
        found[half] = widen(halves)
        return found

    def _unique(self, numbers: Ints, keys: U64) -> UniqueRows:
        """Return the rows with these numbers, of static tables, and with these keys."""
        names, places = np.append(numbers, np.sort(keys).view(np.int64)), self.placement.places(numbers)
        if len(keys):
            band, of_keys = self.static_bands, names[len(numbers) :].view(np.uint64)
            shards = self.placement.shards_of_keys(band, of_keys, np.zeros(len(keys), np.int64))
            places = np.append(places, self.placement.cells[shards * self.placement.bands + band])
        order = np.argsort(places, kind="stable")
        return UniqueRows.of(self.placement, places[order], names[order])


def coarse(values: Floats) -> Floats:
    """First values as multiples of `UNIT`."""
    found: Floats = (np.round(values / UNIT) * UNIT).astype(np.float32)
    return found


def rounded_in_order(job: JobSpec) -> JobSpec:
    """Return the job with float32 alone if its pushes have no order: the bits of rounded sums depend on it."""
    if job.per_step or job.trainers == 1:
        return job
    tables = tuple(replace(table, precision="fp32") for table in job.model.tables)
    return replace(job, model=replace(job.model, tables=tables))


def with_dynamic_table(job: JobSpec, seed: int, share: float = SHARE) -> JobSpec:
    """Return the job with the dynamic table that this portion of all seeds has, if it merges steps.

    With such a table a single trainer's steps count as merged.
    """
    tables = tuple(table for table in job.model.tables if table.dynamic is None)
    drawn = draw_table(seed, share) if job.sparse_updates == "PerStep" and job.snapshots.strategy == "Full" else None
    return replace(job, model=replace(job.model, tables=(*tables, drawn) if drawn else tables))


def with_faults(*faults: str, **changes: Any) -> Callable[[Workload], Workload]:
    """Return an alteration: trainers buffer all that no save holds, and only these faults are injected.

    changes: of the job.
    """

    def alter(workload: Workload) -> Workload:
        job = replace(workload.job, **{"replay_bytes": 1 << 20, "parity_shards": 0, **changes})
        data = replace(job.data, batch_size=2 * job.trainers, samples=2 * job.trainers * workload.last_step)
        job = with_dynamic_table(rounded_in_order(replace(job, data=data)), workload.seed)
        return replace(workload, job=job, faults=faults)

    return alter


def following(alter: Callable[[Workload], Workload]) -> Callable[[Workload], Workload]:
    """Return an alteration after which the data of the job arrives while it trains."""
    return lambda workload: replace(alter(workload), follows=True)


def with_keys(alter: Callable[[Workload], Workload]) -> Callable[[Workload], Workload]:
    """Return an alteration after which the job merges steps, and has a dynamic table."""

    def alter_twice(workload: Workload) -> Workload:
        altered = alter(workload)
        job = replace(altered.job, sparse_updates="PerStep")
        return replace(altered, job=with_dynamic_table(job, altered.seed, share=1.0))

    return alter_twice
