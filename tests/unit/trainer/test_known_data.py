"""The leader's looks and the group: data ends once all trainers wait for it, and not while a rollback repeats steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_contract.spec import FollowSpec
from cpr_trainer.data.reader import TableDataset
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.followed_data import FollowedData, LookThread
from cpr_trainer.trainer.known_data import KnownData
from cpr_trainer.trainer.status import StatusPublisher
from support.file_folder import Folder
from support.followed_files import BATCH, DATA, look, looks_of
from support.memory_store import MemoryStore


def test_data_does_not_end_while_a_rollback_repeats_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that come meanwhile are trained, although the job is to finish once it is idle."""
    monkeypatch.setattr(TableDataset, "replace_files", lambda *_: None)
    data, folder, store = replace(DATA, follow=FollowSpec(1.0, idle="Finish")), Folder(), MemoryStore()
    looks = looks_of(store, folder, data)
    folder.write("a", 2 * BATCH)
    look(looks, waits=False)
    thread = LookThread(looks)
    thread.newest = looks.followed.number
    monkeypatch.setattr(LookThread, "start", lambda _: None)
    monkeypatch.setattr("cpr_trainer.trainer.known_data.LookThread", lambda _: thread)
    monkeypatch.setattr("cpr_trainer.trainer.known_data.DataLooks.of", lambda *_: looks)
    setup: Any = SimpleNamespace(
        followed=FollowedData(data, "uid", store),
        dataset=object.__new__(TableDataset),
        job=None,
        store=store,
        files=None,
    )
    counters = Counters(1, 1, 1)
    report = TrainerReport(1, "job", 0, 1, counters, TrainerState.TRAINING, 0, 0, 0, 0, (), (), (), None)
    known = KnownData(setup, cast(Exchange, SimpleNamespace(end_data=int)), StatusPublisher(report), lambda: None)
    known.look(cast(Any, None))
    group = Group()
    known.on_group_formed(group)
    assert not known.grows(group, is_saved=True)
    known.on_group_formed(Group())
    thread.look()
    assert not looks.followed.order.has_ended
    assert not known.grows(group, is_saved=True)
    thread.look()
    assert looks.followed.order.has_ended
