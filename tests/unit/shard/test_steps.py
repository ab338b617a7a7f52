"""Merged steps: which step is due, the sum of contributions, and the service against clients without sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cpr_contract.manifests import RowUpdates
from cpr_contract.model import RowOptimizer, SparseOptimizerSpec, state_width
from cpr_contract.roster import Counters
from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.dynamic.pages import BandKeys
from cpr_trainer.embedding.merged_rows import BandRows, KeyedRows, merge
from cpr_trainer.embedding.optimizers import changes_of
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.state import Cuts, Losses, Progress, ReplayBarrier, order_of
from cpr_trainer.shard.status import Metrics
from cpr_trainer.shard.steps import Commitment, DueStep, StepService, due_step
from support.shard_fakes import DIM, ROWS, FakeClient
from support.shard_job import small_job

DONE = Commitment(step=4, first=3, row_updates=0)
CASES = {
    "all ranks have committed": ({0: 4, 1: 4}, (DONE, DONE), 0, DueStep(4, (0, 1))),
    "a rank has not committed": ({0: 4, 1: 4}, (DONE, replace(DONE, step=3)), 0, None),
    "a rank is unknown": ({0: 4, 1: 4}, (DONE, None), 0, None),
    "the leader commits for a lost rank": ({0: 4, 1: 4}, (DONE, None), 4, DueStep(4, (0, 1))),
    "a contribution is on its way": ({0: 4}, (DONE, DONE), 0, None),
    "a contribution of a later step": ({0: 4, 1: 5}, (DONE, DONE), 0, None),
    "a rank has lost its contribution": ({0: 4}, (DONE, replace(DONE, first=5)), 0, DueStep(4, (0,))),
    "a held contribution counts, although its rank has lost it": (
        {0: 4, 1: 4},
        (DONE, replace(DONE, first=5)),
        0,
        DueStep(4, (0, 1)),
    ),
    "the leader cannot commit what is missing": ({0: 4}, (DONE, None), 4, None),
    "all ranks have lost several steps": (
        {},
        (Commitment(9, 8, 0), Commitment(9, 10, 0)),
        0,
        DueStep(7, ()),
    ),
    "all ranks have lost all steps up to their commitments": (
        {},
        (Commitment(6, 8, 0), Commitment(9, 10, 0)),
        0,
        DueStep(6, ()),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_step_is_due_when_all_ranks_have_sent_what_they_can(case: str) -> None:
    held, commitments, for_all, expected = CASES[case]
    assert due_step(3, held, commitments, for_all) == expected


_NAMES = st.lists(st.sets(st.integers(0, 20), min_size=0, max_size=8), min_size=1, max_size=4)


def rows_of(names: set[int], seed: int) -> BandRows:
    at = np.array(sorted(names), np.int64)
    return BandRows(at, at + 1, np.random.default_rng(seed).standard_normal((len(at), 3), np.float32))


def keys_of(names: set[int], seed: int) -> KeyedRows:
    """Keys of three tables that share them. Some are neighbours, and some are beyond int64."""
    table, key = np.divmod(np.array(sorted(names), np.int64), 7)
    numbers = key.view(np.uint64) << np.where(key > 3, 61, 0).astype(np.uint64)
    keys = BandKeys(numbers, table, key.view(np.uint64) + np.uint64(100))
    return KeyedRows(keys, np.random.default_rng(seed).standard_normal((len(key), 3), np.float32))


def summed(parts: Sequence[tuple[list[tuple[int, ...]], Floats]]) -> dict[tuple[int, ...], list[float]]:
    """The sum of the gradients of each name, part after part."""
    found = dict[tuple[int, ...], Floats]()
    for names, gradients in parts:
        for name, gradient in zip(names, gradients, strict=True):
            found[name] = found[name] + gradient if name in found else np.float32(0) + gradient
    return {name: found[name].tolist() for name in sorted(found)}


def named(rows: BandRows | KeyedRows) -> tuple[list[tuple[int, ...]], Floats]:
    if isinstance(rows, KeyedRows):
        columns: tuple[np.ndarray, ...] = rows.keys.tables, rows.keys.keys, rows.keys.positions
    else:
        columns = rows.slots, rows.numbers
    return [*zip(*(each.tolist() for each in columns), strict=True)], rows.gradients


@given(_NAMES)
def test_rows_are_summed_in_the_order_of_ranks(names: list[set[int]]) -> None:
    parts = [(rows_of(set(), 0), rows_of(each, seed), keys_of(each, seed)) for seed, each in enumerate(names)]
    merged = merge(parts)
    for band, each in enumerate(merged):
        found, gradients = named(each)
        expected = summed([named(part[band]) for part in parts])
        assert (found, gradients.tolist()) == ([*expected], [*expected.values()])


@pytest.mark.parametrize("kind", ["SGD", "RowWiseAdagrad", "Adagrad", "Adam"])
@pytest.mark.parametrize("trainers", [1, 2, 3, 4])
def test_merged_steps_of_slices_equal_plain_torch_on_the_global_batch(kind: RowOptimizer, trainers: int) -> None:
    """Float64: 200 steps of a bag and a linear layer, the slices of ranks merged, against one `EmbeddingBag`."""
    rows, dim, batch, rate = 40, 5, 12, 0.05
    rng = np.random.default_rng(7)
    spec, first = SparseOptimizerSpec(kind, rate), rng.standard_normal((rows, dim))
    arena_rows, arena_state = first.copy(), np.zeros((rows, state_width(kind, dim)))
    bag = nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(first.copy()), freeze=False, mode="sum", sparse=kind == "Adam"
    )
    head = torch.from_numpy(rng.standard_normal(dim))
    optimizers = {
        "SGD": lambda: torch.optim.SGD(bag.parameters(), lr=rate),
        "Adagrad": lambda: torch.optim.Adagrad(bag.parameters(), lr=rate, eps=spec.epsilon),
        "Adam": lambda: torch.optim.SparseAdam(bag.parameters(), lr=rate, betas=(0.9, spec.beta2), eps=spec.epsilon),
    }
    optimizer, sums = optimizers.get(kind, optimizers["SGD"])(), torch.zeros(rows, dtype=torch.float64)
    for step in range(1, 201):
        ids, labels = rng.integers(0, rows, (batch, 3)), torch.from_numpy(rng.integers(0, 2, batch) * 1.0)

        def loss_of(vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            logits = vectors @ head
            return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / batch

        bag.zero_grad()
        loss_of(bag(torch.from_numpy(ids)), labels).backward()
        if kind == "RowWiseAdagrad":
            gradient = cast(torch.Tensor, bag.weight.grad)
            sums += gradient.square().mean(1)
            with torch.no_grad():
                bag.weight -= rate * gradient / (sums.sqrt() + spec.epsilon)[:, None]
        else:
            optimizer.step()

        parts = []
        for mine in np.array_split(np.arange(batch), trainers):
            unique, inverse = np.unique(ids[mine], return_inverse=True)
            vectors = torch.from_numpy(arena_rows[unique]).requires_grad_()
            loss_of(vectors[torch.from_numpy(inverse.reshape(-1, 3))].sum(1), labels[torch.from_numpy(mine)]).backward()
            gradients = cast(torch.Tensor, vectors.grad).numpy()
            parts.append((BandRows(unique, unique, cast(Floats, gradients)),))
        (merged,) = merge(parts)
        assert isinstance(merged, BandRows)
        state = arena_state[merged.slots]
        arena_rows[merged.slots] += changes_of(spec, cast(Floats, state), merged.gradients, step)
        arena_state[merged.slots] = state
    assert np.abs(arena_rows - bag.weight.detach().numpy()).max() <= 1e-10


def serving(trainers: int = 2, applied: int = 0) -> tuple[StepService, list[FakeClient]]:
    job = replace(small_job(Path("unused"), trainers=trainers, dim=DIM), sparse_updates="PerStep")
    job = replace(job, model=replace(job.model, sparse_optimizer=SparseOptimizerSpec("SGD", 0.1)))
    service = StepService(job, Placement.of(job.model, 1), 0, Arena.empty(job, ROWS), Metrics())
    service.counters = Counters(roster=1, group=1, generation=1)
    clients = [FakeClient(service, rank) for rank in range(trainers)]
    for client in clients:
        service.joined(client)
    progress = Progress(1, (applied,) * trainers, Losses.restored((), trainers), RowUpdates((0,) * trainers))
    progress.cuts, progress.replay_barrier = Cuts(), ReplayBarrier.closed(trainers)
    service.start(progress)
    return service, clients


def commit(client: FakeClient, step: int, first: int = 1, rows: int | None = None, **fields: Any) -> list[str]:
    return client.send_frame(Operation.COMMIT, step, order=first, row_updates=step if rows is None else rows, **fields)


def value(service: StepService, row: int = 0) -> float:
    """Return the sum of the gradients that a row has taken, at a learning rate of 0.1."""
    slot = Placement([50, 30], 1).slots_on(0, np.array([row]))
    return round(-float(service.arena.rows[slot][0, 0]) / 0.1)


def test_step_is_applied_once_all_ranks_have_committed_it() -> None:
    service, (one, two) = serving()
    assert commit(one, 0) == commit(two, 0) == []
    assert one.pushes(1) == ["RECEIVED"]
    assert two.pushes(1) == ["RECEIVED"]
    assert commit(one, 1) == []
    assert value(service) == 0
    assert commit(two, 1) == ["ACK"]
    assert value(service) == 2
    assert one.sent[-1][0].operation is Operation.ACK
    assert service.progress is not None
    assert service.progress.row_updates == RowUpdates((1, 1))
    assert two.pushes(1) == ["ACK"], "a repeated push of an applied step is only acknowledged"
    assert value(service) == 2


def test_lookup_waits_for_the_step_before_it() -> None:
    service, (one, two) = serving()
    for client in (one, two):
        commit(client, 0)
        client.pushes(1)
    commit(one, 1)
    ask: dict[str, Any] = {"payload": np.array([0], np.int32).tobytes(), "count": 1, "ticket": 7}
    assert one.send_frame(Operation.LOOKUP, 1, **ask) == ["VECTORS"]
    assert one.send_frame(Operation.LOOKUP, 2, **ask) == []
    commit(two, 1)
    assert one.answers_since()[-2:] == ["ACK", "VECTORS"]
    assert service.progress is not None
    assert service.progress.applied == (1, 1)


def test_contribution_of_a_lost_rank_counts_and_its_successor_only_commits() -> None:
    service, (one, two) = serving()
    for client in (one, two):
        commit(client, 0)
        client.pushes(1)
    service.left(two)
    commit(one, 1)
    successor = FakeClient(service, 1)
    service.joined(successor)
    assert value(service) == 0
    commit(successor, 1, first=2)
    assert value(service) == 2
    assert service.progress is not None
    assert service.progress.losses.lost == ()


def test_contribution_that_is_computed_again_replaces_the_former_one() -> None:
    service, (one, two) = serving()
    for client in (one, two):
        commit(client, 0)
        client.pushes(1)
    assert one.pushes(1, row=2) == ["RECEIVED"]
    commit(one, 1)
    commit(two, 1)
    assert (value(service, 0), value(service, 2)) == (1, 1)


def test_missing_contribution_is_left_out_and_charged_to_its_rank() -> None:
    service, (one, two) = serving(applied=2)
    commit(one, 4, first=3)
    one.pushes(3)
    one.pushes(4)
    assert value(service) == 0
    assert commit(two, 4, first=5, rows=6)[-1] == "ACK"
    assert value(service) == 2
    progress = service.progress
    assert progress is not None
    assert progress.applied == (4, 4)
    assert progress.resumed
    order = order_of(1000, 10)
    slices = [order.slice_of(step, 1, 2) for step in (3, 4)]
    assert progress.losses.lost == tuple((each.start, each.stop) for each in slices)
    assert progress.row_updates.lost == 6 + 2, "rank 1 misses six rows, and rank 0 had pushed two before"


def test_row_updates_are_complete_after_a_trainer_is_replaced_twice() -> None:
    """The first successor is lost while it misses steps: the second counts from the step before them."""
    service, (one, two) = serving(applied=2)
    commit(one, 6, first=3, rows=6)
    one.pushes(3)
    commit(two, 6, first=7, rows=6)
    service.left(two)
    successor = FakeClient(service, 1)
    service.joined(successor)
    pong = successor.sent[-1][0]
    assert (pong.operation, pong.step, pong.order, pong.row_updates) == (Operation.PONG, 3, 3, 0)
    commit(successor, 6, first=7, rows=pong.row_updates + 6 - (pong.order - 1))
    for step in (4, 5, 6):
        one.pushes(step)
    assert service.progress is not None
    assert service.progress.resumed
    assert service.progress.row_updates.pushed[1] == 4


def test_steps_that_no_process_has_counted_are_counted_after_a_restore() -> None:
    """Rank 1 is lost while it misses steps, and the job stops: a save holds what its successor has to count."""
    service, (one, two) = serving(applied=2)
    one.pushes(3)
    commit(one, 3, first=3, rows=3, count=1)
    commit(two, 6, first=7, rows=6)
    service.left(two)
    service.joined(FakeClient(service, 1))
    assert service.progress is not None
    mark = service.mark(service.progress)
    assert (mark.applied, mark.row_updates.counted) == ((3, 3), (3, 2))
    restored, (_, successor) = serving(applied=3)
    losses = Losses.restored(mark.lost, 2, mark.applied, mark.row_updates.counted)
    restored.start(Progress(1, mark.applied, losses, replace(mark.row_updates, counted=())))
    assert successor.sent[-1][0].order == 3
    commit(successor, 3, first=4, rows=1)
    assert restored.progress is not None
    assert restored.progress.row_updates.pushed[1] == 1
    assert restored.mark(restored.progress).row_updates.counted == ()


def test_cut_is_taken_between_two_steps() -> None:
    service, clients = serving()
    cut: list[float] = []
    service.on_cut = lambda: cut.append(value(service))
    for step in range(1, 4):
        for client in clients:
            commit(client, step - 1, cut_step=2)
            client.pushes(step, cut_step=2)
    for client in clients:
        commit(client, 3, cut_step=2)
    assert cut == [4]
    assert value(service) == 6


def test_rows_out_of_their_order_are_refused() -> None:
    _, (one, _) = serving()
    commit(one, 0)
    slots = Placement([50, 30], 1).slots_on(0, np.array([0, 1]))
    numbers = np.array([0, 1] if slots[0] > slots[1] else [1, 0], np.int32)
    payload = numbers.tobytes() + np.ones((2, DIM), np.float32).tobytes()
    one.send_frame(Operation.PUSH, 1, payload, count=2)
    assert one.refusals == ["rows are not in the order of their places"]
