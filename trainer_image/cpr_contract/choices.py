"""Words that a user chooses among on the command line, which offers them without loading any document."""

from __future__ import annotations

from typing import Literal

#: How the dense network of an export is written beside the tables.
ExportFormat = Literal["safetensors", "torch-export", "onnx"]
#: What becomes of what the source of an import lacks, and of the dense network: the words of `spec.restoreFrom`.
Missing = Literal["Fail", "Initialise"]
Dense = Literal["ByName", "Initialise"]
