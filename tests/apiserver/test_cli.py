"""The commands for jobs on a cluster against a real API server: no operator runs, and the tests write what it would."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from cpr_operator import policy
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import ClusterRequestError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.ui import ClusterJobs, listing
from cpr_operator.reconcile.save_plan import plan_inputs
from support.api_jobs import CORE, JOBS, emit, job, run_pod, write_status
from support.apiserver import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("api")]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
ANCHOR = {"key": "uid/anchor", "digest": "d", "generation": 1, "step": 10, "samples": 300_000}
RUNTIME = {"image": "trainer:1", "contractVersion": 1, "templateHash": "h", "jobSpec": "{}"}
STARTED = {
    "phase": "Running",
    "startTime": "2026-01-01T00:00:00Z",
    "leader": 1,
    "plan": {"mode": "Partial", "intervalSeconds": 90, "reason": "It is cheap."},
    "budget": {"limit": 0.02, "spent": 0.00123456, "remaining": 0.01876544, "runningSum": 0.001, "rollbacks": 0},
    "progress": {"samples": 126_000, "totalSamples": 300_000, "percent": 42, "auc": 0.75123, "samplesPerSecond": 1234.5,
                 "updated": "2026-01-01T00:01:40Z"},
    "shown": {"progress": "42%", "interval": "1.5 min", "spent": "0.001235", "limit": "0.02", "auc": "0.7512",
              "speed": "1234/s", "eta": "2.35 min"},
    "policy": {"alpha": 3, "betaSeconds": 600, "lostPerFailure": 1, "saveStallSeconds": 0.25, "samplesPerSecond": 1234},
    "restarts": 1,
    "shards": [{"index": 0, "state": "Ready"}, {"index": 1, "state": "Ready", "incarnation": 2}],
    "trainers": [{"index": 0, "state": "Training"}, {"index": 1, "state": "Training"}],
    "failures": [{"time": "2026-01-01T00:00:30Z", "role": "shard", "index": 1, "incarnation": 1, "kind": "Vanished",
                  "lostSamples": 370, "action": "ReplaceShards", "recoverySeconds": 2.5}],
    "conditions": [{"type": "BudgetAtRisk", "status": "True", "reason": "Spent", "message": "Most is spent.",
                    "lastTransitionTime": "2026-01-01T00:00:30Z"}],
}  # fmt: skip
ENDED = {
    "phase": "Succeeded",
    "completionTime": "2026-01-01T00:05:00Z",
    "progress": {"samples": 300_000, "totalSamples": 300_000, "percent": 100, "auc": 0.7812},
    "result": ANCHOR,
    "runtime": RUNTIME,
}


class Cprjob:
    """The program, with the kubeconfig of the server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._where = ["--kubeconfig", str(kubeconfig)]
        self._runner = CliRunner()

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.output

    def result(self, *arguments: str, stdin: str | None = None) -> Result:
        return self._runner.invoke(app, [*arguments, *self._where], input=stdin, catch_exceptions=False)

    def as_printed(self, command: str) -> Result:
        """Run a command that the program printed, in full."""
        program, *arguments = shlex.split(command)
        assert program == "cprjob"
        return self._runner.invoke(app, arguments, catch_exceptions=False)


@pytest.fixture
def cprjob(server: ApiServer) -> Cprjob:
    return Cprjob(server.kubeconfig)


def manifest(name: str, **metadata: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    document["spec"]["trainers"] = {"replicas": 2}
    return document | {"metadata": {"name": name, **metadata}}


def submitted(cprjob: Cprjob, name: str) -> str:
    cprjob("submit", "-", stdin=yaml.safe_dump(manifest(name)))
    return name


def words(text: str) -> str:
    return " ".join(text.split())


def test_submit_creates_all_jobs_of_several_documents(cprjob: Cprjob, api: httpx.Client, tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([secret, manifest("first"), manifest("second")]), "utf-8")
    output = words(cprjob("submit", str(file)))
    assert "1 other objects are left to kubectl apply" in output
    assert "created default/first created default/second" in output
    assert job(api, "second")["spec"]["shards"]["replicas"] == 2
    result = cprjob.result("submit", str(file))
    assert result.exit_code == 1
    assert "already exists" in words(result.output)
    assert "--watch follows one job, and there are 2" in words(cprjob.result("submit", str(file), "--watch").output)


def test_get_has_the_columns_of_the_resource(cprjob: Cprjob, api: httpx.Client) -> None:
    """The server itself prints the same table for kubectl."""
    write_status(api, submitted(cprjob, "columns"), STARTED)
    as_table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    printed = api.get(f"{JOBS}/columns", headers=as_table).json()
    columns = printed["columnDefinitions"]
    (row,) = printed["rows"]
    for form, wide in (("table", False), ("wide", True)):
        head, line = cprjob("get", "columns", "-o", form).splitlines()
        shown = [number for number, column in enumerate(columns) if wide or not column["priority"]]
        assert head.split() == [columns[number]["name"].upper() for number in shown]
        *cells, age = ["" if (cell := row["cells"][number]) is None else str(cell) for number in shown]
        assert columns[-1]["name"] == "Age"
        assert re.fullmatch(r"\d+s|\d+m(\d+s)?", age)
        assert words(line).startswith(words(" ".join(cells)))
    wide_only = {column["name"] for column in columns if column["priority"]}
    assert wide_only == {"Mode", "Speed", "ETA", "Goodput", "Published", "Shards", "Trainers"}
    assert {"1.5 min", "0.001235", "42%"} <= set(row["cells"])


def test_get_has_the_output_formats_of_kubectl(cprjob: Cprjob, api: httpx.Client) -> None:
    submitted(cprjob, "printed")
    assert cprjob("get", "printed", "-o", "name") == "cpr/printed\n"
    assert yaml.safe_load(cprjob("get", "cpr/printed", "-o", "yaml")) == job(api, "printed")
    listed = json.loads(cprjob("get", "-o", "json"))
    assert "printed" in {each["metadata"]["name"] for each in listed["items"]}
    assert "default" in cprjob("get", "-A")
    again = cprjob("get", "printed", "-o", "yaml")
    cprjob("delete", "printed")
    cprjob("submit", "-", stdin=again)
    result = cprjob.result("get", "nothing")
    assert result.exit_code == 1
    assert "there is no job nothing" in words(result.output)


def test_describe_events_top_and_report_show_the_status(cprjob: Cprjob, api: httpx.Client) -> None:
    write_status(api, submitted(cprjob, "described"), STARTED)
    emit(api, "described", "Recovered", "shard/1 is back", 2.0)
    output = words(cprjob("describe", "described"))
    for message in (
        "described: Running",
        "126,000 of 300,000 samples, 1,234 samples/s",
        "2 trainers, 2 shards",
        "trainer/1 (leads) Training",
        "BudgetAtRisk True 2026-01-01 00:00:30 Spent Most is spent.",
        "shard/1 Vanished 370",
        "Warning Recovered shard/1 is back",
    ):
        assert message in output
    assert "shard/1 is back" in cprjob("events", "cpr/described")
    (line,) = (line for line in cprjob("top").splitlines() if line.startswith("described "))
    assert {"42%", "1234/s", "Partial"} <= set(line.split())
    write_status(api, "described", STARTED | ENDED)
    found = json.loads(cprjob("report", "cpr/described", "--json"))
    assert (found["phase"], found["samples"], found["samples_per_s"]) == ("Succeeded", 300_000, 1000.0)
    assert found["failures"][0]["kind"] == "Vanished"
    assert "300,000 of 300,000 samples, 1,000 samples/s" in words(cprjob("report", "cpr/described"))


def test_subresource_scale_changes_the_trainers(cprjob: Cprjob, api: httpx.Client) -> None:
    """As kubectl scale and autoscalers use it."""
    name = submitted(cprjob, "scaled")
    selector = "cprjob.io/job=scaled,cprjob.io/role=trainer"
    write_status(api, name, STARTED | {"scale": {"replicas": 2, "selector": selector}})
    scale = api.get(f"{JOBS}/{name}/scale").json()
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": selector}
    answer = api.put(f"{JOBS}/{name}/scale", json=scale | {"spec": {"replicas": 5}})
    assert answer.status_code == httpx.codes.OK, answer.text
    assert job(api, name)["spec"]["trainers"]["replicas"] == 5
    refused = api.put(f"{JOBS}/{name}/scale", json=answer.json() | {"spec": {"replicas": 0}})
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "spec.trainers.replicas" in refused.text


def test_chaos_names_each_pod_and_refuses_members_that_are_not_there(cprjob: Cprjob, api: httpx.Client) -> None:
    name = submitted(cprjob, "wounded")
    killed, drained = run_pod(api, name, "shard", 1, 1), run_pod(api, name, "trainer", 0, 1)
    output = cprjob("chaos", name, "--kill", "shard/1", "--drain", "trainer/0")
    assert f"killed shard/1 (pod {killed})" in output
    assert f"drained trainer/0 (pod {drained})" in output
    wrong = {"shard/9": "there is no shard/9; wounded has 2 shards", "shard": "is not ROLE/INDEX, as in shard/1"}
    assert all(
        message in words(cprjob.result("chaos", name, "--kill", member).output) for member, message in wrong.items()
    )
    assert "give at least one member" in words(cprjob.result("chaos", name).output)


def test_submit_watch_follows_the_job_to_its_end(
    cprjob: Cprjob, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's status comes while the job is watched."""
    statuses = iter((STARTED, STARTED | ENDED))

    def write_next(_seconds: float) -> None:
        status = next(statuses)
        if status is STARTED:
            emit(api, "watched", "Recovered", "shard/1 is back", 2.0)
        write_status(api, "watched", status)

    monkeypatch.setattr("cpr_operator.client.client.time.sleep", write_next)
    output = cprjob("submit", "-", "--watch", stdin=yaml.safe_dump(manifest("watched")))
    assert "Running 126,000 of 300,000 samples (42 %)" in words(output)
    assert output.count("! Recovered: shard/1 is back") == 1
    assert "watched: Succeeded" in output
    assert "The model is anchor uid/anchor in the job's store." in output

    write_status(api, submitted(cprjob, "doomed"), STARTED)
    statuses = iter((STARTED | {"phase": "Failed"},))
    monkeypatch.setattr("cpr_operator.client.client.time.sleep", lambda _s: write_status(api, "doomed", next(statuses)))
    assert "doomed: Failed" in cprjob("top", "doomed")


def test_report_prints_next_steps_that_run(cprjob: Cprjob, api: httpx.Client, tmp_path: Path) -> None:
    name = submitted(cprjob, "stepped")
    found = {}
    for status in (STARTED, STARTED | {"phase": "Suspended"}, STARTED | {"phase": "Failed"}, STARTED | ENDED):
        write_status(api, name, status)
        (printed,) = re.findall(r"cprjob .+", cprjob("report", f"cpr/{name}"))
        found[status["phase"]] = printed
    write_status(api, name, STARTED | ENDED)
    assert cprjob.as_printed(found["Running"]).exit_code == 0
    assert cprjob.as_printed(found["Suspended"]).exit_code == 0
    assert "has no pod with a log" in words(cprjob.as_printed(found["Failed"]).output)
    cprjob("report", f"cpr/{name}", "--html", str(tmp_path / "page.html"))
    assert "trainer/1" in (tmp_path / "page.html").read_text("utf-8")
    assert cprjob.result("report", f"cpr/{name}", "--html", str(tmp_path / "no" / "page.html")).exit_code == 2
    # There is no kubelet here: tests/cluster/test_cprjob.py runs this one to its end.
    assert found["Succeeded"].startswith(f"cprjob export cpr/{name} --to model --kubeconfig ")


def test_ui_lists_the_jobs_of_a_cluster_and_their_events(server: ApiServer, cprjob: Cprjob, api: httpx.Client) -> None:
    write_status(api, submitted(cprjob, "followed"), STARTED)
    emit(api, "followed", "Recovered", "shard/1 is back", 2.0)
    for everywhere in (False, True):
        jobs = ClusterJobs(ClusterOptions(server.kubeconfig), all_namespaces=everywhere)
        assert "default/followed" in listing(jobs)["list"]
        assert [each.message for each in jobs.report("default", "followed").events] == ["shard/1 is back"]
        with pytest.raises(ClusterRequestError, match="there is no job absent"):
            jobs.report("default", "absent")


def test_plan_of_a_running_job_covers_the_remaining_training(cprjob: Cprjob, api: httpx.Client) -> None:
    name = submitted(cprjob, "planned")
    before = json.loads(cprjob("plan", f"cpr/{name}", "--json"))
    write_status(api, name, STARTED)
    document = job(api, name)
    inputs = plan_inputs(parse_spec(document["spec"]), Status.model_validate(document["status"]))
    found = json.loads(cprjob("plan", f"cpr/{name}", "--json"))
    assert found["interval_s"] == policy.plan(inputs).interval_s
    assert found["inputs"] != before["inputs"]


def test_snapshots_deletes_a_pod_that_cannot_run(
    cprjob: Cprjob, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submitted(cprjob, "unlucky")
    result = cprjob.result("snapshots", "ls", f"cpr/{name}")
    assert (result.exit_code, "has not started, so it has saved nothing" in words(result.output)) == (1, True)
    write_status(api, name, STARTED | ENDED)
    monkeypatch.setattr("cpr_operator.client.tool.START_S", 0.0)
    result = cprjob.result("snapshots", "ls", f"cpr/{name}")
    assert result.exit_code == 1
    assert "does not run after 0 s" in words(result.output)
    found = api.get(f"{CORE}/pods", params={"labelSelector": "app.kubernetes.io/component=tool"}).json()["items"]
    assert found == []
