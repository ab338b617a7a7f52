"""Documents of the contract survive JSON, and errors name the wrong field."""

import dataclasses
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.codec import ContractError, from_dict, from_json, to_json, to_utf8, within_limits
from cpr_contract.limits import (
    MAX_ANCHORS,
    MAX_MEMBERS,
    MAX_METRICS,
    MAX_RANGES,
    MAX_SHARDS,
    MAX_TRAINERS,
    max_report_bytes,
    united,
)
from cpr_contract.reports import Problem, ShardReport, ShardState, TableCounts, TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef, Counters, Peer, TrainerRoster
from cpr_operator import ledger
from cpr_operator.api.base import EXACT

ROSTER = TrainerRoster(
    contract=1,
    counters=Counters(roster=7, group=2, generation=1),
    index=0,
    incarnation=1,
    newest_incarnation=1,
    leader=0,
    trainers=(Peer(0, 1, "10.0.0.1", 7070),),
    shards=(Peer(0, 1, "10.0.0.2", 7070), Peer(1, 2, "", 7070)),
    anchor=AnchorRef(
        key="u/gen-0001/dense/group-0001/step-000000010/manifest.json", digest="ab", generation=1, step=10, samples=640
    ),
    dense_floor_samples=640,
    interval_s=12.5,
)

REPORT = ShardReport(
    contract=1,
    job_uid="u",
    index=3,
    incarnation=2,
    counters=Counters(1, 1, 1),
    state=ShardState.READY,
    applied=(12, 11),
    newest_save=None,
    restored_samples=640,
    resumed_samples=None,
    lost=((640, 900),),
    load_s=0.5,
    silent=(),
    problem=None,
)


def test_document_survives_json_and_unknown_keys_are_ignored() -> None:
    assert from_json(TrainerRoster, to_json(ROSTER)) == ROSTER
    text = to_json(ROSTER).replace('{"anchor"', '{"colour":"red","anchor"', 1)
    assert from_json(TrainerRoster, text) == ROSTER


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"leader":0', '"leader":"0"', "TrainerRoster.leader"),
        ('"leader":0', '"leader":true', "TrainerRoster.leader"),
        ('"leader":0,', "", "TrainerRoster.leader is missing"),
        ('"host":"10.0.0.2"', '"host":5', r"TrainerRoster.shards\[0\].host"),
        ('"counters":{', '"counters":[],"x":{', "TrainerRoster.counters"),
    ],
)
def test_wrong_field_is_named(old: str, new: str, field: str) -> None:
    text = to_json(ROSTER)
    assert old in text
    with pytest.raises(ContractError, match=field):
        from_json(TrainerRoster, text.replace(old, new, 1))


def test_ranges_and_states_keep_their_types() -> None:
    again = from_json(ShardReport, to_json(REPORT))
    assert again == REPORT
    assert again.state is ShardState.READY
    with pytest.raises(ContractError, match=r"ShardReport\.state"):
        from_json(ShardReport, to_json(REPORT).replace("Ready", "Rusty"))


def test_long_list_is_refused_before_its_items_are_read() -> None:
    longest = [[2 * n, 2 * n + 1] for n in range(MAX_RANGES)]
    plain = json.loads(to_json(REPORT))
    assert len(from_dict(ShardReport, {**plain, "lost": longest}).lost) == MAX_RANGES
    for overlong in ([*longest, [0, 1]], [None] * (MAX_RANGES + 1)):
        with pytest.raises(ContractError, match=r"ShardReport\.lost: expected at most 4096 items, found 4097"):
            from_dict(ShardReport, {**plain, "lost": overlong})


def test_longest_report_has_space_for_the_longest_lists() -> None:
    """The leader's report in the largest job, with the maximum of lost ranges (samples of 12 digits)."""
    sample = 10**12 - 1
    names = (*(f"shard/{n}" for n in range(MAX_SHARDS)), *(f"trainer/{n}" for n in range(MAX_TRAINERS)))
    anchor = AnchorRef(
        f"{uuid.UUID(int=0)}/gen-0064/dense/group-0256/step-000000010/manifest.json", "ab" * 32, 64, 9, 9
    )
    report = TrainerReport(
        contract=1,
        job_uid=str(uuid.UUID(int=0)),
        index=0,
        incarnation=1000,
        counters=Counters(1000, 1000, 64),
        state=TrainerState.PAUSED,
        step=sample,
        samples=sample,
        samples_started=sample,
        total_samples=sample,
        waiting_for=names,
        silent=names,
        lost=((sample - 1, sample),) * ledger.MAX_RANGES,
        problem=None,
        shard_saves=(sample,) * MAX_SHARDS,
        anchors=(anchor,) * (MAX_ANCHORS + 1),
        metrics=(("label." + "m" * 100, 0.123456789012345678),) * MAX_METRICS,
        forgotten=(sample,) * MAX_SHARDS,
        overdue=names,
    )
    text = to_json(report)
    assert len(text) <= max_report_bytes(MAX_MEMBERS)
    assert from_json(TrainerReport, text) == report
    small = dataclasses.replace(report, waiting_for=(), silent=(), overdue=(), shard_saves=(), forgotten=())
    assert len(to_json(small)) <= max_report_bytes(2)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="not JSON"):
        from_json(ShardReport, text)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 20)), min_size=1, max_size=40), st.integers(1, 40))
def test_united_ranges_cover_all_ranges(drawn: list[tuple[int, int]], most: int) -> None:
    ranges = tuple((start, start + size) for start, size in drawn)
    found = united(ranges, most)
    assert len(found) == min(most, len(ranges))
    assert all(any(start <= first and end <= last for start, last in found) for first, end in ranges)


def test_lists_of_a_report_are_shortened_to_the_limits_of_readers() -> None:
    """The merged ranges cover all losses; the last processes and anchors stay."""
    lost = tuple((10 * place, 10 * place + 1) for place in range(5000))
    restarts = tuple((process, 0.5) for process in range(20))
    silent = tuple(f"trainer/{rank}" for rank in range(2000))
    tables = tuple(TableCounts(f"{place:063}", *(8 * [EXACT])) for place in range(40))
    report = dataclasses.replace(REPORT, lost=lost, in_place_s=restarts, silent=silent, tables=tables)
    with pytest.raises(ContractError, match="at most"):
        from_json(ShardReport, to_json(report))
    read = from_json(ShardReport, to_json(within_limits(report)))
    assert (len(read.lost), read.lost[0][0], read.lost[-1][1]) == (2048, 0, 49991)
    assert [process for process, _ in read.in_place_s] == [*range(12, 20)]
    assert read.tables == tables[:32]
    assert len(to_json(within_limits(report))) < max_report_bytes(1)
    short = dataclasses.replace(report, lost=lost[:7], in_place_s=(), silent=(), tables=tables[:1])
    assert within_limits(short) is short


@pytest.mark.parametrize("name", ["ascii", "\u0436", "\U0001f600", "\ud800", "\x00"])
def test_utf8_and_escapes_are_equivalent(name: str) -> None:
    problem = Problem(name, "", "")
    assert from_json(Problem, to_utf8(problem)) == problem
    assert len(to_utf8(problem)) <= len(to_json(problem))
