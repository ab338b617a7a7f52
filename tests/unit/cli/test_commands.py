from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from cpr_operator.cli.app import app
from cpr_operator.cli.command_errors import ClusterRequestError, DocumentError, OptionError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.export import Model, model_of
from cpr_operator.cli.job_source import find_job

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
runner = CliRunner()


def test_validate_names_every_wrong_field_of_every_file(tmp_path: Path) -> None:
    text = Path(QUICKSTART).read_text("utf-8")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("samples: 300000", "samples: 0").replace("batchSize: 256", "bathcSize: 256"), "utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", "utf-8")
    result = runner.invoke(app, ["validate", str(wrong), str(broken), QUICKSTART])
    assert result.exit_code == 1
    for words in (
        "2 invalid fields",
        "spec.data.samples",
        "spec.data.bathcSize",
        "batchSize?",
        "cannot read",
        ": valid",
    ):
        assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run"], 2, "give either FILE"),
        (["run", QUICKSTART, "--resume"], 2, "not both"),
        (["run", "--resume"], 2, "--resume needs --workdir"),
        (["run", QUICKSTART, "--kill", "shard/9@0.5"], 2, "no shard/9"),
        (["run", QUICKSTART, "--kill", "shard@0.5"], 2, "ROLE/INDEX@FRACTION"),
        (["run", QUICKSTART, "--set", "data.samples"], 2, "PATH=VALUE"),
        (["run", QUICKSTART, "--set", "data.samples=0"], 1, "spec.data.samples"),
        (["run", QUICKSTART, "--report", "no/report.json"], 2, "--report no/report.json: the folder no does not"),
        (["run", QUICKSTART, "--report", "."], 2, "--report .: this is a folder"),
        (["run", QUICKSTART, "--workdir", QUICKSTART], 2, "quickstart.yaml is a file; name a folder"),
        (["run", QUICKSTART, "--workdir", f"{QUICKSTART}/below"], 2, "quickstart.yaml is a file; name a folder"),
        (["export", "--to", QUICKSTART, "--workdir", "."], 2, "quickstart.yaml is a file; name a folder"),
        (["report", QUICKSTART, "--html", "no/page.html"], 2, "--html no/page.html: the folder no does not"),
        (["export", "--to", "model"], 2, "--workdir"),
        (["calibrate", QUICKSTART, "--levels", "0.7"], 2, "at most 0.5"),
        (["calibrate", QUICKSTART, "--seeds", "1"], 2, "seeds"),
        (["calibrate", QUICKSTART, "--samples", "0"], 2, "samples"),
        (["calibrate", QUICKSTART, "--plot", "/nowhere/out.png"], 2, "--plot"),
        (["calibrate", QUICKSTART, "--plot", "out.nothing"], 2, "--plot"),
        (["snapshots", "ls"], 2, "--workdir"),
        (["snapshots", "ls", "s3://bucket"], 2, "--endpoint"),
        (["snapshots", "ls", "s3://", "--endpoint", "http://h"], 2, "s3://bucket/prefix"),
        (["snapshots", "ls", "https://host/bucket"], 2, "s3://bucket/prefix"),
        (["snapshots", "verify", "file:///folder", "--endpoint", "http://h"], 2, "s3://bucket/prefix"),
        (["snapshots", "verify", "file:///folder", "--workdir", "."], 2, "either"),
        (["snapshots", "prune", QUICKSTART, "--endpoint", "http://h"], 2, "has its own"),
        (["snapshots", "prune", "nowhere.yaml"], 2, "cannot read"),
    ],
)
def test_usage_errors_are_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert says in result.output.replace("\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plan", "calibrate", "run", "data inspect", "snapshots ls"])
def test_command_that_reads_a_manifest_names_its_wrong_fields(tmp_path: Path, command: str) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(Path(QUICKSTART).read_text("utf-8").replace("batchSize: 256", "batchSize: 0"), "utf-8")
    result = runner.invoke(app, [*command.split(), str(wrong)])
    assert result.exit_code == 1
    assert "spec.data.batchSize" in result.output


def test_resume_without_a_job_fails(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", "--resume", "--workdir", str(tmp_path)])
    assert result.exit_code == 2
    assert "no job to resume" in result.output.replace("\n", " ")


def test_model_of_a_job_is_its_result(tmp_path: Path) -> None:
    anchor = {"key": "uid/anchor", "digest": "d", "generation": 1, "step": 1, "samples": 1}
    runtime = {"image": "i", "contractVersion": 1, "templateHash": "h", "jobSpec": "{}"}
    job = {"status": {"runtime": runtime, "result": anchor}}
    path = tmp_path / "jobs" / "default" / "job.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(job), "utf-8")
    assert model_of(find_job(None, tmp_path, ClusterOptions())) == Model("{}", "uid/anchor")
    assert find_job(str(path), None, ClusterOptions()) == job
    with pytest.raises(DocumentError, match="only a job that succeeded"):
        model_of({"status": {"runtime": runtime}})
    with pytest.raises(OptionError, match="only a job on a cluster takes -n team; name it as cpr/NAME"):
        find_job(str(path), None, ClusterOptions(namespace="team"))


def test_name_with_cpr_prefix_is_never_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "cpr" / "job"
    file.parent.mkdir()
    file.write_text(Path(QUICKSTART).read_text("utf-8"), "utf-8")
    assert find_job("./cpr/job", None, ClusterOptions())["metadata"]["name"] == "quickstart"
    with pytest.raises(ClusterRequestError, match="there is no cluster to ask"):
        find_job("cpr/job", None, ClusterOptions(kubeconfig=tmp_path / "none"))


def several(*documents: object) -> str:
    return yaml.safe_dump_all(documents)


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}


def test_manifest_on_stdin_may_have_other_objects() -> None:
    text = several(SECRET, yaml.safe_load(Path(QUICKSTART).read_text("utf-8")))
    result = runner.invoke(app, ["validate", "-"], input=text)
    assert result.exit_code == 0, result.output
    assert "-: valid, 1 other object not checked" in result.output
    result = runner.invoke(app, ["plan", "-"], input=text)
    assert result.exit_code == 0, result.output
    assert "recovery with replay, a save every" in " ".join(result.output.split())
    result = runner.invoke(app, ["validate", "-"], input=several(SECRET, SECRET))
    assert result.exit_code == 1
    assert "none of its 2 documents is a CPRJob" in result.output


def test_validate_checks_each_job_of_a_list() -> None:
    job = yaml.safe_load(Path(QUICKSTART).read_text("utf-8"))
    wrong = job | {"spec": job["spec"] | {"shards": {"replicas": 0}}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [job, wrong, SECRET]}
    result = runner.invoke(app, ["validate", "-"], input=several(listed))
    assert result.exit_code == 1
    assert "1 invalid field" in result.output
    assert "spec.shards.replicas" in result.output
    result = runner.invoke(app, ["plan", "-"], input=several(listed))
    assert result.exit_code == 2
    assert "contains 2 CPRJobs; it must contain exactly one" in " ".join(result.output.split())


def test_usual_short_options_exist() -> None:
    version = runner.invoke(app, ["version"]).output
    assert "contract 1" in version
    assert runner.invoke(app, ["--version"]).output == version
    for arguments in (["-h"], ["scale", "-h"], ["snapshots", "ls", "-h"]):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0
        assert "Usage" in result.output


def test_completion_offers_commands_and_options() -> None:
    def completed(words: str, position: int) -> list[str]:
        environment = {"_CPRJOB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return runner.invoke(app, [], prog_name="cprjob", env=environment).output.split()

    assert completed("cprjob su", 1) == ["submit", "suspend"]
    assert completed("cprjob chaos job --k", 3) == ["--kill", "--kubeconfig"]


def test_commands_and_options_are_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    for group in ("bench", "data", "snapshots"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    assert set(re.findall(r"^## cprjob (.+)$", text, re.MULTILINE)) == set(commands)
    for command in commands.values():
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if f"`{option}" not in text] == []
