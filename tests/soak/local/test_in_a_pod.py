"""`cprjob snapshots`, `export` and `evaluate` of a job on a cluster, where they run in a pod.

The job is a real one, which was trained on this machine. The cluster is a server that runs the pod's commands here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cpr_operator.cli.app import app
from support.exec_server import PodServer, serving
from support.runs import run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the working folder of a run in `work`."""
    folder = tmp_path_factory.mktemp("run")
    manifest = folder / "small.yaml"
    data = {"format": "Synthetic", "samples": 20000, "batchSize": 64, "holdOut": 0.1}
    manifest.write_text(yaml.safe_dump(small_job(data=data)), "utf-8")
    code, _, output = run(folder, manifest)
    assert code == 0, output
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[PodServer]:
    (path,) = (folder / "work" / "jobs").rglob("*.json")
    with serving(PodServer(json.loads(path.read_text("utf-8")))) as server:
        yield server


class Cprjob:
    """The program with this cluster, or with the folder of the run."""

    def __init__(self, server: PodServer, folder: Path) -> None:
        self.work = folder / "work"
        self._kubeconfig = server.kubeconfig(folder / "kubeconfig")

    def there(self, *arguments: str) -> Result:
        where = ("--kubeconfig", str(self._kubeconfig))
        return CliRunner().invoke(app, [*arguments, "cpr/small", *where], catch_exceptions=False)

    def here(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--workdir", str(self.work)], catch_exceptions=False)


@pytest.fixture
def cprjob(server: PodServer, folder: Path) -> Cprjob:
    return Cprjob(server, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
@pytest.mark.parametrize("command", [("snapshots", "ls"), ("snapshots", "verify"), ("evaluate",)])
def test_pod_answers_what_this_machine_answers(
    cprjob: Cprjob, server: PodServer, command: tuple[str, ...], protocol: str
) -> None:
    server.protocols = (protocol,)
    found, expected = cprjob.there(*command, "--json"), cprjob.here(*command, "--json")
    assert (found.exit_code, expected.exit_code) == (0, 0), found.output
    assert json.loads(found.stdout) == json.loads(expected.stdout)
    (pod,) = server.created
    assert server.deleted == [pod["metadata"]["name"]]


def test_model_is_exported_from_the_pod_as_files(cprjob: Cprjob, server: PodServer, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.json").write_text("of an earlier export", "utf-8")
    found = cprjob.there("export", "--to", str(tmp_path / "there"))
    assert found.exit_code == 0, found.output
    assert cprjob.here("export", "--to", str(tmp_path / "here")).exit_code == 0
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "here")) == len(("dense", "a", "b", "c", "transform.json", "model.json"))
    assert len(server.deleted) == 1


def test_export_that_is_cut_off_is_not_complete(cprjob: Cprjob, server: PodServer, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("of an earlier export", "utf-8")
    server.cut_after = 1
    found = cprjob.there("export", "--to", str(tmp_path))
    assert found.exit_code == 1
    assert "try again" in " ".join(found.output.split())
    assert not (tmp_path / "model.json").exists()
    assert len(server.deleted) == 1


def test_failure_in_the_pod_is_printed_with_its_remedy(cprjob: Cprjob, server: PodServer, tmp_path: Path) -> None:
    result: dict[str, Any] = server.job["status"]["result"]
    result["key"] = "no/such/anchor.json"
    found = cprjob.there("export", "--to", str(tmp_path))
    assert found.exit_code == 1
    output = " ".join(found.output.split())
    assert "no/such/anchor.json" in output
    assert "missing" in output
    assert "INFO" not in output, "the log is for what nobody foresaw"
    assert len(server.deleted) == 1
