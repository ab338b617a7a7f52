"""Words that a user chooses among. The command line offers them without loading any document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: How the dense network of an export is written beside the tables.
ExportFormat = Literal["safetensors", "torch-export", "onnx"]
#: How a model takes parts of another one (`spec.restoreFrom`): parts that only this one has, parts that only the other
#: one has, and the dense network.
Missing = Literal["Fail", "Initialise"]
Extra = Literal["Fail", "Ignore"]
Dense = Literal["ByName", "Initialise"]
#: How trainers keep their dense copies together: step by step in lockstep, or by averages in the background.
DenseSync = Literal["AllReduce", "ShadowEASGD", "ShadowMA", "ShadowBMUF"]
#: What the dense network computes with, and embedding vectors and their gradients travel as.
Precision = Literal["fp32", "bf16"]
#: Where trainers compute the dense network.
Device = Literal["cpu", "cuda"]
#: On which earlier save a shard's save stands.
Rebase = Literal["Consecutive", "OneShot", "Intermittent"]
#: Which rows are saved between cuts.
Strategy = Literal["Full", "MFU", "SSU", "SCAR", "Growth"]
#: As how many bits a value is saved; 32 is exact.
Bits = Literal[32, 8, 4, 3, 2]


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """Whether trainers push again what a replaced shard has lost. It stays as long as the job lives."""

    # The operator's schema of the resource has the docstrings and the bounds of these fields.
    memory_bytes: int = field(default=0, metadata={"ge": 0, "le": 2**53 - 1})
    """The maximum memory for kept pushes per trainer, which the operator adds to the container's; 0: no replay."""
    spill_bytes: int = field(default=0, metadata={"ge": 0, "le": 2**53 - 1})
    """The room on each trainer's disk for pushes that the memory has none for."""
    reason: str = field(default="", metadata={"max_length": 1024})
    """Why."""

    @property
    def enabled(self) -> bool:
        """True if trainers keep pushes at all."""
        return self.memory_bytes > 0
