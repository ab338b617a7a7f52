"""The chart before a real API server: it is accepted, also under the restricted profile; the rights are as promised."""

import os
import subprocess

import pytest
import yaml

from cluster.harness import Cluster, Space
from cluster.harness.release import CHART, NAMESPACE


def render(cluster: Cluster, namespace: str, *settings: str) -> str:
    command = ["helm", "template", "cprjob", str(CHART), "--namespace", namespace, *settings]
    done = subprocess.run(command, env=cluster.kubectl.environment, capture_output=True, text=True, check=True)
    return done.stdout


class TestInstall:
    @pytest.mark.parametrize(
        "settings", [(), ("--set", "watchNamespaces={default}", "--set", "networkPolicy.enabled=true")]
    )
    def test_the_api_server_accepts_what_the_chart_renders(
        self, cluster: Cluster, space: Space, settings: tuple[str, ...]
    ) -> None:
        manifests = render(cluster, space.name, *settings)
        said = cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=manifests
        )
        assert "deployment.apps/cprjob serverside-applied" in said

    def test_the_operator_s_pod_passes_the_restricted_profile(self, cluster: Cluster, space: Space) -> None:
        objects = [each for each in yaml.safe_load_all(render(cluster, space.name)) if each]
        (deployment,) = (each for each in objects if each["kind"] == "Deployment")
        pod = deployment["spec"]["template"] | {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"]["name"] = "operator"
        pod["spec"]["serviceAccountName"] = "default"
        space.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))


@pytest.mark.skipif(
    os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="CPR_CLUSTER_OPERATOR=no: no operator is installed"
)
class TestRights:
    @pytest.mark.parametrize(
        ("verb", "resource", "allowed"),
        [
            ("create", "secrets", True),
            ("get", "secrets", False),
            ("list", "secrets", False),
            ("patch", "cprjobs.cprjob.io", True),
            ("update", "cprjobs.cprjob.io --subresource=status", True),
            ("create", "pods", True),
            ("create", "pods --subresource=exec", False),
            ("list", "nodes", False),
        ],
    )
    def test_the_service_account_may(self, cluster: Cluster, verb: str, resource: str, *, allowed: bool) -> None:
        account = f"--as=system:serviceaccount:{NAMESPACE}:cprjob"
        said = cluster.kubectl("auth", "can-i", verb, *resource.split(), "-n", "default", account, check=False)
        assert ("yes" in said.split()) == allowed, said

    def test_the_release_s_own_test_passes(self, cluster: Cluster) -> None:
        cluster.release.test()
