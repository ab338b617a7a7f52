"""Rows in fewer bits, in saves alone: training goes on with what it has (Check-N-Run, Eisenman et al., NSDI 2022).

What a restore reads is not what was written, so the fewer restores are expected, the fewer bits a row needs.
"""

from cpr_trainer.checkpoint.format.quantise.records import EXACT, decode_rows, encode_rows, record_bytes

__all__ = ["EXACT", "decode_rows", "encode_rows", "record_bytes"]
