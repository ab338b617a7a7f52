"""The errors of a plain `pip install`, and of one without the trainer's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")

ENTRY = "from cpr_operator.cli import main; main()"
#: The console script: the first two arguments are folders to import from, or the first is a package to hide.
PLAIN = f"import sys; sys.path[:0] = [sys.argv.pop(1), sys.argv.pop(1)]; {ENTRY}"
HIDDEN = f"import sys; sys.modules[sys.argv.pop(1)] = None; {ENTRY}"
#: Without what the distribution cprjob-bench adds.
ALONE = f"from importlib import metadata as m; m.entry_points = lambda **_: m.EntryPoints(()); {ENTRY}"


#: The interpreter's code before the command, the command, and parts of the one line that it prints.
PLAIN_INSTALL = ("-I", "-S", "-c", PLAIN, str(ROOT / "operator"), str(ROOT / "trainer_image"))  # -S: no packages
MISSING: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (PLAIN_INSTALL, ("run", QUICKSTART), "pip install 'cprjob[local]'"),
    (PLAIN_INSTALL, ("--help",), "pip install 'cprjob[local]'"),
    (("-c", HIDDEN, "typer"), ("validate", QUICKSTART), "the package typer is not installed"),
    (("-c", HIDDEN, "pydantic"), ("validate", QUICKSTART), "the package pydantic is not installed"),
    (("-c", HIDDEN, "torch"), ("run", QUICKSTART), "torch is not installed: pip install 'cprjob[local]'"),
    (("-c", HIDDEN, "torch"), ("snapshots", "ls", "file:///nowhere"), "the package torch is not installed"),
    (("-c", ALONE), ("bench", "--help"), "cprjob bench is not installed: pip install cprjob-bench"),
    (("-c", ALONE), ("simulate",), "cprjob simulate is not installed: pip install cprjob-bench"),
]


@pytest.mark.parametrize(("interpreter", "arguments", "says"), MISSING)
def test_missing_package_is_named_in_one_line(
    tmp_path: Path, interpreter: tuple[str, ...], arguments: tuple[str, ...], says: str
) -> None:
    command = [sys.executable, *interpreter, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("cprjob: ")
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_import_error_in_cprjob_itself_is_raised() -> None:
    command = [sys.executable, "-c", HIDDEN, "cpr_operator.cli.plan_command", "plan", QUICKSTART]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr


def test_validate_works_without_cprjob_bench() -> None:
    command = [sys.executable, "-c", ALONE, "validate", QUICKSTART]
    subprocess.run(command, capture_output=True, check=True)


def test_help_imports_no_packages_of_commands() -> None:
    """Help and completion answer at once: what takes long to import is imported by the command that needs it."""
    shown = f"import sys; sys.argv[1:] = ['--help']\ntry:\n    {ENTRY}\nfinally:\n    print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert "Usage: " in done.stdout
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()}
    assert (
        loaded & {"pydantic", "yaml", "aiohttp", "numpy", "kubernetes", "kopf", "scipy", "matplotlib", "torch"} == set()
    )
    assert loaded & {"plotly", "jinja2", "starlette", "uvicorn"} == set()
    assert "typer" in loaded
    assert "cpr_operator.api.cprjob_spec" not in done.stdout
    assert "cpr_contract.spec" not in done.stdout
