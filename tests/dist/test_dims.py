"""Jobs whose tables have several dims, and lose a shard, end where one process does; on other shards bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode
from cpr_contract.roster import Allowance, AnchorRef, Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.evaluate import evaluate
from cpr_trainer.store import open_store
from cprjob import fit
from support.local_job import LocalJob, small_job
from support.lost_shards import WITHOUT_LOSS
from support.model import SavedModel, assert_close, assert_fitted, assert_same, saved_model, train_alone
from support.row_dims import with_dims
from support.row_optimizers import mixed
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 40_000
DIMS = (None, 3, 16, 8)  # the second and the third of their own, the others 8


@pytest.fixture(scope="module", autouse=True)
def network() -> object:
    """The network can be imported here, and by the processes that are started."""
    folder = str(Path(__file__).parents[1] / "support")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", folder, prepend=":")
        yield


def job_of(folder: Path, *, entrypoint: str | None = None) -> JobSpec:
    """One trainer, two shards, an optimizer of its own for each table."""
    job = mixed(with_dims(small_job(folder, samples=SAMPLES), *DIMS))
    data = replace(job.data, hold_out=0.1)
    return replace(job, data=data, model=replace(job.model, entrypoint=entrypoint))


@dataclass(frozen=True)
class Ended:
    """A job that ended in this anchor."""

    job: JobSpec
    anchor: AnchorRef
    model: SavedModel


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("undisturbed")
    job = job_of(folder)
    with LocalJob(job, folder) as running:
        running.start()
        anchor = running.result()
    return Ended(job, anchor, saved_model(job, anchor, folder / "model"))


@pytest.mark.parametrize("entrypoint", [None, "several_dims:Network"])
@pytest.mark.parametrize("lose", WITHOUT_LOSS)
def test_a_job_that_lost_a_shard_ends_like_the_oracle(
    tmp_path: Path, lose: Callable[[LocalJob], None], entrypoint: str | None
) -> None:
    job = job_of(tmp_path, entrypoint=entrypoint)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        lose(running)
        running.replace_shard(1)
        anchor = running.result()
        assert running.shards[1].incarnation == 2
    model = saved_model(job, anchor, tmp_path / "model")
    assert [tuple(table.shape) for table in model.tables] == [(2000, 8), (1200, 3), (800, 16), (500, 8)]
    assert_close(model, train_alone(job))


def test_a_job_goes_on_with_another_number_of_shards_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: Ended
) -> None:
    job, anchor = job_of(tmp_path), None
    for generation, shards in enumerate((2, 3), start=1):
        folder = tmp_path / f"run-{generation}"
        folder.mkdir()
        running = LocalJob(replace(job, shards=shards), folder)
        running.counters, running.anchor = Counters(roster=0, group=generation, generation=generation), anchor
        with running:
            running.start(run_slowly)
            if generation == 1:
                running.reach(SAMPLES // 2)
                anchor = stop_all(running)
                assert 0 < anchor.samples < SAMPLES
            else:
                result = running.result()
    assert_same(saved_model(job, result, tmp_path / "model"), undisturbed.model)


def stop_all(running: LocalJob) -> AnchorRef:
    for role, members in ((ROLE_TRAINER, running.trainers), (ROLE_SHARD, running.shards)):
        running.stopped |= {role}
        running.publish()
        assert [running.wait_exit(member) for member in members] == [ExitCode.FLUSHED] * len(members)
    return from_json(AnchorRef, running.trainers[running.leader].last_word)


def test_training_goes_on_without_a_shard(tmp_path: Path) -> None:
    """Its rows read as first values, of each dim; the shard comes back and tells what it lost."""
    job = job_of(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 4)
        running.kill(running.shards[1])
        running.wait_for(lambda: "shard/1" in running.trainer().waiting_for, "the leader waits for the shard")
        running.allowances = (Allowance(1, running.trainer().samples_started + SAMPLES),)
        running.may_restore = False
        running.replace_shard(1)
        running.reach(running.trainer().samples + SAMPLES // 6)
        assert running.trainer().waiting_for == ()
        running.may_restore = True
        running.publish()
        report = running.wait_for(lambda: running.shard(1).resumed_samples and running.shard(1), "it is back")
        degraded = running.trainer().degraded_samples
        running.result()
    assert degraded >= SAMPLES // 6
    assert report.lost[0][0] == report.restored_samples < report.lost[-1][1] <= SAMPLES


def test_fit_ends_in_the_same_model_and_evaluate_scores_it_alike(undisturbed: Ended) -> None:
    job = undisturbed.job
    torch.set_num_threads(1)  # as the job's processes have: sums are in the same order
    found = fit(spec_of(job))
    assert_fitted(found, job, undisturbed.model)
    held_out = found.held_out
    dataset, store = (
        open_dataset(job.data, job.model, files_of(job)),
        open_store(job.snapshots.store, None, None),
    )
    scored = evaluate(job, dataset, store, undisturbed.anchor.key)
    assert held_out is not None
    assert (scored.auc, scored.log_loss, scored.samples) == (held_out.auc, held_out.log_loss, SAMPLES // 10)


def spec_of(job: JobSpec) -> dict[str, Any]:
    """The job as its user would write it."""
    model, data = job.model, job.data
    tables = []
    for table in model.tables:
        written: dict[str, Any] = {"name": table.name, "rows": table.rows}
        if table.dim is not None:
            written["dim"] = table.dim
        if table.optimizer is not None:
            its = table.optimizer
            written["optimizer"] = {"kind": its.kind, "learningRate": its.learning_rate}
            if its.kind != "SGD":
                written["optimizer"]["epsilon"] = its.epsilon
            if its.kind == "Adam":
                written["optimizer"] |= {"beta1": its.beta1, "beta2": its.beta2}
        tables.append(written)
    dense, sparse = model.dense_optimizer, model.sparse_optimizer
    return {
        "model": {
            "embeddingDim": model.embedding_dim,
            "bottomMlp": list(model.bottom_mlp),
            "topMlp": list(model.top_mlp),
            "tables": tables,
            "denseOptimizer": {"kind": dense.kind, "learningRate": dense.learning_rate},
            "sparseOptimizer": {"kind": sparse.kind, "learningRate": sparse.learning_rate},
        },
        "data": {
            "format": data.format,
            "samples": data.samples,
            "batchSize": data.batch_size,
            "seed": data.seed,
            "holdOut": data.hold_out,
        },
    }
