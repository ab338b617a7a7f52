"""Clicks that are written into followed data, and the times at which a follower serves changed vectors of their ids."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cprjob_bench.bench_documents import CLICK_USERS, Freshness
from cprjob_serving import Follower
from cprjob_serving.exported import CURRENT
from cprjob_serving.hashes import Floats

#: Writes clicks on items; the number is that of the write, and a seed.
Write = Callable[[Sequence[int], int], None]
_HEADER = "label,user,item\n"
_POLL_S = 0.02
#: The exponent of the backlog's items by frequency.
_SKEW = 1.2
#: Seconds after the last file in which its clicks may still be served, and in which the first model may come.
_LATE_S, _FIRST_S = 60.0, 120.0


def write_clicks(folder: Path, items: Sequence[int], number: int) -> None:
    """Write the file of that number with a click of each item. It appears at once, complete."""
    name = f"clicks-{number:06d}.csv"
    unfinished = folder.parent / f".{name}"
    rows = clicks_on(items, number)
    unfinished.write_text(_HEADER + "".join(f"{label},{user},{item}\n" for label, user, item in rows), "ascii")
    unfinished.replace(folder / name)


def clicks_on(items: Sequence[int], seed: int) -> Iterable[tuple[int, int, int]]:
    """Return a label, a user and the item of each click."""
    generator = np.random.default_rng(seed)
    users, labels = generator.integers(CLICK_USERS, size=len(items)), generator.integers(2, size=len(items))
    return zip(labels.tolist(), users.tolist(), items, strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A click: its time, on the clock of entries, its item, and the item's vector before, float32 [D]."""

    at_s: float
    item: int
    before: Floats


def write_backlog(write: Write, rows: int) -> None:
    """Write clicks, most of them on a few items, as in logs of users."""
    write((np.random.default_rng(0).zipf(_SKEW, size=rows) % rows).tolist(), 0)


def measure(  # noqa: PLR0913, PLR0917 -- the places, and the clicks
    write: Write, chain: str, folder: Path, seconds: float, every_s: float, rows: int
) -> Freshness:
    """Write `rows` clicks on new items every `every_s` seconds, and wait for their vectors.

    Raises TimeoutError if the chain has no model.
    """
    with Follower(chain, folder) as follower:
        _wait_for_model(follower)
        waiting, found = list[_Written](), list[tuple[float, float]]()
        first_s, number, seen = time.time(), 0, follower.sequence
        while (now_s := time.time()) < first_s + seconds or (waiting and now_s < first_s + seconds + _LATE_S):
            if first_s + number * every_s <= now_s < first_s + seconds:
                number += 1
                items = [number * rows + place for place in range(rows)]
                before = _vectors(follower, items)
                write(items, number)
                waiting += [_Written(time.time(), item, before[place]) for place, item in enumerate(items)]
            if follower.sequence != seen:
                seen = follower.sequence
                entry_s = float(json.loads((folder / CURRENT).read_text("utf-8"))["time"])
                served = _vectors(follower, [each.item for each in waiting])
                changed = [(each.before != served[place]).any() for place, each in enumerate(waiting)]
                served_s = time.time()
                pairs = [*zip(waiting, changed, strict=True)]
                found += [(served_s - each.at_s, entry_s - each.at_s) for each, is_new in pairs if is_new]
                waiting = [each for each, is_new in pairs if not is_new]
            time.sleep(_POLL_S)
    return Freshness(number * rows, tuple(served for served, _ in found), tuple(entry for _, entry in found))


def _wait_for_model(follower: Follower) -> None:
    end_s = time.time() + _FIRST_S
    while not follower.sequence:
        if time.time() >= end_s:
            raise TimeoutError(f"no model was published within {_FIRST_S:.0f} s")
        time.sleep(_POLL_S)


def _vectors(follower: Follower, items: Sequence[int]) -> Floats:
    """Return the vectors of items in the newest model, float32 [n, D]."""
    model = follower.model
    columns = {"item": [str(item) for item in items], "user": ["0"] * len(items)}
    found: Floats = model.inputs(columns)["item"]
    return found
