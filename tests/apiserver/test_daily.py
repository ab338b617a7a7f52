"""examples/daily.yaml on a real API server: what its pod runs creates one job a day, with its Role alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from support.apiserver import ApiServer, write_kubeconfig

pytestmark = pytest.mark.apiserver

DAILY = Path(__file__).parents[2] / "examples" / "daily.yaml"
JOBS = "/apis/cprjob.io/v1alpha1/namespaces/default/cprjobs"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "CronJob": "/apis/batch/v1/namespaces/default/cronjobs",
}


def test_each_day_is_one_job_created_with_the_role_of_the_example(
    server: ApiServer, api: httpx.Client, tmp_path: Path
) -> None:
    documents = {each["kind"]: each for each in yaml.safe_load_all(DAILY.read_text("utf-8"))}
    for name, text in documents["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text, "utf-8")
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server.url, server.ca_file, "stranger")

    def submit(day: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, str(tmp_path / "submit.py"), day)
        return subprocess.run(command, env={"KUBECONFIG": str(kubeconfig)}, capture_output=True, text=True, check=False)

    assert "forbidden" in submit("2026-01-01").stderr
    # There is no kubelet here to hand out the account's token, so a user stands for the account.
    documents["RoleBinding"]["subjects"] = [
        {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "stranger"}
    ]
    for kind, document in documents.items():
        answer = api.post(PATHS[kind], params={"fieldValidation": "Strict"}, json=document)
        assert answer.status_code == httpx.codes.CREATED, answer.text
    for day in ("2026-01-01", "2026-01-02", "2026-01-02"):
        done = submit(day)
        assert done.returncode == 0, done.stderr
    found = api.get(JOBS, params={"labelSelector": "series=clicks"}).json()["items"]
    assert {each["metadata"]["name"]: each["spec"]["data"]["uri"] for each in found} == {
        f"clicks-{day}": f"s3://clicks/day={day}/" for day in ("2026-01-01", "2026-01-02")
    }
