"""The documents of the contract survive JSON, and say which field is wrong."""

import dataclasses

import pytest

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import AnchorRef, Counters, Peer, TrainerRoster

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


def test_a_document_survives_json() -> None:
    assert from_json(TrainerRoster, to_json(ROSTER)) == ROSTER


def test_equal_documents_give_equal_bytes() -> None:
    assert to_json(ROSTER) == to_json(dataclasses.replace(ROSTER))


def test_an_unknown_key_is_ignored_so_that_newer_writers_can_be_read() -> None:
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
def test_a_wrong_field_is_named(old: str, new: str, field: str) -> None:
    text = to_json(ROSTER)
    assert old in text
    with pytest.raises(ContractError, match=field):
        from_json(TrainerRoster, text.replace(old, new, 1))


def test_ranges_and_states_keep_their_types() -> None:
    report = ShardReport(
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
    again = from_json(ShardReport, to_json(report))
    assert again == report
    assert again.state is ShardState.READY
    with pytest.raises(ContractError, match=r"ShardReport\.state"):
        from_json(ShardReport, to_json(report).replace("Ready", "Rusty"))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ContractError, match="not JSON"):
        from_json(TrainerRoster, "{")
