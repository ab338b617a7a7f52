"""The roster as a file: missing, half written, older, newer."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import to_json
from cpr_contract.roster import Counters, ShardRoster
from cpr_trainer.runtime import ContractVersionError, RosterFile

ROSTER = ShardRoster(
    contract=CONTRACT_VERSION,
    counters=Counters(roster=5, group=1, generation=1),
    index=0,
    incarnation=1,
    newest_incarnation=1,
    may_restore=True,
    floor_samples=0,
    anchor=None,
    trainers=1,
)


def roster(number: int) -> ShardRoster:
    return replace(ROSTER, counters=replace(ROSTER.counters, roster=number))


def replace_file(path: Path, text: str) -> None:
    """As the kubelet does: a new file under the old name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "roster.json"


def test_a_roster_is_read_once_per_change(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    assert file.poll() is None
    assert file.newest is None
    assert "roster.json" in str(file.problem)
    replace_file(path, to_json(roster(5)))
    assert file.poll() == roster(5)
    assert file.poll() is None
    assert file.problem is None
    replace_file(path, to_json(roster(6)))
    assert file.poll() == file.newest == roster(6)


def test_an_older_roster_and_an_equal_one_are_passed_over(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    for number, seen in ((5, roster(5)), (4, None), (5, None), (6, roster(6))):
        replace_file(path, to_json(roster(number)))
        assert file.poll() == seen
    assert file.newest == roster(6)


@pytest.mark.parametrize(
    "half", [b"", b'{"contract":1,', b'{"contract":1}', b"\xff\xfe\x00", to_json(ROSTER)[:-20].encode()]
)
def test_a_half_written_file_is_read_again(path: Path, half: bytes) -> None:
    file = RosterFile(path, ShardRoster)
    path.write_bytes(half)
    assert file.poll() is None
    assert file.problem
    before = path.stat()
    path.write_text(to_json(ROSTER))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # within one tick of the clock
    assert file.poll() == ROSTER
    assert file.problem is None


def test_a_file_that_vanishes_changes_nothing(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    path.write_text(to_json(ROSTER))
    file.poll()
    path.unlink()
    assert file.poll() is None
    assert file.newest == ROSTER


def test_a_roster_of_a_newer_contract_is_waited_out(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    replace_file(path, to_json(roster(5)))
    file.poll()
    replace_file(path, to_json(replace(roster(6), contract=CONTRACT_VERSION + 1)))
    assert file.poll() is None
    assert file.newest == roster(5)
    assert file.problem is not None
    assert f"contract version {CONTRACT_VERSION + 1}" in file.problem
    replace_file(path, to_json(roster(7)))
    assert (file.poll(), file.problem) == (roster(7), None)


def test_a_roster_of_too_old_a_contract_is_refused(path: Path) -> None:
    path.write_text(to_json(replace(ROSTER, contract=CONTRACT_VERSION - 2)))
    with pytest.raises(ContractVersionError, match="roster"):
        RosterFile(path, ShardRoster).poll()


def test_watching_sees_a_roster_that_comes_later(path: Path) -> None:
    stop, first = threading.Event(), threading.Event()
    seen: list[int] = []

    def watch() -> None:
        for found in RosterFile(path, ShardRoster).watch(stop):
            seen.append(found.counters.roster)
            first.set()
            if found.counters.roster == 7:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    replace_file(path, to_json(roster(5)))
    assert first.wait()
    replace_file(path, to_json(roster(7)))
    watcher.join()
    stop.set()
    watcher.join()
    assert seen == [5, 7]


def test_sent_roster_arrives_before_the_file_and_counts_once(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    file.offer(to_json(roster(6)).encode())
    file.offer(b"{}")
    file.offer(to_json(roster(5)).encode())
    assert file.poll() == file.newest == roster(6)
    assert file.poll() is None
    replace_file(path, to_json(roster(6)))
    assert file.poll() is None
    replace_file(path, to_json(roster(7)))
    assert file.poll() == roster(7)


def test_sent_roster_ends_the_wait_at_once(path: Path) -> None:
    file, stop = RosterFile(path, ShardRoster), threading.Event()
    file.offer(to_json(roster(6)).encode())
    file.wait(60.0)  # returns at once: it was offered before
    assert next(file.watch(stop)) == roster(6)


def test_sent_roster_of_another_contract_is_left_to_the_file(path: Path) -> None:
    file = RosterFile(path, ShardRoster)
    file.offer(to_json(replace(roster(6), contract=CONTRACT_VERSION + 1)).encode())
    assert file.poll() is None
    assert file.newest is None
