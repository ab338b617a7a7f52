from pathlib import Path

import pytest
import torch

from cpr_trainer.errors import ModelError
from cpr_trainer.model.replica import NETWORK
from cpr_trainer.trainer.group.meeting import NO_STATE
from cpr_trainer.trainer.state import DenseState
from support.local_job import small_job


@pytest.fixture
def state(tmp_path: Path) -> DenseState:
    return DenseState(small_job(tmp_path, samples=1_000), 1_000)


def test_a_copy_is_the_same_state(state: DenseState, tmp_path: Path) -> None:
    state.begin({})
    state.skip_to(3)
    state.replica.gradients.fill_(0.5)
    state.replica.step(4)
    other = DenseState(small_job(tmp_path, samples=1_000), 1_000)
    other.unpack(state.pack(), state.done)

    assert (other.done, other.lost, other.samples) == (3, ((0, 300),), 300)
    assert torch.equal(other.replica.state(), state.replica.state())


def test_saved_tensors_are_copies(state: DenseState) -> None:
    state.begin({})
    saved = state.tensors()
    state.replica.parameters.add_(1.0)

    assert not torch.equal(saved[NETWORK], state.replica.state())


def test_it_begins_without_a_state_and_with_another_jobs_network(state: DenseState, tmp_path: Path) -> None:
    assert state.done == NO_STATE
    other = DenseState(small_job(tmp_path, samples=1_000), 1_000)
    state.replica.parameters.fill_(0.25)
    other.begin(state.tensors())

    assert other.done == 0
    assert torch.equal(other.replica.parameters, state.replica.parameters)


def test_only_what_nobody_trained_is_lost(state: DenseState) -> None:
    state.begin({})
    state.skip_to(0)
    assert state.lost == ()
    state.skip_to(4)
    state.done = 6
    state.skip_to(12)  # the last batch is the tenth

    assert state.lost == ((0, 400), (600, 1_000))


def test_scores_of_another_network_are_refused(state: DenseState) -> None:
    state.begin({})
    saved = state.tensors()
    with pytest.raises(ModelError, match="of another network: an evaluation state is int64"):
        state.load(saved | {"evaluation": saved["evaluation"][1:]}, 3)
