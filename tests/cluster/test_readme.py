"""The commands of README.md and docs/get-started.md, run in a shell as they are printed, by a user who has the role
`edit` in one namespace. What the pages ask of an administrator, the test cluster has done.

Only the images have other names: those that the test cluster has. Its nodes pull nothing.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.harness.pods import TRAINER_IMAGE
from cluster.jobs import failures
from support.pages import Block, of_a_user

ROOT = Path(__file__).parents[2]
STORE_IMAGE = "localhost/cprjob-versitygw:dev"
USER = "reader"
COMMANDS_S = 420


def tree(folder: Path) -> Path:
    """The examples in a folder of their own, with the test cluster's images."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name, image in (("quickstart.yaml", TRAINER_IMAGE), ("store.yaml", STORE_IMAGE)):
        path = folder / "examples" / name
        text = path.read_text("utf-8")
        (printed,) = images(yaml.safe_load_all(text))
        path.write_text(text.replace(f"image: {printed}\n", f"image: {image}\n"), "utf-8")
        assert images(yaml.safe_load_all(path.read_text("utf-8"))) == {image}
    return folder


def images(node: Any) -> set[str]:
    """All values of fields named image."""
    if isinstance(node, dict):
        own = {node["image"]} if isinstance(node.get("image"), str) else set()
        return own.union(*map(images, node.values()))
    return set().union(*map(images, node)) if not isinstance(node, str) and hasattr(node, "__iter__") else set()


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


def run(blocks: tuple[Block, ...], folder: Path, environment: dict[str, str]) -> None:
    """Run the blocks in a shell that ends with the first command that fails."""
    script = "".join(block.text for block in blocks)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMANDS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def follow(page: str, cluster: Cluster, space: Space, folder: Path) -> None:
    """Do as the page says, and look at the job before it is deleted."""
    blocks = of_a_user(ROOT / page)
    begun = tuple(block for block in blocks if block.section != "Delete")
    environment = {**cluster.kubectl.environment, "KUBECONFIG": str(kubeconfig(cluster, space, folder))}
    run(begun, tree(folder), environment)
    status = space.job("quickstart")["status"]
    assert status["phase"] == "Succeeded"
    assert status["progress"]["samples"] == status["progress"]["totalSamples"]
    assert failures(status) == [("shard", 1, 1, "Vanished")]
    assert status["budget"]["spent"] <= status["budget"]["limit"]
    run(blocks[len(begun) :], folder, environment)
    assert space.kubectl("get", "cprjobs,deployments", "-o", "name") == ""


@pytest.mark.timeout(2 * COMMANDS_S, func_only=True)
class TestReadme:
    def test_its_commands_lead_a_user_from_a_store_to_a_finished_job(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        follow("README.md", cluster, space, tmp_path)


@pytest.mark.timeout(2 * COMMANDS_S, func_only=True)
class TestGetStarted:
    def test_its_commands_lead_a_user_from_a_store_to_a_finished_job(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        follow("docs/get-started.md", cluster, space, tmp_path)
