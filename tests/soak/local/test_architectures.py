"""Each pinned package of the images has a wheel for each architecture of a release."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text("utf-8"))
(BUILD,) = [step["with"] for step in RELEASE["jobs"]["images"]["steps"] if step.get("id") == "build"]
PLATFORMS = {"linux/amd64": "x86_64-manylinux_2_28", "linux/arm64": "aarch64-manylinux_2_28"}
PIP = ("pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:")


@pytest.mark.parametrize("platform", BUILD["platforms"].split(","))
@pytest.mark.parametrize("image", ["operator", "trainer", "torch"])
def test_pinned_packages_have_wheels(image: str, platform: str, tmp_path: Path) -> None:
    where = ("--python", ROOT / ".venv/bin/python", "--python-platform", PLATFORMS[platform], "--target", tmp_path)
    file = ROOT / "requirements" / f"{image}.txt"
    done = subprocess.run(
        [ROOT / ".cache/uv/bin/uv", *PIP, *where, "-r", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pinned = [Requirement(line.rstrip(" \\")) for line in file.read_text("utf-8").splitlines() if "==" in line]
    found = {line[3:] for line in done.stderr.splitlines() if line.startswith(" + ")}
    assert found == {f"{each.name}{each.specifier}" for each in pinned if not each.marker or each.marker.evaluate()}
