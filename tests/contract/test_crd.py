"""The CRD in the tree is generated from the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_operator.api import crd

FILE = Path(__file__).parents[2] / "crds" / "cprjobs.cprjob.io.yaml"


def test_crd_that_differs_from_the_models_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", str(FILE)]) == 0, "run `make crds`"
    changed = tmp_path / "crd.yaml"
    changed.write_text(FILE.read_text("utf-8").replace("Pending", "Waiting"), "utf-8")
    assert crd.main(["--check", str(changed)]) == 1
    assert crd.main(["--check", str(tmp_path / "absent.yaml")]) == 1
    assert "make crds" in capsys.readouterr().err
