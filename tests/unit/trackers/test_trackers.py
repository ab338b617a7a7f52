"""Each tracker by its own package, in a folder of the test: what was logged is read back."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cpr_contract.spec import JobSpec
from cpr_trainer.runtime.environment import BadSpecError
from cpr_trainer.trainer import trackers
from cpr_trainer.trainer.trackers import Tracker, read_trackers
from support.local_job import small_job
from support.runs import until

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=1000)


def opened(text: str, job: JobSpec) -> Tracker:
    (make,) = read_trackers(text, job)
    return make()


def log_twice(text: str, job: JobSpec) -> None:
    """A leader logs, and after its end its successor, which finishes the job."""
    for samples, auc, finished in ((1000, 0.5, False), (2000, 0.75, True)):
        tracker = opened(text, job)
        tracker.log(samples, {"auc": auc, "loss": 0.5})
        tracker.close(finished=finished)


def test_tensorboard_reads_the_event_files(job: JobSpec, tmp_path: Path) -> None:
    log_twice(f"tensorboard:{tmp_path / 'logs'}", job)
    events = EventAccumulator(str(tmp_path / "logs" / job.job_name))
    events.Reload()
    assert events.Tags()["scalars"] == ["auc", "loss"]
    assert [(each.step, each.value) for each in events.Scalars("auc")] == [(1000, 0.5), (2000, 0.75)]


def test_mlflow_has_one_run_of_both_leaders(job: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "clicks")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    log_twice("mlflow", job)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("clicks")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (job.job_name, "FINISHED")
    history = client.get_metric_history(run.info.run_id, "auc")
    assert [(each.step, each.value) for each in history] == [(1000, 0.5), (2000, 0.75)]


LOCAL = ("", "sqlite:///runs.db", "file:///runs", "runs")


@pytest.mark.parametrize("uri", LOCAL)
def test_mlflow_client_refuses_a_local_store_at_the_start(
    job: JobSpec, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is mlflow-skinny."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(BadSpecError) as caught:
        read_trackers("mlflow", job)
    assert caught.value.message.startswith(f"MLFLOW_TRACKING_URI is {uri or 'not set'}, and ")
    assert "Set MLFLOW_TRACKING_URI to a server" in caught.value.remedy
    assert ("pip install mlflow" in caught.value.remedy) is (uri in LOCAL[:2])


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "https://tracking.example/mlflow", "databricks"])
def test_mlflow_server_may_answer_later(job: JobSpec, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert len(read_trackers("mlflow", job)) == 1


def test_wandb_writes_its_file_before_a_run_ends(job: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network. A kill therefore loses the metrics of the last seconds only."""
    settings = {"MODE": "offline", "DIR": str(tmp_path), "PROJECT": "clicks", "CACHE_DIR": str(tmp_path)}
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setattr(trackers, "FLUSH_S", 0.1)

    def written() -> list[bool]:
        return [b"auc" in path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]

    for leaders in (1, 2):
        tracker = opened("wandb", job)
        tracker.log(1000 * leaders, {"auc": 0.5})
        until(lambda expected=leaders: written() == expected * [True])
        tracker.close(finished=leaders == 2)
    names = {path.name for path in tmp_path.glob("wandb/offline-run-*/*.wandb")}
    assert names == {f"run-{job.job_uid}.wandb"}
