"""The service against clients without sockets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import SaveRef
from cpr_contract.roster import Counters
from cpr_trainer.checkpoint.write.save import Mark
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.buffer import RowBuffer
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Cuts, Losses, Progress, order_of
from cpr_trainer.shard.status import Metrics
from support.row_dims import with_dims, with_precisions
from support.shard_fakes import DIM, ROWS, FakeClient
from support.shard_job import small_job


def serving(
    trainers: int = 1, generation: int = 1, *, loose: bool = False
) -> tuple[Service, list[FakeClient], list[Mark]]:
    job = small_job(Path("unused"), dim=DIM)
    job = replace(job, model=replace(job.model, sparse_optimizer=replace(job.model.sparse_optimizer, kind="SGD")))
    arena = Arena.empty(job, ROWS)
    service = Service(job, Placement.of(job.model, 1), 0, arena, Metrics())
    service.counters = Counters(roster=5, group=2, generation=generation)
    marks: list[Mark] = []

    def on_cut() -> None:
        marks.append(service.mark(progress_of(service)))

    service.on_cut = on_cut
    clients = [FakeClient(service, rank) for rank in range(trainers)]
    for client in clients:
        service.joined(client)
    progress = Progress(generation, (0,) * trainers, Losses.restored((), trainers), RowUpdates((0,) * trainers))
    progress.cuts = Cuts(loose=loose)
    service.start(progress)
    return service, clients, marks


def progress_of(service: Service) -> Progress:
    assert service.progress is not None
    return service.progress


def changes(service: Service) -> float:
    """Return the number of pushes of ones the row 0 took, at a learning rate of 0.1."""
    slot = Placement([50, 30], 1).slots_on(0, np.array([0]))
    return round(-float(service.arena.rows[slot][0, 0]) / 0.1)


def test_a_push_is_applied_once_and_acknowledged_each_time() -> None:
    service, (client,), _ = serving()
    assert client.pushes(1) == ["ACK"]
    assert client.pushes(1) == ["ACK"]
    assert client.sent[-1][0].step == 1
    assert changes(service) == 1
    assert client.pushes(2) == ["ACK"]
    assert changes(service) == 2


def test_cut_waits_for_all_ranks_and_holds_ranks_beyond_it() -> None:
    service, (one, two), _ = serving(trainers=2)
    copied: list[float] = []
    service.on_cut = lambda: copied.append(changes(service))
    assert one.pushes(1, cut_step=2) == ["ACK"]
    assert two.pushes(1, cut_step=2) == ["ACK"]
    assert one.pushes(2, cut_step=2) == ["ACK"]
    assert one.pushes(3, cut_step=2) == []
    assert one.look_up() == [], "a read after the held push must see it"
    assert one.send_frame(Operation.PING) == ["PONG"], "it is alive all the same"
    assert not copied
    assert changes(service) == 3
    before = len(one.sent)
    assert two.pushes(2, cut_step=2) == ["ACK"]
    assert copied == [4], "before the held push changes it"
    assert one.answers_since(before) == ["ACK", "VECTORS"]
    assert np.frombuffer(one.sent[-1][1], np.float32)[0] == np.float32(-0.5)
    assert changes(service) == 5


def test_push_without_space_in_the_undo_log_waits_alone() -> None:
    service, (one, two), _ = serving(trainers=2)
    service.arena._logs = (RowBuffer.like(service.arena.segments[0], 1),)
    for row in (0, 1):
        assert one.pushes(row + 1, row=row) == ["ACK"]
    capture = service.arena.capture_changes(0)
    assert one.pushes(3, row=0) == ["ACK"], "the log takes one row"
    assert one.pushes(4, row=1) == []
    assert service.push_waits
    service.retry()
    assert service.push_waits
    assert one.look_up(row=1) == [], "a read after the held push must see it"
    assert one.send_frame(Operation.PING) == ["PONG"]
    assert two.pushes(1, row=5) == ["ACK"]
    assert progress_of(service).applied == (3, 1)
    before = len(one.sent)
    capture.fill(RowBuffer.like(service.arena.segments[0], 1))
    service.retry()
    assert one.answers_since(before) == ["ACK", "VECTORS"]
    assert np.frombuffer(one.sent[-1][1], np.float32)[0] == np.float32(-0.2)
    assert progress_of(service).applied == (4, 1)
    assert not service.push_waits


def test_loose_cut_holds_no_rank_and_reports_its_steps_by_rank() -> None:
    service, (one, two), marks = serving(trainers=2, loose=True)
    one.pushes(1)
    for step in (2, 3, 4):
        assert one.pushes(step, cut_step=2) == ["ACK"]
    two.pushes(1)
    assert marks == []
    two.pushes(2)
    (mark,) = marks
    assert (mark.step, mark.samples, mark.applied) == (2, 20, (4, 2))
    for step in (3, 4, 5):
        two.pushes(step)
    one.send_frame(Operation.PING, cut_step=3)
    assert marks[-1].step == 3, "passed by all, and still the cut that the others take"
    assert marks[-1].applied == (4, 5)
    assert service.mark(progress_of(service)).step == 4


@given(
    first=st.lists(st.integers(1, 12), min_size=2, max_size=3),
    order=st.lists(st.integers(0, 2), min_size=20, max_size=80),
    announced=st.lists(st.integers(0, 14), min_size=80, max_size=80),
)
def test_loose_cut_reports_all_missing_steps_before_it_and_none_after(
    first: list[int], order: list[int], announced: list[int]
) -> None:
    """Each rank returns to the shard at its own step, and continues at its own pace."""
    trainers = len(first)
    _service, clients, marks = serving(trainers=trainers, loose=True)
    following = list(first)
    for rank, cut in zip(order, announced, strict=False):
        if rank < trainers and following[rank] <= 100:
            clients[rank].pushes(following[rank], cut_step=cut)
            following[rank] += 1
    batches = order_of(1000, 10)
    for mark in marks:
        assert all(end <= mark.samples for _, end in mark.lost)
        for rank, step in enumerate(mark.applied):
            for missing in range(1, min(first[rank], step + 1)):
                samples = batches.slice_of(missing, rank, trainers)
                assert any(start <= samples.start and samples.stop <= end for start, end in mark.lost)


def test_a_ping_may_announce_a_cut_that_is_complete() -> None:
    _service, (client,), marks = serving()
    client.pushes(1)
    assert client.send_frame(Operation.PING, cut_step=1) == ["PONG"]
    assert marks == [Mark(1, 1, 10, applied=(1,), lost=(), row_updates=RowUpdates((1,)), at_barrier=True)]
    client.send_frame(Operation.PING, cut_step=1)
    client.pushes(2, cut_step=1)
    assert len(marks) == 1, "a cut is taken once"


def test_newer_cut_releases_pushes_held_by_an_older_one() -> None:
    _service, (one, two), marks = serving(trainers=2)
    two.pushes(1, cut_step=2)
    one.pushes(1, cut_step=2)
    one.pushes(2, cut_step=2)
    assert one.pushes(3, cut_step=2) == []
    before = len(one.sent)
    two.send_frame(Operation.PING, cut_step=4)
    assert one.answers_since(before) == ["ACK"]
    assert not marks


def test_a_cut_that_a_restored_shard_cannot_reach_does_not_hold_training() -> None:
    service, (client,), marks = serving()
    assert client.send_frame(Operation.PING, cut_step=3) == ["PONG"]
    assert client.pushes(5, cut_step=3) == ["ACK"], "its predecessor had acknowledged 1 to 4"
    assert not marks
    assert progress_of(service).losses.lost == ((0, 40),)
    assert client.sent[-1][0].cut_step == 3, "the leader receives that it is given up"


def test_cut_holds_no_rank_before_all_ranks_have_begun() -> None:
    """The other rank trains without this shard, and waits for the next step of the rank that the cut would hold."""
    _service, (one, two), marks = serving(trainers=2)
    for step in (1, 2, 3):
        assert one.pushes(step, cut_step=2) == ["ACK"]
    assert one.sent[-1][0].cut_step == 2, "the leader receives that it is given up"
    assert two.pushes(4, cut_step=2) == ["ACK"]
    assert not marks
    assert one.pushes(4, cut_step=5) == ["ACK"]
    assert one.pushes(5, cut_step=5) == ["ACK"]
    assert one.pushes(6, cut_step=5) == []
    two.pushes(5, cut_step=5)
    assert [mark.step for mark in marks] == [5]


def test_shard_that_stops_serving_answers_so_and_drops_held_pushes() -> None:
    service, (one, _two), _ = serving(trainers=2)
    one.pushes(1, cut_step=1)
    one.pushes(2, cut_step=1)
    before = len(one.sent)
    service.stop()
    assert one.answers_since(before) == ["NOT_READY"]
    assert not one.backlog
    assert one.pushes(2) == ["NOT_READY"]
    assert one.look_up() == ["NOT_READY"]
    before = len(one.sent)
    service.start(Progress(1, (0, 0), Losses.restored((), 2), RowUpdates((0, 0))))
    assert one.answers_since(before) == ["PONG"]


def test_answers_carry_the_newest_save_and_the_counters() -> None:
    service, (client,), _ = serving()
    service.newest_save, service.saved_steps = SaveRef("key", 40, 400), (40,)
    client.pushes(1)
    header = client.sent[-1][0]
    assert (header.saved_step, header.saved_samples, header.count) == (40, 400, 0)
    assert (header.roster, header.group, header.generation) == (5, 2, 1)
    service.store_full = True
    client.send_frame(Operation.PING)
    assert client.sent[-1][0].count == 1


def test_row_updates_missing_from_the_shard_count_as_lost() -> None:
    service, (one, two), _ = serving(trainers=2)
    one.pushes(4, row_updates=30)
    two.pushes(1, row_updates=0)
    two.pushes(2, row_updates=1)
    assert progress_of(service).row_updates == RowUpdates((31, 2), lost=30)
    assert [client.sent[-1][0].row_updates for client in (one, two)] == [31, 2], "a newcomer goes on from there"
    two.pushes(2, row_updates=1)
    assert progress_of(service).row_updates == RowUpdates((31, 2), lost=30), "a push that is dropped counts for nothing"


def test_bad_frames_are_refused_and_change_nothing() -> None:
    service, (client,), _ = serving()
    client.send_frame(Operation.PUSH, 1, bytes(8), count=1)
    client.pushes(1, row=ROWS)
    client.pushes(101)
    client.send_frame(Operation.VECTORS)
    client.send_frame(Operation.PING, rank=1)
    assert len(client.refusals) == 5
    assert client.refusals[0] == "8 bytes are no PUSH of 1 rows"
    assert changes(service) == 0
    assert progress_of(service).applied == (0,)


def test_a_held_frame_that_is_bad_costs_only_its_sender() -> None:
    _service, (one, two), marks = serving(trainers=2)
    one.pushes(1, cut_step=1)
    one.pushes(2, row=ROWS, cut_step=1)
    two.pushes(1, cut_step=1)
    assert len(marks) == 1
    assert one.refusals
    assert not two.refusals


@pytest.mark.parametrize(
    ("order", "values", "message"),
    [(1, 4, "of 2 rows"), (1, 8, "of 2 rows"), (-1, 6, "in the order of their places")],
)
def test_push_of_other_values_or_in_another_order_is_refused(order: int, values: int, message: str) -> None:
    """Two tables: 50 rows of 4 values, and 30 of 2."""
    job = with_dims(small_job(Path("unused"), dim=DIM), DIM, 2)
    placement = Placement.of(job.model, 1)
    service = Service(job, placement, 0, Arena.empty(job, *placement.sizes(0)), Metrics())
    client = FakeClient(service, 0)
    service.joined(client)
    service.start(Progress(1, (0,), Losses.restored((), 1), RowUpdates((0,))))
    numbers = sorted((3, 60), key=lambda number: int(placement.places(np.array([number]))[0]))[::order]
    payload = np.array(numbers, np.int32).tobytes() + np.ones(values, np.float32).tobytes()
    client.send_frame(Operation.PUSH, 1, payload, count=2)
    assert message in client.refusals[0]
    assert not any(segment.rows.any() for segment in service.arena.segments)


def test_pushes_of_two_ranks_in_one_step_are_rounded_by_themselves() -> None:
    found = []
    for rank in (0, 1):
        job = with_precisions(small_job(Path("unused"), dim=DIM), "bf16")
        placement = Placement.of(job.model, 1)
        service = Service(job, placement, 0, Arena.empty(job, ROWS), Metrics())
        client = FakeClient(service, rank)
        service.joined(client)
        service.start(Progress(1, (0, 0), Losses.restored((), 2), RowUpdates((0, 0))))
        payload = np.arange(ROWS, dtype=np.int32).tobytes() + np.full(ROWS * DIM, 0.3, np.float32).tobytes()
        assert client.send_frame(Operation.PUSH, 1, payload, count=ROWS) == ["ACK"]
        found.append(service.arena.segments[0].read(slice(None)))
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(found[0], found[1], rtol=2**-6)
