"""The base of kustomize: the chart with its defaults, and what an overlay makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from support.apiserver import binary
from support.chart import CHART, Object, helm, of_kind

BASE = CHART.parent / "kustomize"
CRD = "CustomResourceDefinition"


def build(folder: Path) -> list[Object]:
    done = subprocess.run([binary("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def marked(part: Any) -> Any:
    """Return a part of an object with the marks of kustomize in place of helm's."""
    if isinstance(part, dict):
        own = {key: marked(value) for key, value in part.items() if not key.startswith("helm.sh/")}
        manager = "app.kubernetes.io/managed-by"
        return own | ({manager: "Kustomize"} if manager in own else {})
    return [marked(each) for each in part] if isinstance(part, list) else part


def key(each: Object) -> tuple[str, str]:
    return each["kind"], each["metadata"]["name"]


def test_base_is_the_chart_with_its_defaults() -> None:
    done = helm("template", "cprjob", str(CHART), "--namespace", "cprjob-system", "--skip-tests")
    assert done.returncode == 0, done.stderr
    chart = sorted(filter(None, yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)), key=key)
    base = sorted((each for each in build(BASE) if each["kind"] != "Namespace"), key=key)
    assert [key(each) for each in base] == [key(each) for each in chart]
    for mine, its in zip(base, chart, strict=True):
        if its["kind"] == CRD:
            assert mine["spec"] == its["spec"]
            continue
        expected = marked(its)
        if "namespace" in mine["metadata"]:
            expected["metadata"].setdefault("namespace", "cprjob-system")  # helm adds it when it installs
        assert mine == expected, "make kustomize renders it again"


def test_overlay_changes_the_image(tmp_path: Path) -> None:
    # kustomize takes no absolute path of a base.
    relative = Path(*[".."] * (len(tmp_path.parts) - 1)) / BASE.relative_to("/")
    image = {"name": "cprjob-operator", "newName": "example/operator", "newTag": "v9"}
    overlay = {"resources": [str(relative)], "images": [image]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), "utf-8")
    (deployment,) = of_kind(build(tmp_path), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example/operator:v9"
