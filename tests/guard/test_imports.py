"""The two traps of the tree: a folder named like a module of the standard library, and torch in the operator."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import importlib.abc, pkgutil, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "minio", "cpr_trainer"}:
            raise ImportError(f"the operator imports {name}")
        return None

sys.meta_path.insert(0, Blocked())
import cpr_operator
modules = pkgutil.walk_packages(cpr_operator.__path__, "cpr_operator.")
found = [module.name for module in modules if not module.name.endswith("__main__")]
for name in found:
    importlib.import_module(name)
print(len(found))
"""


@pytest.mark.parametrize("folder", ["operator", "trainer_image"])
def test_plain_folders_are_no_packages(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_operator_is_the_standard_librarys() -> None:
    found = importlib.util.find_spec("operator")
    assert found is not None
    assert Path(str(found.origin)).parent == Path(sysconfig.get_path("stdlib"))


def test_the_operator_imports_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
