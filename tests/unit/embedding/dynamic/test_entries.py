"""Scores and counts of entries, and their insertion into another number of pages."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.model import PAGE_SLOTS, EvictionScore
from cpr_trainer.embedding.dynamic.entries import MAX_COUNT, Rules
from cpr_trainer.embedding.dynamic.pages import Pages
from cpr_trainer.embedding.dynamic.rehash import slots_in
from cpr_trainer.embedding.dynamic.table import DynamicTables
from support.dynamic_steps import PAGES, empty_entries, keys_of_first, universe
from support.reference_table import Entry, Outcome, ReferenceTable


@given(st.integers(0, MAX_COUNT), st.integers(1, 400), st.integers(0, 400), st.integers(1, 9))
def test_count_is_halved_at_each_multiple(count: int, last: int, later: int, every: int) -> None:
    expected = count
    for step in range(last + 1, last + later + 1):
        expected >>= step % every == 0
    counts, steps = np.array([count], np.uint32), np.array([last], np.uint32)
    assert Rules(halving_steps=every).counts_at(counts, steps, last + later).tolist() == [expected]


def test_count_stays_at_its_largest() -> None:
    table = DynamicTables(Pages.of(1), Rules(), empty_entries(Pages.of(1), Rules()))
    key = np.array([5], np.uint64)
    table.commit(table.plan(1, keys_of_first(table, key)))
    table.entries.counts[:] = MAX_COUNT
    assert table.plan(2, keys_of_first(table, key)).counts.tolist() == [MAX_COUNT]


@pytest.mark.parametrize("rule", [{"ttl_steps": -1}, {"halving_steps": -1}, {"min_steps": 0}, {"min_steps": 256}])
def test_rule_out_of_its_range_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="steps"):
        Rules(**rule)


@given(st.integers(0, 2**32 - 1), st.sampled_from(get_args(EvictionScore)), st.integers(1, 3))
@settings(max_examples=20)
def test_entries_enter_other_pages_by_falling_score(seed: int, score: EvictionScore, shards: int) -> None:
    rng, rules = np.random.default_rng(seed), Rules(score, halving_steps=5)
    keys = rng.permutation(universe())[:700]
    steps, counts = (rng.integers(1, 9, len(keys)).astype(np.uint32) for _ in range(2))
    reference = ReferenceTable(PAGES - 1, rules)
    entries = map(Entry, keys.tolist(), steps.tolist(), counts.tolist())
    for each in sorted(entries, key=lambda each: (-reference.score(each, 9), each.key)):
        slot = reference.slot_for(each.key, 9, set(reference.entries), Outcome())
        if slot is not None:
            reference.entries[slot] = each
    found = dict[int, int]()
    for shard in range(shards):
        pages = Pages.of((PAGES - 1) * PAGE_SLOTS, shards=shards, shard=shard)
        mine = pages.hold(0, keys)
        slots = slots_in(pages, 0, keys[mine], steps[mine], counts[mine], rules=rules, step=9)
        slots[slots >= 0] += pages.first * PAGE_SLOTS
        found.update(zip(keys[mine].tolist(), slots.tolist(), strict=True))
    assert {slot: key for key, slot in found.items() if slot >= 0} == {
        slot: each.key for slot, each in reference.entries.items()
    }
    assert -1 in found.values()
