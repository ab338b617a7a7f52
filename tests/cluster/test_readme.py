"""The commands of README.md and docs/get-started.md, run in a shell as they are printed, by a user who has the role
`edit` in one namespace. What the pages ask of an administrator, the test cluster has done.

Its nodes pull nothing: the images that they have get the names that the examples print.
"""

from pathlib import Path

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import failures
from cluster.reader import kubeconfig
from support.pages import of_a_user
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.usefixtures("printed_images"), pytest.mark.timeout(840, func_only=True)]


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
