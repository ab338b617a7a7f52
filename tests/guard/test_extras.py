"""Light extras of pyproject.toml are enough alone: what their pages print needs no package of another extra.

The environment has the packages of all extras, so each run sees a folder with links to those of its own extra alone.
`tests/soak/local/test_extras.py` installs every extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/quickstart.yaml"
#: Starts the console script of its first argument.
SCRIPT = """
import sys
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name=sys.argv[1])
del sys.argv[0]
sys.exit(script.load()())
"""


def distributions(name: str, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the distributions that an extra of a distribution brings, with that distribution."""
    if (name, extra) in seen:
        return
    seen.add((name, extra))
    yield name
    for needed in map(Requirement, metadata.requires(name) or ()):
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            for each in ("", *needed.extras):
                yield from distributions(needed.name, each, seen)


def link_packages(extra: str, folder: Path) -> None:
    """Link all packages that an extra of cprjob brings into a folder."""
    for name in set(distributions("cprjob", extra, set())):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


def run_alone(extra: str, folder: Path, *command: str) -> str:
    link_packages(extra, folder)
    paths = (folder, ROOT / "operator", ROOT / "trainer_image")
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-S", *command], capture_output=True, text=True, check=False, cwd=ROOT, env=variables
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("extra", "command", "prints"),
    [
        (
            "operator",
            ("-c", "import cpr_operator.candidate, cprjob; print(cprjob.Client)"),
            "Client",
        ),
        ("cli", ("-c", SCRIPT, "cprjob", "plan", EXAMPLE), "a save every"),
        ("report", ("-c", SCRIPT, "cprjob", "report", EXAMPLE, "--html", "{folder}/page.html"), "wrote"),
        ("ui", ("-c", "import cpr_operator.cli.ui; print('ui')"), "ui"),
        ("torchx", ("-c", SCRIPT, "torchx", "runopts", "cprjob"), "kubeconfig=KUBECONFIG"),
        (
            "torchx",
            ("-c", SCRIPT, "torchx", "run", "-s", "cprjob", "--dryrun", "cprjob.dlrm", "--job", EXAMPLE),
            "kind: CPRJob",
        ),
        ("serving", ("-m", "cprjob_serving", "apply", "--help"), "cprjob export --since"),
    ],
)
def test_extra_alone_runs_the_commands_of_its_page(
    extra: str, command: tuple[str, ...], prints: str, tmp_path: Path
) -> None:
    output = run_alone(extra, tmp_path, *(word.replace("{folder}", str(tmp_path)) for word in command))
    assert prints in " ".join(output.split())


def test_packages_of_other_extras_are_hidden(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No module named 'typer'"):
        run_alone("torchx", tmp_path, "-c", "import typer")
