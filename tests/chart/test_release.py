"""The parts of a release: `make dist` has the whole wheel and the chart, and a registry takes the chart."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from support.apiserver import binary

ROOT = Path(__file__).parents[2]
#: The folders of the distributions, and the content of their pyproject.toml.
FOLDERS = (ROOT, ROOT / "benchmarks")
PROJECTS = {folder: tomllib.loads((folder / "pyproject.toml").read_text("utf-8")) for folder in FOLDERS}
VERSION = PROJECTS[ROOT]["project"]["version"]
REGISTRY = ROOT / "tests" / "cluster" / "registry.py"

pytestmark = pytest.mark.timeout(300)


def make(*arguments: str) -> str:
    """Run make as it is, but for the environment, which is this one."""
    command = ["make", "--silent", "--no-print-directory", "--old-file=.cache/uv/bin/uv", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    make("dist", f"DIST={folder}", f"HELM={binary('helm')}")
    return folder


def wheel(dist: Path, folder: Path) -> Path:
    """The wheel of the distribution in a folder."""
    return dist / f"{PROJECTS[folder]['project']['name'].replace('-', '_')}-{VERSION}-py3-none-any.whl"


def test_wheels_and_chart_have_the_version(dist: Path) -> None:
    assert make("version") == f"{VERSION}\n"
    wheels = {wheel(dist, folder).name for folder in PROJECTS}
    others = {f"cprjob-{VERSION}.tgz", f"kubectl-cprjob-{VERSION}.tar.gz", "cprjob-krew.yaml"}
    assert {path.name for path in dist.iterdir()} == wheels | others
    chart = yaml.safe_load((ROOT / "charts" / "cprjob" / "Chart.yaml").read_text("utf-8"))
    assert {chart["version"], chart["appVersion"]} == {VERSION}


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_each_wheel_has_every_module_of_its_own_and_no_other(dist: Path, folder: Path) -> None:
    packages = [folder / each for each in PROJECTS[folder]["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    modules = {str(path.relative_to(each.parent)) for each in packages for path in each.rglob("*.py")}
    assert len(modules) > 20
    assert {name for name in zipfile.ZipFile(wheel(dist, folder)).namelist() if name.endswith(".py")} == modules


def test_bench_requires_the_product_of_its_own_version() -> None:
    assert PROJECTS[ROOT / "benchmarks"]["project"]["dependencies"] == [f"cprjob[cli]=={VERSION}"]


def test_registry_takes_the_chart(dist: Path, tmp_path: Path) -> None:
    (chart,) = dist.glob("cprjob-*.tgz")
    push = [binary("helm"), "push", str(chart), "oci://ADDRESS/charts", "--plain-http"]
    command = [sys.executable, str(REGISTRY), str(tmp_path), *map(str, push)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = json.loads((tmp_path / "index.json").read_text("utf-8"))["manifests"]
    assert f"Digest: {manifest['digest']}" in done.stdout + done.stderr
    layers = json.loads((tmp_path / "blobs" / manifest["digest"].replace(":", "/")).read_text("utf-8"))["layers"]
    held = {(tmp_path / "blobs" / each["digest"].replace(":", "/")).read_bytes() for each in layers}
    assert chart.read_bytes() in held
