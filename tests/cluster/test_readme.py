"""The commands of README.md and docs/get-started.md, run in a shell as they are printed, by a user who has the role
`edit` in one namespace. What the pages ask of an administrator, the test cluster has done.

Its nodes pull nothing: the images that they have get the names that the examples print.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.pods import TRAINER_IMAGE
from cluster.jobs import failures
from support.pages import image, of_a_user
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STORE_IMAGE = "localhost/cprjob-versitygw:dev"
USER = "reader"

pytestmark = [pytest.mark.usefixtures("images"), pytest.mark.timeout(840, func_only=True)]


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> Iterator[None]:
    """The images of the examples, on all nodes."""
    with (
        cluster.nodes.also_named(TRAINER_IMAGE, image(EXAMPLES / "quickstart.yaml")),
        cluster.nodes.also_named(STORE_IMAGE, image(EXAMPLES / "store.yaml")),
    ):
        yield


def kubeconfig(cluster: Cluster, space: Space, folder: Path) -> Path:
    """That of a user who has the role `edit` in the namespace, which is also the user's default, and no other right."""
    space.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        }
    )
    until("the role is in force", lambda: may(cluster, space, "create", "cprjobs"), within_s=10)
    assert not may(cluster, space, "list", "nodes")
    assert not may(cluster, space, "create", "clusterroles")
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    for user in config["users"]:
        user["user"]["as"] = USER
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    return path


def may(cluster: Cluster, space: Space, verb: str, what: str) -> bool:
    """Whether the user may do that, there or for the whole cluster."""
    said = cluster.kubectl("auth", "can-i", verb, what, f"--as={USER}", "-n", space.name, check=False)
    return "yes" in said.split()


def follow(page: str, cluster: Cluster, space: Space, folder: Path) -> None:
    """Do as the page says, and look at the job before it is deleted."""
    blocks = of_a_user(ROOT / page)
    assert blocks[-1].section == "Delete"
    environment = {**cluster.kubectl.environment, "KUBECONFIG": str(kubeconfig(cluster, space, folder))}
    with Terminal(ROOT, environment) as terminal:
        for block in blocks[:-1]:
            terminal.run(block.text)
        status = space.job("quickstart")["status"]
        assert status["phase"] == "Succeeded"
        assert status["progress"]["samples"] == status["progress"]["totalSamples"]
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert status["budget"]["spent"] <= status["budget"]["limit"]
        terminal.run(blocks[-1].text)
    assert space.kubectl("get", "cprjobs,deployments", "-o", "name") == ""


class TestReadme:
    def test_its_commands_lead_a_user_from_a_store_to_a_finished_job(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        follow("README.md", cluster, space, tmp_path)


class TestGetStarted:
    def test_its_commands_lead_a_user_from_a_store_to_a_finished_job(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        follow("docs/get-started.md", cluster, space, tmp_path)
