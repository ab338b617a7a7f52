"""The entries of a dynamic table on one core: benchmarks/scripts/dynamic_tables.py.

It holds a table at an occupancy by expiry: each key is new once, renewed some times at the end of its time, and then
expires. Every step looks up all of its keys, plans and commits. It prints the share of insertions that meet two full
buckets, and the keys per second of CPU time: of lookups, of steps and of both together. No vectors take part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS, Entries, Rules
from cpr_trainer.embedding.dynamic.pages import Pages
from cpr_trainer.embedding.dynamic.table import DynamicTables
from cprjob_serving.hashes import U64, mix64


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """new: the share of new keys in a step. full: the share of insertions that met two full buckets.

    lookups_per_s, applied_per_s: keys. keys_per_s: keys that are looked up and then applied.
    """

    new: float
    keys_a_step: int
    occupancy: float
    insertions: int
    full: float
    lookups_per_s: float
    applied_per_s: float
    keys_per_s: float


def generation(number: int, size: int) -> U64:
    """Return the keys that are new in a step, uint64 [size]: different in all steps."""
    return mix64(np.arange(number * size, (number + 1) * size, dtype=np.uint64))


def measure(options: argparse.Namespace, renewals: int) -> Result:
    """Hold the table at its occupancy for as many steps as an entry lives, and measure these."""
    pages = Pages.of(options.rows)
    fresh = options.keys // (renewals + 1)
    ttl_steps = round(options.occupancy * pages.slots / (fresh * (renewals + 1)))
    rules = Rules(ttl_steps=ttl_steps - 1)
    table = DynamicTables(pages, rules, Entries(np.zeros((pages.slots, ENTRY_COLUMNS), np.float32)))
    filling = ttl_steps * (renewals + 1)
    spent, keys_taken, insertions, full = np.zeros(2), 0, 0, 0
    for step in track(range(1, 2 * filling + 1), f"{renewals} renewals", console=Console(stderr=True)):
        # The last renewal is a step before the entry expires.
        ages = [age * (ttl_steps - 1) for age in range(renewals + 1) if age * (ttl_steps - 1) < step]
        keys = np.sort(np.concatenate([generation(step - age, fresh) for age in ages]))
        times = [time.process_time()]
        located = pages.locate(keys, np.zeros(len(keys), np.int64))
        table.find(located, step)
        times.append(time.process_time())
        update = table.plan(step, located)
        table.commit(update)
        times.append(time.process_time())
        if step > filling:
            spent += np.diff(times)
            keys_taken += len(keys)
            insertions += int(update.changes.admitted[0] + update.changes.dropped[0])
            full += int(update.changes.full[0])
    occupancy = int(table.occupancy(step)[0]) / pages.slots
    rates = (*(keys_taken / spent).tolist(), keys_taken / spent.sum())
    return Result(1 / (renewals + 1), len(keys), occupancy, insertions, full / max(insertions, 1), *rates)


def main() -> None:
    """Measure steps with only new keys, and with renewed ones, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000, help="of a step")
    parser.add_argument("--occupancy", type=float, default=0.9)
    parser.add_argument("--renewals", type=int, nargs="+", default=[0, 1, 3], help="of each key, one measurement each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = [measure(options, renewals) for renewals in options.renewals]
    if options.json:
        json.dump([dataclasses.asdict(each) for each in found], sys.stdout)
        return
    table = Table("new keys", "occupancy", "insertions", "two full", "lookups/s", "applied/s", "both/s")
    for each in found:
        rates = (f"{rate / 1e6:.2f} M" for rate in (each.lookups_per_s, each.applied_per_s, each.keys_per_s))
        table.add_row(f"{each.new:.0%}", f"{each.occupancy:.3f}", f"{each.insertions:,}", f"{each.full:.4%}", *rates)
    Console().print(table)


if __name__ == "__main__":
    main()
