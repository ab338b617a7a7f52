"""Choices of a user. The command line offers them without loading a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: The role of a member of a job.
MemberRole = Literal["shard", "trainer"]
#: The format of the dense network in an export.
ExportFormat = Literal["safetensors", "torch-export", "onnx"]
#: The treatment of another model's parts (`spec.restoreFrom`): of parts that only this model has, of parts that only
#: the other one has, and of the dense network.
Missing = Literal["Fail", "Initialise"]
Extra = Literal["Fail", "Ignore"]
Dense = Literal["ByName", "Initialise"]
#: The synchronisation of dense copies: at each step in lockstep, or by averages in the background.
DenseSync = Literal["AllReduce", "ShadowEASGD", "ShadowMA", "ShadowBMUF"]
#: The updates of embedding rows: one for each step, of the sum over all trainers, or one for each trainer's push.
SparseUpdates = Literal["PerStep", "PerPush"]
#: The type in which the dense network computes, and in which embedding vectors and gradients are sent; and the type of
#: a table's rows.
Precision = Literal["fp32", "bf16"]
#: The device on which trainers compute the dense network.
Device = Literal["cpu", "cuda"]
#: The encryption of the traffic between the pods of a job, and with the operator. TLS: mutual, version 1.3.
Encryption = Literal["None", "TLS"]
#: The earlier save on which a shard's save is based.
Rebase = Literal["Consecutive", "OneShot", "Intermittent"]
#: The choice of the rows of priority saves.
Strategy = Literal["Full", "MFU", "SSU", "SCAR", "Growth"]
#: Bits of a saved value; 32 is exact.
Bits = Literal[32, 8, 4, 3, 2]


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """The repetition of pushes that a replaced shard has lost. It is fixed for the life of the job."""

    # The operator's schema of the resource has the docstrings and the bounds of these fields.
    memory_bytes: int = field(default=0, metadata={"ge": 0, "le": 2**53 - 1})
    """The maximum memory for kept pushes per trainer. The operator adds it to the container's; 0: no replay."""
    spill_bytes: int = field(default=0, metadata={"ge": 0, "le": 2**53 - 1})
    """The maximum space on each trainer's disk for pushes that exceed the memory."""
    reason: str = field(default="", metadata={"max_length": 1024})
    """The reason for these sizes."""

    @property
    def enabled(self) -> bool:
        """True if trainers keep pushes at all."""
        return self.memory_bytes > 0
