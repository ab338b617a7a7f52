"""Support of the processor for bf16, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

from cpr_contract.choices import Device, Precision

#: The reason of a trainer's problem if its processor emulates the job's precision.
PRECISION_EMULATED = "PrecisionEmulated"
#: The file in which Linux describes the processors.
CPUINFO = Path("/proc/cpuinfo")

#: Flags of x86 and of Arm. Each stands for instructions that multiply bf16.
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
#: The line that lists the flags: the first is of x86, the other of Arm.
_LISTS = frozenset({"flags", "Features"})


def read_cpuinfo() -> str:
    """Return the description of the processors; empty if there is no such file."""
    try:
        return CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def has_bf16(cpuinfo: str) -> bool | None:
    """Return whether the described processor has instructions for bf16; None if the description lists no flags."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in _LISTS:
            return not _BF16.isdisjoint(flags.split())
    return None


def is_emulated(precision: Precision, device: Device, cpuinfo: str) -> bool:
    """Return whether the processor certainly lacks instructions for this precision."""
    return precision == "bf16" and device == "cpu" and has_bf16(cpuinfo) is False
