from __future__ import annotations

from pathlib import Path

import pytest

from cpr_operator.api import crd

FILE = Path(__file__).parents[2] / "crds" / "cprjobs.cprjob.io.yaml"


def test_the_crd_in_the_tree_is_what_the_models_say() -> None:
    assert FILE.read_text(encoding="utf-8") == crd.render(), "run `make crds`"


def test_check_exits_1_on_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "crd.yaml"
    changed.write_text(crd.render().replace("Pending", "Waiting"), encoding="utf-8")
    assert crd.main(["--check", str(FILE)]) == 0
    assert crd.main(["--check", str(changed)]) == 1
    assert crd.main(["--check", str(tmp_path / "absent.yaml")]) == 1
    assert "make crds" in capsys.readouterr().err
