"""Pages that lead a user who may edit one namespace from a store to a finished job, run as they are printed."""

from pathlib import Path

from cluster.harness import Cluster, Space
from cluster.jobs import failures
from support.pages import of_a_user
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]


def follow(page: str, cluster: Cluster, space: Space, folder: Path) -> None:
    """Run the commands of a page in a shell, and look at the job before the last block deletes it."""
    blocks = of_a_user(ROOT / page)
    assert blocks[-1].section == "Delete"
    environment = {**cluster.kubectl.environment, "KUBECONFIG": str(space.editor(folder))}
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
