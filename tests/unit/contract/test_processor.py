"""What a processor computes in by itself, by the text that Linux has of it."""

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
def test_the_flags_of_a_processor_tell_whether_it_computes_in_bf16(
    cpuinfo: str, has: list[str], lacks: list[str]
) -> None:
    assert [has_bf16(cpuinfo.format(f" {flag}")) for flag in has] == [True] * len(has)
    assert [has_bf16(cpuinfo.format(f" {flag}")) for flag in lacks] == [False] * len(lacks)


@pytest.mark.parametrize("text", ["", "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdc\n"])
def test_of_a_processor_that_lists_no_flags_nothing_is_known(text: str) -> None:
    assert has_bf16(text) is None
    assert not is_emulated("bf16", "cpu", text)


def test_only_bf16_on_the_processor_is_emulated() -> None:
    assert is_emulated("bf16", "cpu", OLD)
    assert not is_emulated("bf16", "cpu", NEW)
    assert not is_emulated("fp32", "cpu", OLD)
    assert not is_emulated("bf16", "cuda", OLD)


def test_a_machine_without_the_file_has_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert read_cpuinfo() == ""
    (tmp_path / "cpuinfo").write_text(OLD)
    assert read_cpuinfo() == OLD
