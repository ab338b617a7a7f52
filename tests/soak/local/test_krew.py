"""krew's own installer takes the packed plugin, and the plugin runs whichever of its programs there is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.apiserver import binary
from support.pages import ROOT

VERSION = "1.2.3"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin that krew has installed."""
    subprocess.run([ROOT / "tests/cluster/binaries.sh", "krew"], check=False)  # no Go: the test is skipped
    folder = tmp_path_factory.mktemp("krew")
    subprocess.run([ROOT / "charts/krew/pack.sh", VERSION, "https://releases.invalid", folder], check=True)
    archive = folder / f"kubectl-cprjob-{VERSION}.tar.gz"
    environment = os.environ | {"KREW_ROOT": str(folder / "root")}
    command: list[str | Path] = [
        binary("krew"),
        "install",
        f"--manifest={folder / 'cprjob-krew.yaml'}",
        f"--archive={archive}",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "root" / "bin" / "kubectl-cprjob"


@pytest.mark.parametrize(
    ("present", "runs"),
    [
        (("cprjob", "uvx", "pipx"), "cprjob top --once"),
        (("uvx", "pipx"), f"uvx --from cprjob[cli]=={VERSION} cprjob top --once"),
        (("pipx",), f"pipx run --spec cprjob[cli]=={VERSION} cprjob top --once"),
    ],
)
def test_plugin_runs_cprjob(plugin: Path, tmp_path: Path, present: tuple[str, ...], runs: str) -> None:
    for name in present:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", plugin, "top", "--once"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == runs


def test_plugin_without_a_program_names_the_remedy(plugin: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", plugin, "top"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "pip install 'cprjob[cli]==" in done.stderr) == (1, True)
