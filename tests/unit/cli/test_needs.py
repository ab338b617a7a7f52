"""What a plain `pip install` says, and one without the trainer's packages."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
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


def test_the_console_script_is_this_entry_point() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="cprjob")
    assert script.value == "cpr_operator.cli:main"


@pytest.mark.parametrize("arguments", [("run", QUICKSTART), ("--help",)])
def test_a_plain_install_says_in_one_line_what_is_missing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folders = [str(ROOT / "operator"), str(ROOT / "trainer_image")]
    command = [sys.executable, "-I", "-S", "-c", PLAIN, *folders, *arguments]  # -S: no package but Python's own
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cprjob: the package ")
    assert "pip install 'cprjob[local]'" in line


@pytest.mark.parametrize("package", ["typer", "pydantic"])
def test_the_package_is_named(package: str) -> None:
    command = [sys.executable, "-c", HIDDEN, package, "validate", QUICKSTART]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"the package {package} is not installed" in line


def test_an_error_of_cprjob_itself_is_not_taken_for_a_missing_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, "cpr_operator.cli.plan", "plan", QUICKSTART],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr


@pytest.mark.parametrize("arguments", [("run", QUICKSTART), ("snapshots", "ls", "file:///nowhere")])
def test_without_the_trainer_s_packages_a_command_that_trains_or_reads_says_so(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, "torch", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert "the package torch is not installed: pip install 'cprjob[local]'" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("bench", "--help"), ("simulate",)])
def test_without_the_bench_its_commands_say_in_one_line_where_to_get_it(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cprjob: cprjob {arguments[0]} is not installed: pip install cprjob-bench")


def test_all_else_works_without_the_bench() -> None:
    command = [sys.executable, "-c", ALONE, "validate", QUICKSTART]
    subprocess.run(command, capture_output=True, check=True)


def test_help_loads_nothing_that_only_a_command_needs() -> None:
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
    assert "cpr_operator.api.spec" not in done.stdout
    assert "cpr_contract.spec" not in done.stdout


def test_the_extra_local_is_the_command_line_the_trainer_and_the_pages() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["local"] == ["cprjob[cli,trainer,ui]"]
