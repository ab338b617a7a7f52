"""Each extra of pyproject.toml, installed alone into an environment of its own, runs what its page prints."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from support.fresh import environment
from support.terminal import Terminal

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
EXAMPLE = "examples/quickstart.yaml"
SMALL = f"{EXAMPLE} --set data.samples=20000"
DRYRUN = f"torchx run -s cprjob --dryrun cprjob.dlrm --job {EXAMPLE} --shards 4"
#: Commands by extra, and words that they print.
RUNS = {
    "operator": ("python -c 'import cpr_operator.candidate, cprjob; print(cprjob.Client)'", "Client"),
    "trainer": ("python -m cpr_trainer trainer || true", "The operator or `cprjob run` sets the environment"),
    "cli": (f"cprjob validate {EXAMPLE}\ncprjob plan {EXAMPLE}", f"{EXAMPLE}: valid"),
    "report": (f"cprjob report {EXAMPLE} --html page.html", "wrote page.html"),
    "ui": ("mkdir jobs\ncprjob ui --workdir jobs || true", "there is no job in jobs"),
    "local": (f"cprjob run {EXAMPLE} --set data.samples=20000", "quickstart: Succeeded"),
    "tensorboard": ("python -c 'from torch.utils.tensorboard import SummaryWriter as w; print(w)'", "SummaryWriter"),
    "mlflow": ("python -c 'import mlflow; print(mlflow.MlflowClient)'", "MlflowClient"),
    "wandb": ("python -c 'import wandb; print(wandb.init)'", "init"),
    "delta": ("python -c 'import cpr_trainer.data.delta as delta; print(delta.__name__)'", "cpr_trainer.data.delta"),
    "iceberg": ("python -c 'import cpr_trainer.data.iceberg as ice; print(ice.__name__)'", "cpr_trainer.data.iceberg"),
    "torchx": (f"torchx runopts cprjob\ntorchx builtins\n{DRYRUN}", "kind: CPRJob"),
    "kafka": ("python -c 'from cpr_trainer.data.kafka.client import KafkaTopic as t; print(t)'", "KafkaTopic"),
    "onnx": ("python -c 'import cpr_trainer.export.main, onnx, onnxscript; print(onnx.__name__)'", "onnx"),
    "serving": ("python -m cprjob_serving apply --help", "cprjob export --since"),
}

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("extra", EXTRAS)
def test_extra_installed_alone_runs_what_its_page_prints(extra: str, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("operator", "trainer_image", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    commands, prints = RUNS[extra]
    with Terminal(tmp_path, environment(tmp_path) | {"COLUMNS": "200", "HOME": str(tmp_path)}) as terminal:
        terminal.run(f"pip install --quiet '.[{extra}]'\n")
        assert prints in terminal.run(f"{commands}\n")
