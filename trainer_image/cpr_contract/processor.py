"""Whether the processor computes in bf16 by itself, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

from cpr_contract.choices import Device, Precision

#: The reason by which a trainer says that its processor emulates the job's precision.
PRECISION_EMULATED = "PrecisionEmulated"
#: Where Linux describes the processors.
CPUINFO = Path("/proc/cpuinfo")

#: Flags of x86 and of Arm, any of which stands for instructions that multiply bf16.
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
#: The line that lists the flags: the first is of x86, the other of Arm.
_LISTS = frozenset({"flags", "Features"})


def read_cpuinfo() -> str:
    """Return what Linux tells of the processors, nothing where there is no such file."""
    try:
        return CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def has_bf16(cpuinfo: str) -> bool | None:
    """Return whether the processor of this description has instructions for bf16; None if it lists none at all."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in _LISTS:
            return not _BF16.isdisjoint(flags.split())
    return None


def is_emulated(precision: Precision, device: Device, cpuinfo: str) -> bool:
    """Return whether the processor is known to lack the instructions of a precision that it is to compute in."""
    return precision == "bf16" and device == "cpu" and has_bf16(cpuinfo) is False
