"""A lost shard's successor gets its rows from the neighbours, then later pushes from the trainer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cpr_contract.roster import Counters
from cpr_trainer.parity.coding import Image
from cpr_trainer.parity.flush import FlushAccount, Point, Rebuilt
from cpr_trainer.parity.messages import PositionReply
from cpr_trainer.parity.rebuild import ParityUnavailableError, common_moment, rows_of
from cpr_trainer.shard import redundancy
from cpr_trainer.shard.state import Losses, Progress, ReplayBarrier
from support.exchanges import WAIT_S
from support.parity_job import ParityJob, parity_of
from support.parity_ring import same_rows
from support.shard_job import shard_roster
from support.shard_thread import ShardThread


def rebuild(running: ParityJob, index: int, floor: int = 0) -> tuple[ShardThread, tuple[FlushAccount, Rebuilt] | None]:
    """Replace a shard that is closed; its successor does not serve yet."""
    number = running.shards[index].incarnation + 1
    new = ShardThread(running.spec, index, number, ready=False)
    peers = tuple(shard.peer for shard in running.shards)
    roster = shard_roster(index=index, incarnation=number, newest_incarnation=number, shards=peers, floor_samples=floor)
    return new, parity_of(new).rebuild(roster, lambda: False)


def serve(running: ParityJob, new: ShardThread, account: FlushAccount, rebuilt: Rebuilt) -> None:
    def start() -> None:
        new.service.counters = Counters(1, 1, 1)
        parity_of(new).adopt(rebuilt)
        progress = Progress(1, account.applied, Losses.restored(account.lost, 1), account.row_updates)
        progress.replay_barrier = ReplayBarrier.closed(1)
        new.service.start(progress)

    new.do(start)
    running.shards[new.index] = new
    running.follow()


def test_lost_shard_is_rebuilt_bit_for_bit(running: ParityJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer repeats pushes that no flush has. The second loss is rebuilt from flushes of the successor."""
    for _ in range(2):
        running.push()
        running.protect()
        protected = running.step
        monkeypatch.setattr(redundancy, "INTERVAL_S", 1e9)
        for _ in range(3):
            running.push()
        lost = running.shards[1]
        lost.close()
        new, found = rebuild(running, 1)
        assert found is not None
        account, rebuilt = found
        assert account.applied == (protected,)
        assert account.samples == protected * running.spec.data.batch_size
        serve(running, new, account, rebuilt)
        running.exchange.settle(WAIT_S)
        assert same_rows(new.arena, lost.arena)
        monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
        running.protect()
        running.check()


@pytest.mark.parametrize(
    ("lost", "steps_of_the_floor"), [((0, 1), 0), ((3,), 2)], ids=["two of one stripe", "below the floor"]
)
def test_shard_is_not_rebuilt(running: ParityJob, lost: tuple[int, ...], steps_of_the_floor: int) -> None:
    running.push()
    running.protect()
    for index in lost:
        running.shards[index].close()
    new, found = rebuild(running, lost[0], floor=steps_of_the_floor * running.spec.data.batch_size)
    new.close()
    assert found is None


def position(number: int, former: int | None, author: int = 7) -> PositionReply:
    return PositionReply(Point(3, author, number), True, "", None if former is None else (author, former))  # noqa: FBT003


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ((position(4, 3), position(4, 3)), (7, 4)),
        ((position(4, 3), position(3, 2)), (7, 3)),
        ((position(3, 2), position(4, 3)), (7, 3)),
        ((position(3, None), position(4, 3)), (7, 3)),
        ((position(3, None), position(4, None)), None),
        ((position(5, 4), position(3, 2)), None),
        ((position(4, 3), position(4, 3, author=8)), None),
        ((position(0, None, author=0), position(0, None, author=0)), None),
    ],
)
def test_common_moment_is_the_newest_of_all_holders(positions: tuple[PositionReply, ...], expected: object) -> None:
    assert common_moment(positions) == expected


class Moving:
    """A stripe of two members; the surviving one advances `moves` times during the reads."""

    def __init__(self, moves: int, *, mine: Point | None = None) -> None:
        self.moves, self.mine, self.reads = moves, mine or Point(1, 5, 9), 0

    def image(self, value: int) -> Image:
        image = Image.zeros(3, 2, 1)
        image.rows[...], image.state[...], image.touched[...] = value, value, 1
        return image

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        self.reads += 1
        parity = self.image(0b1100 ^ self.reads)
        parity.touched[...] = 0
        return parity, (self.mine, Point(1, 6, self.reads))

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        assert part == 1
        return None if self.reads <= self.moves else self.image(point.number)


def test_rows_are_read_again_after_a_member_has_advanced() -> None:
    stripe = Moving(moves=3)
    image = rows_of(stripe, 0, Point(1, 5, 9), 0, range(3))
    assert stripe.reads == 4
    assert np.array_equal(image.rows, np.full((3, 2), 0b1100))
    assert image.touched.all()


def test_stripe_that_always_advances_is_given_up() -> None:
    with pytest.raises(ParityUnavailableError, match="do not have the rows"):
        rows_of(Moving(moves=10_000), 0, Point(1, 5, 9), 0, range(3))


def test_reset_parity_is_detected() -> None:
    with pytest.raises(ParityUnavailableError, match="reset"):
        rows_of(Moving(moves=0, mine=Point(2)), 0, Point(1, 5, 9), 0, range(3))
