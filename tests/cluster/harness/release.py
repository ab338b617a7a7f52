"""The operator's helm release: upgraded, tested, and taken away or replaced for a while."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.harness.kubectl import Kubectl
from support.pages import blocks

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "cprjob"
NAME, NAMESPACE = "cprjob", "cprjob-system"
READY_S = 120  # an upgrade replaces two replicas, one after the other


class Release:
    """The release by which cluster.sh installed the operator."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    def upgrade(self, image: str) -> None:
        """Upgrade it to this chart by the commands of its README, to another image too, and wait until it is ready."""
        (block,) = (block for block in blocks(CHART / "README.md") if block.section == "Upgrade")
        ((_, *printed),) = block.commands()
        self._helm(*printed, "--set", f"image.repository={image}", *_wait())

    def test(self) -> None:
        """Run the chart's own test."""
        self._helm("test", NAME, f"--timeout={READY_S}s")

    @contextmanager
    def replaced(self, chart: Path, image: str) -> Iterator[None]:
        """Have the release of another chart in the place of ours, and in the end ours as it was."""
        values = self._helm("get", "values", NAME, "--output", "json")
        self._helm("uninstall", NAME, *_wait())
        theirs = ("--values", "-", "--set", f"image.repository={image}")
        try:
            self._helm("install", NAME, str(chart), *theirs, *_wait(), stdin=values)
            yield
        finally:
            ours = ("upgrade", "--install", NAME, str(CHART), "--reset-values", "--values", "-")
            self._helm(*ours, *_wait(), stdin=values)

    def _helm(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["helm", "--kubeconfig", str(self._kubectl.kubeconfig), "--namespace", NAMESPACE, *arguments]
        environment = self._kubectl.environment
        done = subprocess.run(
            command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _wait() -> tuple[str, ...]:
    return ("--wait", f"--timeout={READY_S}s")
