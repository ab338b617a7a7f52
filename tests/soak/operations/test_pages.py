"""The commands of docs/get-started.md and docs/torchx.md, run in a shell as they are printed."""

from pathlib import Path

import pytest

from cluster.harness import Cluster, Space
from cluster.pages import follow
from support.fresh import environment
from support.pages import blocks
from support.terminal import Terminal

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "torchx.md"
RELEASE = "Install TorchX 0.7.0 instead"

pytestmark = pytest.mark.timeout(840, func_only=True)


@pytest.mark.usefixtures("printed_images")
def test_commands_of_get_started_lead_to_a_finished_job(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    follow("docs/get-started.md", cluster, space, tmp_path)


class Page:
    """Follows docs/torchx.md section by section."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.ran: list[str] = []

    def run(self, section: str) -> str:
        """Run the commands of a section; return what they printed."""
        texts = [block.text for block in blocks(PAGE) if block.section == section]
        assert texts, section
        self.ran += texts
        return "".join(map(self._terminal.run, texts))


@pytest.mark.usefixtures("printed_images")
def test_commands_of_the_page_about_torchx_run_a_job_to_its_end(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    variables = environment(tmp_path)
    variables["PATH"] += f":{cluster.kubectl.environment['PATH']}"
    variables["KUBECONFIG"] = str(space.editor(tmp_path))
    handle = f"cprjob://torchx/{space.name}:quickstart"
    with Terminal(ROOT, variables) as terminal:
        page = Page(terminal)
        installed = page.run("Install")
        assert "kubeconfig=KUBECONFIG" in installed
        assert "cprjob.dlrm" in installed
        assert "-: valid" in page.run("Look at the manifest first")
        assert f"JOB={handle}\n" in page.run("Run a job")
        watched = page.run("Watch it")
        assert "RUNNING" in watched
        assert "starts as shard" in watched
        followed = page.run("Suspend and resume")
        assert [handle, "quickstart", "CANCELLED"] in map(str.split, followed.splitlines())
        assert "starts as trainer" in followed
        assert "'phase': 'Succeeded'" in followed
        progress = space.job("quickstart")["status"]["progress"]
        assert progress["samples"] == progress["totalSamples"]
        page.run("Delete it")
    assert space.kubectl("get", "cprjobs,deployments", "-o", "name") == ""
    assert page.ran == [block.text for block in blocks(PAGE) if block.section != RELEASE]


def test_commands_of_the_page_work_with_the_last_release_of_torchx(tmp_path: Path) -> None:
    with Terminal(ROOT, environment(tmp_path)) as terminal:
        page = Page(terminal)
        page.run(RELEASE)
        assert "-: valid" in page.run("Look at the manifest first")
