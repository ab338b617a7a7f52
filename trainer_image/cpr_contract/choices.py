"""Words that a user chooses among. The command line offers them without loading any document."""

from __future__ import annotations

from typing import Literal

#: How the dense network of an export is written beside the tables.
ExportFormat = Literal["safetensors", "torch-export", "onnx"]
#: What becomes of what the source of an import lacks, and of the dense network: the words of `spec.restoreFrom`.
Missing = Literal["Fail", "Initialise"]
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
