"""The traps of the tree: a folder named like a module of the standard library, and slow starts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Runs a shard up to the first missing variable of its environment, and prints the modules loaded by then.
SHARD = """
import sys
from cpr_trainer.process import main
assert main(["shard"], {"CPR_TERMINATION_FILE": "/dev/null"}) == 20
print(*sys.modules)
"""

#: Builds a network as a trainer does at its start, and prints the loaded modules.
NETWORK = """
import sys
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.trainer import supervisor
from cpr_trainer.model.replica import DenseReplica
dense, sparse = OptimizerSpec("Adagrad", 0.05), SparseOptimizerSpec("RowWiseAdagrad", 0.02)
DenseReplica(ModelSpec(8, (16, 8), (16, 1), (TableSpec("a", 10), TableSpec("b", 10)), dense, sparse), 1).step(1)
print(*sys.modules)
"""

#: Prints the modules that `import cprjob` loads, and then fits without a package.
WITHOUT_PACKAGE = """
import sys
import cprjob
print(*sys.modules)
sys.modules[sys.argv[1]] = None
cprjob.fit({})
"""


def test_import_of_operator_is_the_standard_library() -> None:
    assert not [folder for folder in ("operator", "trainer_image") if (ROOT / folder / "__init__.py").exists()]
    found = importlib.util.find_spec("operator")
    assert found is not None
    assert Path(str(found.origin)).parent == Path(sysconfig.get_path("stdlib"))


def test_shard_loads_only_its_own_packages() -> None:
    done = subprocess.run([sys.executable, "-c", SHARD], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "cpr_trainer.shard.main" in loaded
    others = (
        "cpr_trainer.trainer",
        "cpr_trainer.export",
        "cpr_trainer.calibration",
        "cpr_trainer.notebook",
        "cpr_trainer.single_process",
        "cpr_trainer.model",
        "pyarrow",
        "torch",
        "safetensors",
    )
    assert not {name for name in loaded if name.startswith(others)}


def test_restarted_trainer_loads_no_late_modules_of_torch() -> None:
    """Sympy alone takes seconds at each restart of a killed trainer: its supervisor has not loaded it."""
    done = subprocess.run([sys.executable, "-c", NETWORK], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "cpr_trainer.model.dlrm" in loaded
    assert not {"sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"} & loaded


@pytest.mark.parametrize(("package", "extra"), [("pydantic", "operator"), ("torch", "trainer")])
def test_fit_imports_lazily_and_names_the_missing_extra(package: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT_PACKAGE, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "cprjob" in done.stdout.split()
    assert not {"torch", "numpy", "pydantic", "yaml", "cpr_operator", "cpr_trainer"} & set(done.stdout.split())
    assert f"ImportError: fit needs {package}: install cprjob with its extra {extra}" in done.stderr.splitlines()[-1]


def test_trainer_image_opens_sockets_in_one_place() -> None:
    """The family of a socket follows from its address there, so that pods may have IPv4 or IPv6 addresses."""
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.glob("trainer_image/**/*.py")
    }
    opens = re.compile(r"create_server|create_connection|AF_INET|socket\.socket\(|HTTPServer\(")
    found = [path for path, text in sources.items() if opens.search(text)]
    assert found == ["trainer_image/cpr_trainer/runtime/sockets.py"]
