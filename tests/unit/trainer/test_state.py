from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.model import OptimizerSpec
from cpr_contract.spec import ByNameSpec, FollowSpec, JobSpec
from cpr_trainer.checkpoint.format.documents import LayoutError
from cpr_trainer.errors import ModelError
from cpr_trainer.model.replica import NETWORK
from cpr_trainer.trainer.allreduce.group import NO_STATE
from cpr_trainer.trainer.scores import ScoredSlice
from cpr_trainer.trainer.state import DenseState
from support.local_job import small_job


@pytest.fixture
def state(tmp_path: Path) -> DenseState:
    return DenseState(small_job(tmp_path, samples=1_000), 1_000)


def test_copied_state_is_the_same(state: DenseState, tmp_path: Path) -> None:
    state.begin({})
    state.skip_to(3)
    state.replica.gradients.fill_(0.5)
    state.replica.step(4)
    other = DenseState(small_job(tmp_path, samples=1_000), 1_000)
    other.unpack(state.pack(), state.done)

    assert (other.done, other.lost, other.samples) == (3, ((0, 300),), 300)
    assert torch.equal(other.replica.live, state.replica.live)


def test_saved_tensors_are_copies(state: DenseState) -> None:
    state.begin({})
    saved = state.tensors()
    state.replica.parameters.add_(1.0)

    assert not torch.equal(saved[NETWORK], state.replica.live)


def test_state_begins_with_another_jobs_network(state: DenseState, tmp_path: Path) -> None:
    assert state.done == NO_STATE
    other = DenseState(small_job(tmp_path, samples=1_000), 1_000)
    state.replica.parameters.fill_(0.25)
    other.begin(state.tensors())

    assert other.done == 0
    assert torch.equal(other.replica.parameters, state.replica.parameters)


def test_skipped_steps_are_lost(state: DenseState) -> None:
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


def test_segments_are_part_of_the_state_of_a_job_that_follows_its_data(state: DenseState, tmp_path: Path) -> None:
    """An anchor without them, or one of a job that does not follow, is read as well."""
    state.begin({})
    job = small_job(tmp_path, samples=1_000)
    job = replace(job, data=replace(job.data, follow=FollowSpec(1.0)))
    followed, copied, old = (DenseState(job, 1_000) for _ in range(3))
    followed.begin({})
    scores = followed.scores
    for step in (1, 2, 3):
        labels = torch.tensor([0.0, 1.0])
        scores.add(ScoredSlice(step, 1, 100 * step, torch.tensor([-1.0, step]), labels, 0.5))
        scores.merge(*scores.to_merge())
        if step == 2:
            scores.end_segment(2, 5, 100)
    copied.unpack(followed.pack(), 3)
    found, expected = copied.scores.boundary, scores.boundary
    assert found is not None
    assert expected is not None
    assert (found.step, found.scores) == (2, expected.scores)
    assert torch.equal(found.counters, expected.counters)
    assert copied.scores.report_fields()["segment"].stop == 200
    old.load(state.tensors(), 3)
    assert old.scores.boundary is not None
    assert (old.scores.boundary.step, old.scores.boundary.scores) == (3, None)
    assert not {name for name in state.tensors() if name.startswith("boundary")}


def job_with(folder: Path, *, top: tuple[int, ...] = (8, 1), seed: int = 1, optimizer: str = "Adam") -> JobSpec:
    job = small_job(folder, samples=1_000)
    model = replace(job.model, top_mlp=top, dense_optimizer=OptimizerSpec(optimizer, 0.1))  # type: ignore[arg-type]
    return replace(job, model=model, data=replace(job.data, seed=seed))


def trained(job: JobSpec) -> DenseState:
    state = DenseState(job, 1_000)
    state.begin({})
    for step in (1, 2):
        state.replica.gradients.fill_(0.5)
        state.replica.step(step)
    return state


def by_parameter(state: DenseState) -> dict[str, torch.Tensor]:
    """The values of each parameter and its optimizer state, float32 [k, p]."""
    flat, found, first = state.replica.live.clone(), {}, 0
    for each in state.replica.parameter_shapes():
        found[each.name] = flat[:, first : first + each.size]
        first += each.size
    assert first == flat.shape[1]
    return found


def test_state_begins_with_another_networks_values_by_name(tmp_path: Path) -> None:
    old, job = trained(job_with(tmp_path)), job_with(tmp_path, top=(8, 4, 1), seed=2)
    state = DenseState(job, 1_000)
    fresh = {name: value.clone() for name, value in by_parameter(state).items()}
    with pytest.raises(LayoutError, match=r"spec.restoreFrom.missing: the dense network of key has no "):
        state.begin_by_name(old.saved_model(), old.tensors(), ByNameSpec(), "key")
    state.begin_by_name(old.saved_model(), old.tensors(), ByNameSpec("Initialise", "Ignore"), "key")

    assert state.done == 0
    there, here = by_parameter(old), by_parameter(state)
    same = [name for name in here if name in there and there[name].shape == here[name].shape]
    assert 0 < len(same) < len(here)
    for name, value in here.items():
        assert torch.equal(value, there[name] if name in same else fresh[name]), name
    assert state.replica.optimizer_steps == 2
    for name, parameter in state.replica.model.named_parameters():
        assert torch.equal(parameter.flatten(), here[name][0]), "the network computes with what was taken"


def test_network_of_another_optimizer_is_refused_unless_its_state_is_the_same(tmp_path: Path) -> None:
    old = trained(job_with(tmp_path))
    state = DenseState(job_with(tmp_path, optimizer="Adagrad"), 1_000)
    with pytest.raises(LayoutError, match=r"or set spec\.restoreFrom\.dense to Initialise"):
        state.begin_by_name(old.saved_model(), old.tensors(), ByNameSpec(), "key")
    other_job = DenseState(job_with(tmp_path, optimizer="AdamW"), 1_000)
    other_job.begin_by_name(old.saved_model(), old.tensors(), ByNameSpec(), "key")
    assert torch.equal(other_job.replica.live, old.replica.live)
