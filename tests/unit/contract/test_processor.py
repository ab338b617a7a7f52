"""Support of processors for bf16, by their description in Linux."""

from pathlib import Path

import pytest

from cpr_contract import processor
from cpr_contract.processor import has_bf16, is_emulated, read_cpuinfo

X86 = "processor\t: 0\nflags\t\t: fpu avx2 avx512f{} fsrm\nvmx flags\t: vnmi bf16\nbugs\t\t: srso\n"
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd svei8mm{} dgh\nCPU part\t: 0xd40\n"
OLD, NEW = X86.format(""), X86.format(" avx512_bf16")


@pytest.mark.parametrize(
    ("cpuinfo", "has", "lacks"),
    [(X86, ["avx512_bf16", "amx_bf16", "avx_ne_convert"], ["", "avx512_vnni"]), (ARM, ["bf16"], ["", "svebf16x"])],
)
def test_processor_flags_determine_bf16_support(cpuinfo: str, has: list[str], lacks: list[str]) -> None:
    assert [has_bf16(cpuinfo.format(f" {flag}")) for flag in has] == [True] * len(has)
    assert [has_bf16(cpuinfo.format(f" {flag}")) for flag in lacks] == [False] * len(lacks)


@pytest.mark.parametrize("text", ["", "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdc\n"])
def test_bf16_support_is_unknown_without_flags(text: str) -> None:
    assert has_bf16(text) is None
    assert not is_emulated("bf16", "cpu", text)


def test_emulation_is_of_bf16_on_the_cpu_only() -> None:
    assert is_emulated("bf16", "cpu", OLD)
    assert not is_emulated("bf16", "cpu", NEW)
    assert not is_emulated("fp32", "cpu", OLD)
    assert not is_emulated("bf16", "cuda", OLD)


def test_cpuinfo_is_empty_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert read_cpuinfo() == ""
    (tmp_path / "cpuinfo").write_text(OLD)
    assert read_cpuinfo() == OLD
