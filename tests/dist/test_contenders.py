"""What CPRJob's speed is compared with trains the same model on the same samples."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from cpr_contract.codec import to_json
from cpr_contract.env import SPEC
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_trainer.experiment.single import train
from cpr_trainer.runtime import Trace
from support.local_job import small_job

pytestmark = pytest.mark.dist

REPOSITORY = Path(__file__).parents[2]
CONTENDERS = REPOSITORY / "bench" / "contenders"
PEERS_PYTHON = CONTENDERS / ".venv" / "bin" / "python"
needs_torchrec = pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="TorchRec is not installed: run `make peers`")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((sys.executable, "rpc_peer.py"), id="torch-rpc"),
        pytest.param((PEERS_PYTHON, "torchrec_peer.py", "1"), id="torchrec", marks=needs_torchrec),
        pytest.param((PEERS_PYTHON, "torchrec_peer.py", "2"), id="torchrec-gloo", marks=needs_torchrec),
    ],
)
def test_a_peer_ends_where_one_process_does(tmp_path: Path, command: tuple[str | Path, ...]) -> None:
    job = small_job(tmp_path, samples=1000)
    with closing(Trace(None)) as untraced:
        alone, _ = train(job, untraced)
    python, script, *rest = command
    variables = {SPEC: to_json(job), STEP_TRACE: str(tmp_path / "steps"), "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(
        [python, CONTENDERS / script, *rest, tmp_path / "end.pt"],
        env={**os.environ, **variables, "PYTHONPATH": str(REPOSITORY / "trainer_image")},
        check=True,
    )
    torch.testing.assert_close(torch.load(tmp_path / "end.pt"), alone.parameters, rtol=1e-3, atol=1e-5)
    assert [TracedStep.of_line(line).step for line in (tmp_path / "steps").read_text().splitlines()] == [*range(1, 11)]
