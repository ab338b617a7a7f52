"""The scheduler `cprjob` of TorchX against jobs in memory. tests/cluster runs the `torchx` command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.runner import Runner, get_runner
from torchx.schedulers.api import Stream
from torchx.specs import AppState
from torchx.specs.finder import get_components

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.client import ClientError
from cpr_operator.torchx import scheduler as module
from cpr_operator.torchx.application import SchedulerError
from cpr_operator.torchx.components import dlrm

EXAMPLE = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
EXAMPLE_JOB = yaml.safe_load(EXAMPLE.read_text("utf-8"))
HANDLE = "cprjob://torchx/team:quickstart"


class FakeConnection:
    """The jobs of a cluster by namespace and name."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self.kubeconfig, self.context, self.namespace = kubeconfig, context, "team"

    def close(self) -> None: ...

    def create(self, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        key = namespace, manifest["metadata"]["name"]
        if key in self.stored:
            raise ClientError('cprjobs.cprjob.io "quickstart" already exists; give another name')
        spec = CPRJobSpec.model_validate(manifest["spec"]).model_dump(mode="json", by_alias=True)
        self.stored[key] = {
            "metadata": manifest["metadata"] | {"uid": manifest["metadata"]["name"]},
            "spec": spec,
            "status": {},
        }
        return self.stored[key]

    def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.stored.get((namespace, name))

    def jobs(self, namespace: str) -> list[dict[str, Any]]:
        return [job for (place, _), job in self.stored.items() if place == namespace]

    def change(self, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        self.stored[namespace, name]["spec"] |= patch["spec"]
        return self.stored[namespace, name]

    def delete(self, namespace: str, name: str) -> None:
        del self.stored[namespace, name]

    def pods(self, namespace: str, labels: Mapping[str, object]) -> list[dict[str, Any]]:
        return []

    stored: dict[tuple[str, str], dict[str, Any]]


Jobs = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr("cpr_operator.client.client.KubeConnection", FakeConnection)
    monkeypatch.setattr(FakeConnection, "stored", {}, raising=False)
    monkeypatch.setenv("TORCHXCONFIG", "")  # none
    return FakeConnection.stored


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner() as runner:
        yield runner


def start(runner: Runner, **cfg: Any) -> str:
    return str(runner.run(dlrm(str(EXAMPLE)), "cprjob", cfg))


def test_torchx_runs_lists_describes_cancels_and_deletes_a_job(runner: Runner, jobs: Jobs) -> None:
    assert start(runner) == HANDLE
    job = jobs["team", "quickstart"]
    assert (job["spec"]["trainers"]["replicas"], job["spec"]["shards"]["replicas"]) == (1, 2)
    listed = runner.list("cprjob")
    assert [(each.app_handle, each.name, each.state) for each in listed] == [(HANDLE, "quickstart", AppState.SUBMITTED)]
    assert runner.list("cprjob", {"namespace": "other"}) == []
    assert runner.list("cprjob", {"namespace": "team"}) == listed

    job["status"] |= {"phase": "Running", "restarts": 2}
    status = runner.status(HANDLE)
    assert status is not None
    assert (status.state, status.num_restarts) == (AppState.RUNNING, 2)
    described = runner.describe(HANDLE)
    assert described is not None
    assert [(role.name, role.num_replicas) for role in described.roles] == [("trainer", 1), ("shard", 2)]

    runner.cancel(HANDLE)
    assert job["spec"]["suspend"] is True
    job["status"]["phase"] = "Suspended"
    status = runner.status(HANDLE)
    assert status is not None
    assert status.state == AppState.CANCELLED
    runner.delete(HANDLE)
    assert jobs == {}
    assert runner.status(HANDLE) is None


def test_dryrun_prints_the_manifest_without_a_request(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Client", None)
    info = runner.dryrun(dlrm(str(EXAMPLE)), "cprjob", {"namespace": "team"})
    expected = EXAMPLE_JOB | {"metadata": EXAMPLE_JOB["metadata"] | {"namespace": "team"}}
    assert yaml.safe_load(str(info)) == yaml.safe_load(str(info.request)) == expected


def test_torchxconfig_selects_the_cluster(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[cprjob]\nkubeconfig = /there\ncontext = test\nnamespace = other\n")
    made = module.create_scheduler("torchx")
    assert made.list() == []
    client: Any = made._client
    connection = client._connection
    assert (client.namespace, connection.context, connection.kubeconfig) == ("other", "test", "/there")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role_name": "master"}, "no role master; name trainer or shard"),
        ({"role_name": "shard", "streams": Stream.STDERR}, "both streams in one"),
        ({"role_name": "trainer"}, "trainer/0 of team/quickstart has no pod"),
    ],
)
def test_unreadable_log_raises_scheduler_error(
    runner: Runner, jobs: Jobs, arguments: dict[str, Any], message: str
) -> None:
    start(runner)
    with pytest.raises(SchedulerError, match=message):
        list(runner.log_lines(HANDLE, **arguments))


def test_client_error_ends_a_command_with_its_remedy(runner: Runner, jobs: Jobs) -> None:
    start(runner)
    with pytest.raises(SchedulerError, match="already exists; give another name") as refused:
        start(runner)
    assert isinstance(refused.value, SystemExit)


def test_torchx_keeps_its_own_components() -> None:
    assert {"cprjob.dlrm", "utils.echo"} <= set(get_components())


@pytest.mark.parametrize("source", ["1", "2"], ids=["namespace-package", "entry-point"])
def test_torchx_finds_the_scheduler_without_a_warning(source: str) -> None:
    """TorchX reads its plugins once in a process."""
    command = [str(Path(sys.executable).parent / "torchx"), "runopts", "cprjob"]
    environment = os.environ | {"TORCHX_PLUGINS_SOURCE": source}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "kubeconfig=KUBECONFIG" in done.stdout
    assert not done.stderr
