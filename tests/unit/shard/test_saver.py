from __future__ import annotations

import random
import threading
from queue import SimpleQueue

import pytest
import torch

from cpr_trainer.shard.saver import Committed, Copy, SaveFailed, Saver
from cpr_trainer.snapshot import ShardMeta
from cpr_trainer.store import StoreFullError
from support.memory_store import MemoryStore

WAIT_S = 20.0
News = SimpleQueue[Committed | SaveFailed]


def copy_of(step: int, generation: int = 1) -> Copy:
    meta = ShardMeta("0b5c", generation, 0, 1, "Anchor", step, step * 10, "layout", (step,), ())
    return Copy(meta, torch.full((8, 4), float(step)), None)


def test_a_copy_is_committed_and_told() -> None:
    store, news = MemoryStore(), News()
    saver = Saver(store, news.put, random.Random(1))
    saver.submit(copy_of(3))
    told = news.get(timeout=WAIT_S)
    assert isinstance(told, Committed)
    assert (told.generation, told.save.step, told.save.samples) == (1, 3, 30)
    assert told.save.key in store.objects
    saver.close()


def test_a_failed_save_is_told_and_tried_again() -> None:
    failures = iter(range(2))

    def full(_key: str) -> None:
        if next(failures, None) is not None:
            raise StoreFullError("No room.", "Make room.")

    news = News()
    saver = Saver(MemoryStore(full), news.put, random.Random(1))
    saver.submit(copy_of(3))
    told = [news.get(timeout=WAIT_S) for _ in range(3)]
    assert [type(one) for one in told] == [SaveFailed, SaveFailed, Committed]
    assert isinstance(told[0], SaveFailed)
    assert told[0].problem.reason == "StoreFull"
    saver.close()


@pytest.mark.parametrize("discard", [False, True])
def test_a_newer_copy_or_a_rollback_replaces_one_that_cannot_be_saved(*, discard: bool) -> None:
    def full(key: str) -> None:
        if "step-000000003" in key:
            raise StoreFullError("No room.", "Make room.")

    news = News()
    saver = Saver(MemoryStore(full), news.put, random.Random(1))
    saver.submit(copy_of(3))
    assert isinstance(news.get(timeout=WAIT_S), SaveFailed)
    assert not saver.idle
    if discard:
        saver.discard()
    saver.submit(copy_of(6))
    while not isinstance(told := news.get(timeout=WAIT_S), Committed):
        pass
    assert told.save.step == 6
    saver.close()


def test_it_is_busy_until_the_commit() -> None:
    gate, started, news = threading.Event(), threading.Event(), News()

    def wait(_key: str) -> None:
        started.set()
        assert gate.wait(WAIT_S)

    saver = Saver(MemoryStore(wait), news.put, random.Random(1))
    assert saver.idle
    saver.submit(copy_of(3))
    assert started.wait(WAIT_S)
    saver.submit(copy_of(6))
    assert not saver.idle
    gate.set()
    told = [news.get(timeout=WAIT_S) for _ in range(2)]
    assert [one.save.step for one in told if isinstance(one, Committed)] == [3, 6]
    saver.close()
