"""The commands of docs/kind.md, run in a shell as they are printed, in the cluster that they make and delete.

The tests' own cluster is not needed. Two things differ from a laptop:

- Where KIND_NODE_IMAGE names the image of the nodes, `kind create cluster` gets it as an option. kind has no such
variable.
- The nodes pull nothing: the store's image, built of the same release, is put on them under its printed name.

The last commands remove the images that the first ones built.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.harness import until
from cluster.harness.cluster import UnavailableError, backend
from cluster.harness.kubectl import Kubectl
from cluster.jobs import failures
from cluster.oci import load, pack
from support.apiserver import FOLDER, binary
from support.pages import Block, blocks, image
from support.terminal import Terminal

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "kind.md"
NAME = "cprjob"
#: With fewer instances of inotify kube-proxy fails on some nodes (kind's known issues name this number).
LEAST_INSTANCES = 512
STABLE, *OTHERS = f"{NAME}-worker", f"{NAME}-worker2", f"{NAME}-worker3"

pytestmark = pytest.mark.timeout(840, func_only=True)


@dataclass(frozen=True)
class Laptop:
    """A terminal that follows the page, and kubectl with the terminal's settings."""

    terminal: Terminal
    kubectl: Kubectl

    def status(self, job: str) -> dict[str, Any]:
        """Return the job's status."""
        found: dict[str, Any] = self.kubectl.get("cpr", job)["status"]
        return found

    def unready(self) -> list[str]:
        """Return the names of the nodes that are not Ready."""
        nodes = self.kubectl("get", "nodes", "--no-headers").splitlines()
        return [name for name, state, *_ in map(str.split, nodes) if state != "Ready"]


def of(section: str) -> tuple[Block, ...]:
    """The blocks of a section; there must be one."""
    found = tuple(block for block in blocks(PAGE) if block.section == section)
    assert found, section
    return found


def output(environment: Mapping[str, str], *command: str) -> list[str]:
    """The words that a command prints."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def create_cluster(text: str) -> str:
    """The same commands, with the machine's own node image if it names one."""
    named, begin = os.environ.get("KIND_NODE_IMAGE"), "kind create cluster "
    assert text.count(begin) == 1
    return text.replace(begin, f"{begin}--image {named} ") if named else text


@pytest.fixture(scope="class")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """The page up to the operator and the store."""
    try:
        made_of = backend()
    except UnavailableError as why:
        pytest.skip(f"no kind: {why}")
    if made_of != "kind":
        pytest.skip("docs/kind.md is about kind, and a cluster here is made of plain processes")
    folder = tmp_path_factory.mktemp("laptop")
    kubeconfig, store = folder / "kubeconfig", folder / "versitygw"
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:{FOLDER}", "KUBECONFIG": str(kubeconfig)}
    instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert instances >= LEAST_INSTANCES, f"set fs.inotify.max_user_instances to {LEAST_INSTANCES}"
    if NAME in output(environment, "kind", "get", "clusters"):
        pytest.skip(f"there is a kind cluster {NAME} already, which the page would delete")
    pack(binary("versitygw"), "/versitygw", store)
    try:
        with Terminal(ROOT, environment) as terminal:
            for block in of("The images"):
                terminal.run(block.text)
            for block in of("The cluster"):
                terminal.run(create_cluster(block.text))
            for node in (STABLE, *OTHERS):
                ctr = ("docker", "exec", "-i", node, "ctr", "-n", "k8s.io")
                load(store, image(ROOT / "examples" / "store.yaml"), ctr)
            for block in of("The operator and the store"):
                terminal.run(block.text)
            yield Laptop(terminal, Kubectl(kubeconfig, environment))
    finally:
        output(environment, "kind", "delete", "cluster", "--name", NAME)


@pytest.fixture(scope="class")
def watched(laptop: Laptop) -> str:
    """The section that kills a shard. Returns what the second terminal showed meanwhile."""
    first, second = of("Kill a shard")
    with Terminal(ROOT, laptop.kubectl.environment) as other:
        other.enter(second.text)
        laptop.terminal.run(first.text)
        return other.interrupt()


@dataclass(frozen=True)
class Dark:
    """A job half a minute after one of its nodes has lost its power."""

    unready: list[str]
    status: dict[str, Any]
    shown: str


@pytest.fixture(scope="class")
def dark(laptop: Laptop) -> Dark:
    """The section that takes the power off a node. Returns what there was to see at the second look."""
    stop, look, give_back = of("Take the power off a node")
    laptop.terminal.run(stop.text)
    laptop.terminal.run(look.text)

    def recovered() -> bool:
        status = laptop.status("lost-node")
        return status["shards"][1]["incarnation"] > 1 and status["phase"] == "Running" and laptop.unready() != []

    until("the job trains with another shard 1", recovered, 240, every_s=1)
    seen = Dark(laptop.unready(), laptop.status("lost-node"), laptop.terminal.run(look.text))
    laptop.terminal.run(give_back.text)
    return seen


class TestLaptop:
    def test_nodes_have_their_names_and_pods_their_nodes(self, laptop: Laptop) -> None:
        nodes = {each["metadata"]["name"] for each in laptop.kubectl.get("nodes")["items"]}
        assert nodes == {f"{NAME}-control-plane", STABLE, *OTHERS}

        def places(*selection: str) -> list[str]:
            return [pod["spec"]["nodeName"] for pod in laptop.kubectl.get("pods", *selection)["items"]]

        assert len(set(places("-n", "cprjob-system", "-l", "app.kubernetes.io/component=operator"))) == 2
        assert places("-l", "app.kubernetes.io/name=cprjob-store") == [STABLE]

    def test_killed_shard_is_replaced_and_no_other_pod_restarts(self, laptop: Laptop, watched: str) -> None:
        status = laptop.status("quickstart")
        assert status["phase"] == "Succeeded"
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        pods = dict(re.findall(r"^quickstart-\w+-(\w+-\d+-\d+) +\S+ +\S+ +(\d+) ", watched, re.MULTILINE))
        assert pods == dict.fromkeys(("trainer-0-1", "shard-0-1", "shard-1-1", "shard-1-2"), "0")

    def test_powered_off_node_replaces_only_its_shard(self, laptop: Laptop, dark: Dark) -> None:
        (node,) = dark.unready
        assert {node, dark.status["shards"][1]["node"]} == set(OTHERS)
        assert re.search(rf"^{node} +NotReady ", dark.shown, re.MULTILINE)
        assert re.search(r"^ +Warning +MemberLost .*shard/1", dark.shown, re.MULTILINE)
        assert re.search(r"^ +Normal +Replacing .*nothing is lost", dark.shown, re.MULTILINE)
        status = laptop.status("lost-node")
        assert status["phase"] == "Succeeded"
        assert [failure[:3] for failure in failures(status)] == [("shard", 1, 1)]
        assert status["budget"]["spent"] == 0

    def test_last_commands_leave_nothing(self, laptop: Laptop, watched: str, dark: Dark) -> None:
        for block in of("Clean up"):
            laptop.terminal.run(block.text)
        environment = laptop.kubectl.environment
        assert NAME not in output(environment, "kind", "get", "clusters")
        for built in ("cprjob-operator", "cprjob-trainer"):
            assert output(environment, "docker", "image", "ls", "--quiet", built) == []
