"""Each baseline of the benchmarks trains the same model on the same samples as CPRJob."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.codec import to_json
from cpr_contract.env import SPEC
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_trainer.runtime import Trace
from cprjob_bench.roles.single import train
from processes.jobs import two_labels
from support.local_job import small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[3]
BASELINES = REPOSITORY / "benchmarks" / "baselines"
PACKAGES = os.pathsep.join(str(REPOSITORY / folder) for folder in ("trainer_image", "benchmarks"))
PEERS_PYTHON = BASELINES / ".venv" / "bin" / "python"
needs_torchrec = pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="TorchRec is not installed: run `make peers`")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((sys.executable, "rpc_baseline.py"), id="torch-rpc"),
        pytest.param((PEERS_PYTHON, "torchrec_baseline.py", "1"), id="torchrec", marks=needs_torchrec),
        pytest.param((PEERS_PYTHON, "torchrec_baseline.py", "2"), id="torchrec-gloo", marks=needs_torchrec),
    ],
)
def test_baseline_ends_with_the_parameters_of_one_process(tmp_path: Path, command: tuple[str | Path, ...]) -> None:
    job = small_job(tmp_path, samples=1000)
    with closing(Trace(None)) as untraced:
        alone, _ = train(job, untraced)
    python, script, *arguments = command
    variables = {SPEC: to_json(job), STEP_TRACE: str(tmp_path / "steps"), "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(
        [python, BASELINES / script, *arguments, tmp_path / "end.pt"],
        env={**os.environ, **variables, "PYTHONPATH": PACKAGES},
        check=True,
    )
    torch.testing.assert_close(torch.load(tmp_path / "end.pt"), alone.parameters, rtol=1e-3, atol=1e-5)
    assert [TracedStep.of_line(line).step for line in (tmp_path / "steps").read_text().splitlines()] == [*range(1, 11)]


#: Trains the job in the environment in one process, and writes its scores.
TRAIN_ALONE = """
import json, os, torch
from cpr_trainer.data.open import files_of
from cpr_trainer.data.open import open_dataset
from cpr_trainer.single_process import SingleProcessTrainer
from cpr_trainer.runtime import read_job
torch.set_num_threads(1)
job = read_job(os.environ)
trainer = SingleProcessTrainer(job, open_dataset(job.data, job.model, files_of(job)), job.data.seed)
trainer.train(lambda samples: None)
print(json.dumps(trainer.scores.validation.metrics()))
"""


@needs_torchrec
def test_torchrecs_own_modules_are_a_dense_network(tmp_path: Path) -> None:
    job = two_labels(tmp_path)
    job = replace(job, data=replace(job.data, epochs=8))
    job = replace(job, model=replace(job.model, entrypoint="torchrec_dlrm:Network"))
    folders = (PACKAGES, str(REPOSITORY / "tests" / "support"))
    done = subprocess.run(
        [PEERS_PYTHON, "-c", TRAIN_ALONE],
        env={**os.environ, SPEC: to_json(job), "PYTHONPATH": os.pathsep.join(folders)},
        check=True,
        capture_output=True,
        text=True,
    )
    scores = dict(json.loads(done.stdout.splitlines()[-1]))
    metrics = ("auc", "logloss", "calibration")
    assert scores.keys() == {f"{label}.{metric}" for label in ("click", "buy") for metric in metrics}
    assert scores["click.auc"] > 0.65
    assert scores["buy.auc"] > 0.7
