"""The jobs of the tests of this folder: 240 steps with one trainer and two shards, and their models.

Each function makes a job by name, with its data and its store in a folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cpr_contract.model import (
    CrossSpec,
    DynamicSpec,
    OptimizerSpec,
    PhaseSpec,
    RowOptimizer,
    SparseOptimizerSpec,
    TableSpec,
)
from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import NEW_FIELDS_VERSION, ColumnsSpec, DataSpec, EarlyStopSpec, EvaluationSpec, JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.evaluate import score_held_out
from cpr_trainer.single_process import SingleProcessTrainer
from cpr_trainer.trainer.scores import EarlyStopState
from support import bag_data, feature_data, table_data
from support.local_job import small_job, small_steps
from support.row_dims import with_dims, with_precisions
from support.row_optimizers import mixed

ROOT = Path(__file__).parents[2]
#: The folders with the jobs' networks, and with rows from code.
PACKAGES = (ROOT / "tests", ROOT / "examples" / "two_labels", ROOT / "examples" / "own_data")
STEPS, BATCH = 240, 100
SAMPLES = STEPS * BATCH
DIMS = (None, 3, 16, 8)  # the second and the third table have a dim of their own, the others 8
EVERY = 20 * BATCH
STOP = EarlyStopSpec("AUC", 2, 0.01)


def plain(folder: Path) -> JobSpec:
    return small_job(folder, samples=SAMPLES)


def three_workers(folder: Path) -> JobSpec:
    """Three threads compute each step of a DCN V2; their gradients are summed in one order."""
    job = replace(plain(folder), workers=3)
    return replace(job, contract=NEW_FIELDS_VERSION, model=replace(job.model, cross=CrossSpec(2, 6)))


def dims(folder: Path) -> JobSpec:
    """Tables of three dims, each with an optimizer of its own, under the DLRM."""
    job = mixed(with_dims(plain(folder), *DIMS))
    return replace(job, data=replace(job.data, hold_out=0.1))


def half_rows(folder: Path) -> JobSpec:
    """Tables of one dim, every second one in bf16, with saves on earlier ones."""
    job = with_precisions(plain(folder), "bf16", "fp32")
    return replace(job, snapshots=replace(job.snapshots, rebase="Consecutive"))


def dynamic(folder: Path) -> JobSpec:
    """A log in CSV with ids of dynamic tables: users are counted and expire, and items evict each other."""
    (folder / "log").mkdir()
    rows = table_data.clicks(SAMPLES // 6, seed=1)
    (folder / "log" / "day=1.csv").write_bytes(table_data.as_text(rows, ","))
    counted, full = DynamicSpec(min_steps=3, ttl_steps=20), DynamicSpec(score="Pushes", halving_steps=50)
    tables = (
        TableSpec("user", 3 * 4096, ids="Dynamic", hash_seed=3, dynamic=counted),
        TableSpec("item", 4096, ids="Dynamic", dynamic=full),
        TableSpec("seen", 2 * 4096, ids="Dynamic", hash_seed=4, dynamic=full),
    )
    columns = replace(table_data.COLUMNS, categories=(*table_data.COLUMNS.categories, "item"))
    job, uri = plain(folder), f"{folder}/log/day=*"
    data = DataSpec("CSV", uri, 6, None, BATCH, 11, 0, columns=columns, shuffle_rows=SAMPLES // 24)
    return replace(job, model=replace(job.model, tables=tables), data=data, sparse_updates="PerStep")


def recipe(folder: Path) -> JobSpec:
    """A network over several dims, Adam with clipping and decay, and rates of all optimizers that follow a schedule."""
    phases = (PhaseSpec("Warmup", 160), PhaseSpec("Constant", 20), PhaseSpec("Polynomial", 80, power=2.0))
    kinds = (
        SparseOptimizerSpec("RowWiseAdagrad", 0.02, schedule=phases),
        SparseOptimizerSpec("Adam", 0.002, schedule=phases),
        SparseOptimizerSpec("SGD", 0.5, schedule=phases),
        SparseOptimizerSpec("Adagrad", 0.02, schedule=phases),
    )
    adam = OptimizerSpec("Adam", 0.005, epsilon=1e-8, weight_decay=1e-4, clip_norm=0.5, schedule=phases)
    job = with_dims(plain(folder), *DIMS)
    tables = tuple(replace(table, optimizer=kind) for table, kind in zip(job.model.tables, kinds, strict=True))
    model = replace(job.model, tables=tables, dense_optimizer=adam, entrypoint="support.several_dims:Network")
    return replace(job, model=model)


def features(folder: Path) -> JobSpec:
    """Features that share tables, a sequence with weights among them, read from Parquet."""
    data = feature_data.write_visits(feature_data.visits(SAMPLES // 6), folder / "visits", "parquet")
    adam = OptimizerSpec("Adam", 0.01, epsilon=1e-8, schedule=(PhaseSpec("Warmup", 20),))
    rows = SparseOptimizerSpec("RowWiseAdagrad", 0.05)
    model = replace(feature_data.model_of_features(), dense_optimizer=adam, sparse_optimizer=rows)
    data = replace(data, epochs=6, batch_size=BATCH, seed=11, shuffle_rows=1024)
    return replace(plain(folder), model=model, data=data)


def two_labels(folder: Path) -> JobSpec:
    """The example with two labels, its own loss and its own metrics."""
    script = ROOT / "examples" / "two_labels" / "shop.py"
    subprocess.run([sys.executable, script, folder / "shop", str(SAMPLES // 3)], check=True)
    job = plain(folder)
    model = replace(
        job.model,
        top_mlp=(16,),
        tables=(TableSpec("user", 4000), TableSpec("item", 1000)),
        sparse_optimizer=SparseOptimizerSpec("SGD", 2.0),
        entrypoint="towers:Towers",
        labels=("click", "buy"),
    )
    columns = ColumnsSpec(("click", "buy"), (), ("price",), ("user", "item"))
    data = DataSpec("Parquet", f"{folder}/shop/", 3, None, BATCH, 2, 0, columns=columns)
    return replace(job, model=model, data=data)


def bags(folder: Path) -> JobSpec:
    """Tables with any number of ids a sample, pooled by mean and sum."""
    data = bag_data.write_bags(bag_data.bag_clicks(SAMPLES // 12), folder / "bags", "parquet", files=2)
    data = replace(data, epochs=12, batch_size=BATCH, seed=11, shuffle_rows=1024)
    job = plain(folder)
    return replace(job, model=replace(job.model, tables=bag_data.TABLES), data=data)


def vocabulary(folder: Path) -> JobSpec:
    """The days of a log in CSV; the vocabulary of a table is built from the data, the other one is hashed."""
    (folder / "log").mkdir()
    for day in (1, 2):
        rows = table_data.clicks(SAMPLES // 12, seed=day)
        (folder / "log" / f"day={day}.csv").write_bytes(table_data.as_text(rows, ","))
    tables = (
        TableSpec("user", 61, ids="Vocabulary", out_of_range="DefaultRow", min_count=58),
        TableSpec("item", 50, ids="XXH64", hash_seed=7),
    )
    job, uri = plain(folder), f"{folder}/log/day=*"
    data = DataSpec("CSV", uri, 6, None, BATCH, 11, 0, columns=table_data.COLUMNS, shuffle_rows=SAMPLES // 24)
    return replace(job, model=replace(job.model, tables=tables), data=data)


def weighted(folder: Path) -> JobSpec:
    """A log in Parquet, in its order, with a weight for each sample, a quarter of them 0; rows are held out."""
    random, rows = np.random.default_rng(2), table_data.as_table(table_data.clicks(SAMPLES // 6, seed=1))
    worth = random.exponential(2, len(rows)) * (random.random(len(rows)) < 0.75)
    data = table_data.write(rows.append_column("worth", [worth]), folder / "log", "parquet", files=4)
    columns = replace(table_data.COLUMNS, weight="worth")
    data = replace(data, columns=columns, epochs=None, samples=SAMPLES, shuffle_rows=0, hold_out=0.1)
    data = replace(data, batch_size=BATCH, seed=11)
    job, tables = plain(folder), (TableSpec("user", 100), TableSpec("item", 50))
    model = replace(job.model, tables=tables, has_weights=True)
    return replace(job, contract=NEW_FIELDS_VERSION, model=model, data=data, sparse_updates="PerStep")


def code(folder: Path) -> JobSpec:
    """Rows from the example's code, with row numbers as ids."""
    tables = (TableSpec("user", 4000), TableSpec("page", 1000), TableSpec("tags", 300, "Mean"))
    job, columns = plain(folder), ColumnsSpec(("click",), (), ("price",), ("user", "page", "tags"))
    numbered = tuple(replace(table, ids="RowNumber") for table in tables)
    data = DataSpec(
        "Custom", None, None, SAMPLES, BATCH, 3, 0, columns=columns, hold_out=0.1, entrypoint="clicks:Clicks"
    )
    return replace(job, model=replace(job.model, tables=numbered, numeric=1), data=replace(data, hold_out=0.1))


def wide(folder: Path) -> JobSpec:
    """Eighty tables, one for each column."""
    random, rows = np.random.default_rng(4), SAMPLES // 12
    tables = tuple(TableSpec(f"t{place}", 20 + place, ids="RowNumber") for place in range(80))
    columns = {table.name: random.integers(0, table.rows, rows) for table in tables}
    (folder / "wide").mkdir()
    pq.write_table(pa.table({"click": random.integers(0, 2, rows)} | columns), folder / "wide" / "rows.parquet")
    named = ColumnsSpec(("click",), (), (), tuple(columns))
    data = DataSpec("Parquet", f"{folder}/wide/", 12, None, BATCH, 5, 0, columns=named)
    job = plain(folder)
    return replace(job, model=replace(job.model, tables=tables), data=data)


def early_stop(folder: Path) -> JobSpec:
    """Rows are held out, and the job ends once two evaluations in a row gain less than `STOP`."""
    job = plain(folder)
    return replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(EVERY, 10**6, STOP))


def to_target(folder: Path) -> JobSpec:
    """The job ends at the first evaluation with an AUC of 0.8."""
    job = early_stop(folder)
    evaluation = EvaluationSpec(EVERY, 10**6, EarlyStopSpec("AUC", None, target=0.8))
    return replace(job, contract=NEW_FIELDS_VERSION, evaluation=evaluation)


def noisy(folder: Path) -> JobSpec:
    """A network with dropout and BatchNorm, on two workers that are stated: a measurement would find one."""
    job = plain(folder)
    model = replace(job.model, bottom_mlp=(), top_mlp=(), entrypoint="support.noisy_network:Network")
    return replace(job, model=model, workers=2)


def two_trainers(folder: Path) -> JobSpec:
    """Two trainers in lockstep, by SGD in small steps."""
    return replace(small_steps(plain(folder)), trainers=2)


def merged_steps(folder: Path) -> JobSpec:
    """Two trainers, with shards that merge the pushes of a step."""
    return replace(plain(folder), trainers=2, sparse_updates="PerStep")


def with_rows_by(job: JobSpec, kind: RowOptimizer) -> JobSpec:
    """Return the job with another optimizer of rows."""
    rows = SparseOptimizerSpec(kind, 0.5 if kind == "SGD" else 0.02)
    return replace(job, model=replace(job.model, sparse_optimizer=rows))


def dense_saves(folder: Path) -> JobSpec:
    """Two trainers; the dense state is saved often."""
    job = two_trainers(folder)
    return replace(job, snapshots=replace(job.snapshots, dense_interval_s=0.05))


JOBS: Mapping[str, Callable[[Path], JobSpec]] = {
    make.__name__: make
    for make in (
        *(plain, three_workers, dims, half_rows, dynamic, recipe, features, two_labels),
        *(bags, vocabulary, weighted, code, wide, early_stop, to_target, noisy, two_trainers),
        *(merged_steps, dense_saves),
    )
}


def evaluated_alone(job: JobSpec) -> tuple[tuple[HeldOutScores, ...], EarlyStopState]:
    """Return the evaluations of a single process up to the one that ends the job, and the early-stop state there."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    trainer, found, state = SingleProcessTrainer(job, dataset, job.data.seed), list[HeldOutScores](), EarlyStopState()
    evaluation = job.evaluation
    assert evaluation is not None
    every, stop = evaluation.every, evaluation.early_stop

    class Evaluations:
        def after_step(self, step: int, slots: Ints) -> None:
            del slots
            nonlocal state
            samples = step * job.data.batch_size
            if state.should_stop(stop) or (samples % every and step != trainer.order.steps):
                return

            tables = trainer.tables
            scores = score_held_out(trainer.replica.model, job, dataset, tables.placement, tables.read)
            values = (scores.auc(), scores.log_loss(), scores.normalised_entropy(), scores.calibration())
            found.append(HeldOutScores(step, samples, scores.samples, *values))
            state = state if stop is None else state.after(found[-1], stop)

    trainer.train(lambda _: None, Evaluations().after_step)
    return tuple(found), state
