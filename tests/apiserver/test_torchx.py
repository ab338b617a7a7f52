"""The real `torchx` command against a real API server: no operator runs, and the tests write what it would say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.apiserver import ApiServer, write_kubeconfig
from support.told_jobs import JOBS, job, tell

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("api"), pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
Done = subprocess.CompletedProcess[str]
TorchX = Callable[..., Done]


@pytest.fixture
def torchx(server: ApiServer, tmp_path: Path) -> TorchX:
    """`torchx` in a folder of its own, with a kubeconfig of the server."""

    def run(*arguments: str, kubeconfig: Path = server.kubeconfig, **variables: str) -> Done:
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)} | variables
        command = [str(BIN / "torchx"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def submit(torchx: TorchX, name: str, *arguments: str, **options: Any) -> str:
    """Run the example; return the application's handle."""
    done = torchx("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(EXAMPLE), "--name", name, *arguments, **options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def said(torchx: TorchX, handle: str) -> dict[str, Any]:
    done = torchx("status", "--json", handle)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestAJobFromRunToDelete:
    def test_run_creates_what_the_file_says(self, torchx: TorchX, api: httpx.Client) -> None:
        assert submit(torchx, "asked", "--trainers", "3") == "cprjob://torchx/default:asked"
        spec, wanted = job(api, "asked")["spec"], yaml.safe_load(EXAMPLE.read_text("utf-8"))["spec"]
        assert spec["model"]["tables"] == [{"ids": "CPR64", **table} for table in wanted["model"]["tables"]]
        assert spec["snapshots"]["store"] == wanted["snapshots"]["store"] | {"prefix": ""}
        assert (spec["trainers"]["replicas"], spec["shards"]["replicas"]) == (3, 2)

    def test_status_tells_what_the_operator_wrote(self, torchx: TorchX, api: httpx.Client) -> None:
        handle = submit(torchx, "told")
        assert said(torchx, handle)["state"] == "SUBMITTED"
        status = {
            "phase": "Recovering",
            "restarts": 2,
            "progress": {"percent": 42},
            "budget": {"limit": 0.1, "spent": 0.0125, "remaining": 0.0875},
            "trainers": [{"index": 0, "state": "Training", "host": "10.0.0.1"}],
            "shards": [{"index": 0, "state": "Ready"}, {"index": 1, "state": "Restoring"}],
        }
        tell(api, "told", status)
        found = said(torchx, handle)
        assert (found["state"], found["num_restarts"]) == ("RUNNING", 2)
        assert found["msg"] == "Recovering, 42% trained, budget 0.0125 of 0.1 spent"
        states = {each["role"]: [one["state"] for one in each["replicas"]] for each in found["roles"]}
        assert states == {"trainer": [3], "shard": [3, 2]}
        described = torchx("describe", handle)
        assert "'budget.spent': '0.0125'" in described.stdout
        assert "'num_replicas': 2" in described.stdout

    def test_list_shows_the_jobs_of_the_namespace(self, torchx: TorchX, api: httpx.Client) -> None:
        handle = submit(torchx, "listed")
        done = torchx("list", "-s", "cprjob")
        assert [line.split() for line in done.stdout.splitlines() if "listed" in line] == [
            [handle, "listed", "SUBMITTED"]
        ]
        other = torchx("list", "-s", "cprjob", "-cfg", "namespace=kube-system")
        assert other.returncode == 0, other.stderr
        assert "listed" not in other.stdout

    def test_cancel_suspends_and_delete_deletes(self, torchx: TorchX, api: httpx.Client) -> None:
        handle = submit(torchx, "ended")
        tell(api, "ended", {"phase": "Running"})
        assert torchx("cancel", handle).returncode == 0
        assert job(api, "ended")["spec"]["suspend"] is True
        assert said(torchx, handle)["state"] == "RUNNING", "it still saves"
        tell(api, "ended", {"phase": "Suspended"})
        assert said(torchx, handle)["state"] == "CANCELLED"
        assert torchx("delete", handle).returncode == 0
        assert api.get(f"{JOBS}/ended").status_code == httpx.codes.NOT_FOUND
        gone = torchx("status", handle)
        assert gone.returncode == 1
        assert "does not exist" in gone.stderr

    def test_a_job_that_is_created_suspended_is_not_waited_for(self, torchx: TorchX, tmp_path: Path) -> None:
        document = yaml.safe_load(EXAMPLE.read_text("utf-8"))
        document["spec"]["suspend"] = True
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(document), "utf-8")
        done = torchx("run", "-s", "cprjob", "--wait", "cprjob.dlrm", "--job", str(file), "--name", "held")
        assert done.stdout.strip() == "cprjob://torchx/default:held"
        assert "CANCELLED" in done.stderr


class TestDryrun:
    def test_it_prints_a_manifest_that_validate_accepts(
        self, torchx: TorchX, tmp_path: Path, api: httpx.Client
    ) -> None:
        before = api.get(JOBS).json()["items"]
        nowhere = tmp_path / "none"
        arguments = ("run", "-s", "cprjob", "--dryrun", "cprjob.dlrm", "--job", str(EXAMPLE))
        done = torchx(*arguments, kubeconfig=nowhere)
        assert done.returncode == 0, done.stderr
        file = tmp_path / "job.yaml"
        file.write_text(done.stdout.partition("=== SCHEDULER REQUEST ===")[2], "utf-8")
        subprocess.run([BIN / "cprjob", "validate", file], check=True)
        assert yaml.safe_load(file.read_text("utf-8")) == yaml.safe_load(EXAMPLE.read_text("utf-8"))
        printed = json.loads(torchx("run", "--json", *arguments[1:], kubeconfig=nowhere).stdout)
        assert printed["request"]["manifest"] == yaml.safe_load(EXAMPLE.read_text("utf-8"))
        assert api.get(JOBS).json()["items"] == before


class TestWhatCannotBeDone:
    """One line with the remedy, and no traceback."""

    def test_a_name_that_is_taken(self, torchx: TorchX) -> None:
        submit(torchx, "taken")
        arguments = ("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(EXAMPLE), "--name", "taken")
        assert 'cprjobs.cprjob.io "taken" already exists; give another name' in refused(torchx(*arguments))

    def test_a_user_without_rights(self, torchx: TorchX, server: ApiServer, tmp_path: Path) -> None:
        stranger = write_kubeconfig(tmp_path / "stranger", server.url, server.ca_file, "stranger")
        arguments = ("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(EXAMPLE))
        assert "ask for the role edit" in refused(torchx(*arguments, kubeconfig=stranger))
        assert "ask for the role edit" in refused(torchx("list", "-s", "cprjob", kubeconfig=stranger))

    def test_a_server_that_refuses_what_we_accept(self, torchx: TorchX, tmp_path: Path) -> None:
        file = tmp_path / "job.yaml"
        document = yaml.safe_load(EXAMPLE.read_text("utf-8"))
        file.write_text(yaml.safe_dump(document | {"metadata": {"name": "odd", "labels": {"a": "not a label!"}}}))
        arguments = ("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(file))
        assert "not a label!" in (text := refused(torchx(*arguments)))
        assert "correct the job" in text

    def test_a_namespace_that_is_not_there(self, torchx: TorchX) -> None:
        arguments = ("run", "-s", "cprjob", "-cfg", "namespace=nowhere", "cprjob.dlrm", "--job", str(EXAMPLE))
        assert 'namespaces "nowhere" not found; name another namespace' in refused(torchx(*arguments))

    def test_a_server_that_does_not_answer(self, torchx: TorchX, server: ApiServer, tmp_path: Path) -> None:
        silent = write_kubeconfig(tmp_path / "silent", "https://127.0.0.1:1", server.ca_file, "none")
        text = refused(torchx("status", "cprjob://torchx/default:any", kubeconfig=silent))
        assert "does not answer" in text

    def test_a_log_of_a_member_without_a_pod(self, torchx: TorchX) -> None:
        handle = submit(torchx, "podless")
        for member, why in (("trainer/0", "trainer/0 of default/podless has no pod"), ("master/0", "no role master")):
            done = torchx("log", f"{handle}/{member}")
            assert done.returncode == 1
            assert why in done.stderr.splitlines()[-1], "the thread that TorchX reads it in has printed before"


def refused(done: Done) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


class TestHowItIsFound:
    @pytest.mark.parametrize("sources", ["1", "2", "3"], ids=["namespace package", "entry point", "both"])
    def test_by_either_way_and_without_a_warning(self, torchx: TorchX, sources: str) -> None:
        done = torchx("runopts", "cprjob", TORCHX_PLUGINS_SOURCE=sources)
        assert "kubeconfig=KUBECONFIG" in done.stdout
        assert not done.stderr

    def test_components_of_torchx_are_still_found(self, torchx: TorchX) -> None:
        done = torchx("builtins")
        assert "utils.echo" in done.stdout
        assert "cprjob.dlrm" in done.stdout

    def test_torchxconfig_names_the_cluster_for_all_commands(
        self, torchx: TorchX, server: ApiServer, tmp_path: Path
    ) -> None:
        handle = submit(torchx, "configured")
        nowhere = tmp_path / "none"
        assert "there is no cluster to ask" in refused(torchx("status", handle, kubeconfig=nowhere))
        (tmp_path / ".torchxconfig").write_text(f"[cprjob]\nkubeconfig = {server.kubeconfig}\ncontext = test\n")
        done = torchx("status", handle, kubeconfig=nowhere)
        assert "SUBMITTED" in done.stdout, done.stderr
