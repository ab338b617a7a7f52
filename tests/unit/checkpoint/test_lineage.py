"""The saves that a new incarnation may restore: every case of the protocol, as a table."""

from __future__ import annotations

from typing import Literal

import pytest

from cpr_contract.manifests import MANIFEST, ManifestRef, RestoreRecord, incarnation_prefix, step_folder
from cpr_trainer.checkpoint.format.keys import SaveName, parse_save, shard_folder
from cpr_trainer.checkpoint.restore.lineage import dense_lineage, shard_lineage

JOB, GENERATION, INDEX = "uid", 2, 3

#: One save as a test writes it: (incarnation, step) at a cut, or with a kind.
Short = tuple[int, int] | tuple[int, int, Literal["Flush", "Priority"]]


def save(short: Short) -> SaveName:
    kind = short[2] if len(short) > 2 else "Anchor"
    folder = f"{incarnation_prefix(JOB, GENERATION, INDEX, short[0])}/{step_folder(short[1], kind)}/"
    return SaveName(folder, short[0], short[1], kind)


def ref(short: Short) -> ManifestRef:
    return ManifestRef(save(short).manifest, "digest")


def restore_record(incarnation: int, parent: Short | None, *replayed: Short) -> RestoreRecord:
    return RestoreRecord(
        contract=1,
        job_uid=JOB,
        generation=GENERATION,
        index=INDEX,
        incarnation=incarnation,
        parent_incarnation=parent[0] if parent else None,
        parent=ref(parent) if parent else None,
        step=parent[1] if parent else 0,
        samples=0,
        replayed=tuple(ref(short) for short in replayed),
    )


CASES: dict[str, tuple[dict[int, Short | None], list[Short], int, list[Short]]] = {
    # case: what each incarnation restored; saves in the store; who asks; what it may restore, newest first
    "no incarnation served yet": ({}, [], 1, []),
    "the first died before a save": ({1: None}, [], 2, []),
    "saves of the predecessor, newest first": ({1: None}, [(1, 10), (1, 20), (1, 30)], 2, [(1, 30), (1, 20), (1, 10)]),
    "a flush is newer than the cut of its step": (
        {1: None},
        [(1, 20, "Flush"), (1, 20)],
        2,
        [(1, 20, "Flush"), (1, 20)],
    ),
    "down the line, each up to the save that was chosen": (
        {1: None, 2: (1, 20)},
        [(1, 10), (1, 20), (2, 30), (2, 40)],
        3,
        [(2, 40), (2, 30), (1, 20), (1, 10)],
    ),
    "a late save of one whose successor has chosen": (
        {1: None, 2: (1, 20)},
        [(1, 10), (1, 20), (1, 30), (2, 25)],
        3,
        [(2, 25), (1, 20), (1, 10)],
    ),
    "a late flush at the very step that was chosen": (
        {1: None, 2: (1, 20)},
        [(1, 20), (1, 20, "Flush")],
        3,
        [(1, 20)],
    ),
    "a late save, though the successor died before any of its own": (
        {1: None, 2: (1, 20)},
        [(1, 20), (1, 30)],
        3,
        [(1, 20)],
    ),
    "the successor started from the anchor: nothing of the first": ({1: None, 2: None}, [(1, 10)], 3, []),
    "an incarnation that never served blocks no other": ({1: None, 3: (1, 10)}, [(1, 10), (2, 20)], 4, [(1, 10)]),
    "one that never served has no saves": ({1: None}, [(1, 10), (2, 20)], 3, [(1, 10)]),
    "a jump over an incarnation": (
        {1: None, 2: (1, 10), 3: (1, 10)},
        [(1, 10), (2, 20), (3, 15)],
        4,
        [(3, 15), (1, 10)],
    ),
    "own saves and those of successors do not count": (
        {1: None, 2: (1, 10), 3: (2, 20)},
        [(1, 10), (2, 20), (3, 30)],
        2,
        [(1, 10)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_saves_of_a_lineage(case: str) -> None:
    parents, saves, incarnation, expected = CASES[case]
    records = {n: restore_record(n, parent) for n, parent in parents.items()}
    found = shard_lineage(records, [save(short) for short in saves], incarnation, "layout")[0]
    assert [candidate.key for candidate in found] == [save(short).manifest for short in expected]
    assert all((candidate.kind, candidate.layout, candidate.damage) == ("Save", "layout", "") for candidate in found)


P: Literal["Priority"] = "Priority"

PRIORITY: dict[str, tuple[list[RestoreRecord], list[Short], int, list[tuple[Short, list[Short]]], list[Short]]] = {
    # case: records; saves in the store; who asks; complete saves, each with what comes on top; what comes on the start
    "those after a save, oldest first": (
        [restore_record(1, None)],
        [(1, 5, P), (1, 10), (1, 12, P), (1, 14, P)],
        2,
        [((1, 10), [(1, 12, P), (1, 14, P)])],
        [(1, 5, P), (1, 12, P), (1, 14, P)],
    ),
    "one of the step of a cut comes after it, and before a flush": (
        [restore_record(1, None)],
        [(1, 10), (1, 10, P), (1, 10, "Flush")],
        2,
        [((1, 10, "Flush"), []), ((1, 10), [(1, 10, P)])],
        [(1, 10, P)],
    ),
    "those that the parent replayed, and no late one": (
        [restore_record(1, None), restore_record(2, (1, 10), (1, 12, P))],
        [(1, 10), (1, 12, P), (1, 14, P), (2, 20, P)],
        3,
        [((1, 10), [(1, 12, P), (2, 20, P)])],
        [(1, 12, P), (2, 20, P)],
    ),
    "down the line, though the complete save is an older one's": (
        [
            restore_record(1, None),
            restore_record(2, (1, 10), (1, 12, P)),
            restore_record(3, (1, 10), (1, 12, P), (2, 20, P)),
        ],
        [(1, 10), (1, 12, P), (2, 20, P), (2, 22, P), (3, 30, P)],
        4,
        [((1, 10), [(1, 12, P), (2, 20, P), (3, 30, P)])],
        [(1, 12, P), (2, 20, P), (3, 30, P)],
    ),
    "on top of the start": (
        [restore_record(1, None), restore_record(2, None, (1, 5, P))],
        [(1, 5, P), (1, 7, P), (2, 9, P)],
        3,
        [],
        [(1, 5, P), (2, 9, P)],
    ),
}


@pytest.mark.parametrize("case", PRIORITY)
def test_the_priority_saves_of_a_lineage(case: str) -> None:
    records, saves, incarnation, expected, over_start = PRIORITY[case]
    by_incarnation = {record.incarnation: record for record in records}
    candidates, on_top = shard_lineage(by_incarnation, [save(s) for s in saves], incarnation, "layout")
    found = [(candidate.key, [ref.key for ref in candidate.priority]) for candidate in candidates]
    assert found == [(save(one).manifest, [save(top).manifest for top in tops]) for one, tops in expected]
    assert [ref.key for ref in on_top] == [save(short).manifest for short in over_start]


@pytest.mark.parametrize(
    ("records", "reached"),
    [
        ({1: None, 2: None}, [(2, 30)]),  # the record of 2 cannot be read: what it saved itself is still good
        ({1: None, 2: restore_record(2, (1, 20))}, [(2, 30), (1, 20)]),
        ({2: restore_record(2, (1, 20))}, [(2, 30), (1, 20)]),  # 1 has no record at all
        ({1: restore_record(1, None), 2: restore_record(2, (2, 20))}, [(2, 30)]),  # its own parent
        ({1: restore_record(1, None), 2: restore_record(2, (4, 20))}, [(2, 30)]),  # a parent that is younger
    ],
)
def test_lineage_ends_at_a_damaged_record_and_reports_it(
    records: dict[int, RestoreRecord | None], reached: list[Short]
) -> None:
    saves = [save((1, 20)), save((2, 30)), save((1, 40))]
    *usable, broken = shard_lineage(records, saves, 3, "layout")[0]
    assert [candidate.key for candidate in usable] == [save(short).manifest for short in reached]
    assert "restore record" in broken.damage


def test_dense_saves_come_by_group_and_then_by_step() -> None:
    keys = [f"uid/gen-0002/dense/group-{g:04d}/step-{s:09d}{kind}/{MANIFEST}" for g, s, kind in DENSE]
    saves = [parse_save(key) for key in keys]
    found = dense_lineage((s for s in saves if s), "layout")
    assert [(c.writer, c.step) for c in found] == [(12, 5), (9, 40), (9, 30), (9, 20)]


DENSE = [(9, 20, ""), (12, 5, "-dense"), (9, 40, ""), (9, 30, "-dense")]


@pytest.mark.parametrize(
    ("key", "writer", "step", "kind"),
    [
        ("u/gen-0002/shard-0003/inc-0005/step-000012000/manifest.json", 5, 12000, "Anchor"),
        ("u/gen-0002/shard-0003/inc-0005/step-000012000-flush/part-00001", 5, 12000, "Flush"),
        ("u/gen-0002/shard-0003/inc-0005/step-000012000-priority/part-00001", 5, 12000, "Priority"),
        ("u/gen-0002/dense/group-0004/step-000012000-dense/part-00000", 4, 12000, "Dense"),
        ("u/gen-0002/shard-12345/inc-67890/step-1234567890/manifest.json", 67890, 1234567890, "Anchor"),
    ],
)
def test_keys_are_read(key: str, writer: int, step: int, kind: str) -> None:
    found = parse_save(key)
    assert found is not None
    assert (found.writer, found.step, found.kind) == (writer, step, kind)
    assert key.startswith(found.folder)
    assert found.manifest == key.rpartition("/")[0] + "/manifest.json"


@pytest.mark.parametrize(
    "key", ["u/gen-0002/shard-0003/inc-0005/origin.json", "u/x", "", "u/inc-1/step-000-other/manifest.json"]
)
def test_other_keys_are_no_saves(key: str) -> None:
    assert parse_save(key) is None


def test_the_folder_of_a_shard_is_not_that_of_one_with_a_longer_number() -> None:
    assert not shard_folder("u", 1, 10000).startswith(shard_folder("u", 1, 1000))
