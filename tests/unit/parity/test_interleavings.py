"""In any interleaving of pushes, flushes, replies and losses parity is the XOR of its stripe, and rows are rebuilt."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cpr_trainer.embedding.arena import Arena
from support.parity_ring import ParityRing, Process, banded_job, copy_of, same_rows

#: Counts of rare states.
REACHED: Counter[str] = Counter()


class Interleavings(RuleBasedStateMachine):
    """Shards train, flush and are lost. A shard without parity restores older rows, as of a save in the store."""

    @initialize(shape=st.sampled_from([(2, 1), (3, 1), (3, 2), (5, 2), (5, 4), (7, 3)]), seed=st.integers(0, 2**32))
    def begin(self, shape: tuple[int, int], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ring = ParityRing(banded_job(shape[0]), shape[1])
        for index in range(shape[0]):
            self.ring.connect_all(index)

    def shard(self, draw: int) -> int:
        return draw % self.ring.job.shards

    def part(self, draw: int) -> int:
        return draw % self.ring.ring.data_shards

    @rule(draw=st.integers(0, 41))
    def push(self, draw: int) -> None:
        self.ring.push(self.shard(draw), self.rng)

    @rule(draw=st.integers(0, 41))
    def seal(self, draw: int) -> None:
        self.ring.seal(self.shard(draw))

    @rule(draw=st.integers(0, 41), part=st.integers(0, 11), answered=st.booleans())
    def deliver(self, draw: int, part: int, answered: bool) -> None:  # noqa: FBT001 -- hypothesis draws it
        self.ring.deliver(self.shard(draw), self.part(part), answered=answered)

    @rule(draw=st.integers(0, 41), part=st.integers(0, 11))
    def connect_again(self, draw: int, part: int) -> None:
        self.ring.connect(self.shard(draw), self.part(part))

    @rule(draw=st.integers(0, 41), part=st.integers(0, 11))
    def repeat_frame(self, draw: int, part: int) -> None:
        sent = self.ring.shards[self.shard(draw)].sent[self.part(part)]
        if sent:
            sent.append(sent[0])

    @rule(draw=st.integers(0, 41))
    def flush_all(self, draw: int) -> None:
        """Flushes of one shard until all of it is protected, with pushes of others in between."""
        index = self.shard(draw)
        for _ in range(12):
            self.settle(index)
        assert self.ring.shards[index].journal.intact

    @rule(draw=st.integers(0, 41), part=st.integers(0, 11))
    def lose_holder(self, draw: int, part: int) -> None:
        shard = self.ring.shards[self.shard(draw)]
        shard.journal.drop_parity(self.part(part))
        shard.sent[self.part(part)].clear()

    @rule(draw=st.integers(0, 41))
    def kill_server(self, draw: int) -> None:
        """The rows survive; the journal and the parity for other shards do not."""
        index = self.shard(draw)
        self.ring.shards[index] = Process(self.ring, index, self.ring.shards[index].arena)
        self.reconnect(index)

    @rule(draw=st.integers(0, 41), again=st.booleans())
    def lose_shard(self, draw: int, again: bool) -> None:  # noqa: FBT001 -- hypothesis draws it
        index = self.shard(draw)
        for _ in range(1 + again):
            protected = self.ring.shards[index].journal
            certain = protected.intact and not self.is_outdated(index)
            mark = self.ring.recover(index)
            if mark is None:
                assert not certain
                REACHED["not in the parity"] += 1
                self.ring.shards[index] = Process(self.ring, index, self.older_rows(index))
            else:
                REACHED["decoded"] += 1
                assert same_rows(self.ring.shards[index].arena, self.ring.marks[mark])
        self.reconnect(index)

    def is_outdated(self, index: int) -> bool:
        """Return whether a stripe of this shard has a point that its member no longer has."""
        ring = self.ring
        for part, holder in enumerate(ring.ring.holders(index)):
            store = ring.shards[holder].store
            mine = ring.shards[index].journal._streams[part]
            if store.position(part).point != mine.settled and (
                mine.in_flight is None or store.position(part).point != mine.in_flight.after
            ):
                return True
            for other, member in enumerate(ring.ring.members(holder)):
                point = store.position(other).point
                stream = ring.shards[member].journal._streams[other]
                if other != part and point.number and stream.as_of(point, 0, 0, 1) is None:
                    return True
        return False

    def older_rows(self, index: int) -> Arena:
        marks = [arena for mark, arena in self.ring.marks.items() if mark.startswith(f"{index} ")]
        if not marks:
            return self.ring.new_arena(index)
        arena = copy_of(self.ring, index, marks[int(self.rng.integers(len(marks)))])
        arena.epochs.note(np.arange(len(arena)))
        return arena

    def reconnect(self, index: int) -> None:
        for part, member in enumerate(self.ring.ring.members(index)):
            self.ring.shards[member].sent[part].clear()
        self.ring.connect_all(index)

    def settle(self, index: int) -> None:
        for part in range(self.ring.ring.data_shards):
            self.ring.connect(index, part)
            self.ring.deliver(index, part)
            self.ring.deliver(index, part)
        self.ring.seal(index)
        for part in range(self.ring.ring.data_shards):
            self.ring.deliver(index, part)

    @precondition(lambda self: hasattr(self, "ring"))
    @invariant()
    def parity_is_the_xor_of_its_stripe(self) -> None:
        self.ring.check()

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        for _ in range(40):
            for index in range(self.ring.job.shards):
                self.settle(index)
        for index in range(self.ring.job.shards):
            journal = self.ring.shards[index].journal
            assert journal.intact
            assert journal.protected is not None
            REACHED["protected"] += 1
            mark = self.ring.recover(index)
            assert mark is not None
            assert same_rows(self.ring.shards[index].arena, self.ring.marks[mark])
            for _ in range(12):
                for other in range(self.ring.job.shards):
                    self.settle(other)


def test_parity_holds_in_any_interleaving() -> None:
    REACHED.clear()
    run_state_machine_as_test(
        Interleavings, settings=settings(max_examples=50, stateful_step_count=40, deadline=None, derandomize=True)
    )
    assert REACHED["decoded"] > 5, REACHED
    assert REACHED["not in the parity"] > 5, REACHED
    assert REACHED["protected"] > 5, REACHED
