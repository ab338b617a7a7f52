"""The pages that a user meets first: each printed command has its command, option, file, object and image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from torchx.cli.main import create_parser, get_sub_cmds
from typer.main import get_command

from cpr_operator.api.cprjob_spec import API_VERSION
from cpr_operator.api.status import ConditionType, Phase
from cpr_operator.cli.app import app
from cpr_operator.cli.kill_options import check_targets, parse_kill
from support.pages import DOCUMENTS, blocks, of_a_user

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/get-started.md", "docs/kind.md", "docs/torchx.md")
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]
IMAGES = {f"cprjob-operator:{VERSION}", f"cprjob-trainer:{VERSION}"}
OUR_IMAGE = re.compile(r"cprjob-(?:operator|trainer):[\w.-]+")
#: Further programs of pages, without a check of their arguments here.
PROGRAMS = {"docker", "helm", "kind", "kubectl", "sed"}
HEADER = ("Prerequisites", "Apply", "Check", "Clean")
Object = dict[str, Any]


def objects(path: str) -> list[Object]:
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all((ROOT / path).read_text("utf-8")))


JOBS = [job for path in EXAMPLES for job in objects(str(path)) if job.get("apiVersion") == API_VERSION]
NAMES = {job["metadata"]["name"] for job in JOBS}


def check(words: list[str]) -> None:
    """Fail if a command cannot be run: its files, images, objects and conditions must be there, as must its options.

    The pages themselves run as they are printed in tests/walkthroughs, tests/cluster and tests/soak.
    """
    program, *rest = words
    match program:
        case "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            assert set(rest) <= set(targets), words
        case "pip":
            found = re.fullmatch(r"install \.\[([\w,]+)\](?: torchx==[\d.]+| \./benchmarks)?", " ".join(rest))
            assert found, words
            assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])
        case "torchx":
            create_parser(get_sub_cmds()).parse_args(rest)  # leaves by SystemExit if there is no such command or option
        case "cprjob":
            check_cprjob(rest)
        case _:
            assert program in PROGRAMS, words
            files = [word for word in words if re.match(r"(examples|charts|crds)/", word)]
            assert [file for file in files if not (ROOT / file).exists()] == []
            assert {image for word in words for image in OUR_IMAGE.findall(word)} <= IMAGES
            named = {word.removeprefix("cpr/") for word in words if word.startswith("cpr/")}
            named |= {words[place + 1] for place, word in enumerate(words) if word == "cpr"}
            assert named <= NAMES, words
            for condition in re.findall(r"--for=(\S+)", " ".join(words)):
                name = condition.removeprefix("condition=").removeprefix("jsonpath={.status.phase}=")
                assert name in {"Ready", *get_args(ConditionType), *get_args(Phase)}


def check_cprjob(words: list[str]) -> None:
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context("cprjob", list(words))  # refuses unknown options and files that are not there
    if kills := tuple(parse_kill(each) for each in context.params.get("kill") or ()):
        (job,) = objects(str(context.params["file"]))
        check_targets(kills, job["spec"]["trainers"]["replicas"], job["spec"]["shards"]["replicas"])


@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_are_valid(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = [command for block in blocks(ROOT / page) for command in block.commands()]
    assert len(found) > 10
    for command in found:
        check(command)


@pytest.mark.parametrize("page", PAGES[:2])
def test_users_commands_need_kubectl_and_one_namespace(page: str) -> None:
    """tests/cluster/test_readme.py runs these."""
    for command in (command for block in of_a_user(ROOT / page) for command in block.commands()):
        assert command[0] == "kubectl"
        assert not {"--namespace", "--all-namespaces", "-n", "-A", "node", "nodes"} & set(command)


def test_readme_has_both_commands_of_contributors() -> None:
    printed = [command for block in blocks(ROOT / "README.md") for command in block.commands()]
    ours = [command for command in printed if command[0] == "make" and command != ["make", "images"]]
    assert ours == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_state_prerequisites_apply_check_and_clean(path: Path) -> None:
    lines = path.read_text("utf-8").partition("\napiVersion")[0].splitlines()
    header = {name: [line for line in lines if line.startswith(f"# {name}:")] for name in HEADER}
    assert all(len(found) == 1 for found in header.values())
    words = {name: found[0].partition(":")[2].split() for name, found in header.items()}
    check(words["Apply"])
    check(words["Check"])
    if path.name != "kind.yaml":
        name = str(path.relative_to(ROOT))
        assert words["Apply"] == ["kubectl", "apply", "-f", name]
        assert words["Clean"] == ["kubectl", "delete", "-f", name]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_have_a_target() -> None:
    pattern = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
    links = [(page, *found) for page in DOCUMENTS for found in pattern.findall(page.read_text("utf-8"))]
    assert len(links) > 50
    for page, path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {path}"
        assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def test_images_have_one_name_each() -> None:
    chart, values = (
        yaml.safe_load((ROOT / "charts" / "cprjob" / f).read_text()) for f in ("Chart.yaml", "values.yaml")
    )
    assert {values["image"][part] for part in ("registry", "tag", "digest")} == {""}
    assert f"{values['image']['repository']}:{chart['appVersion']}" in IMAGES
    texts = [*DOCUMENTS, *ROOT.glob("examples/**/*")]
    named = {
        image for each in texts if each.is_file() for image in OUR_IMAGE.findall(each.read_text("utf-8", "replace"))
    }
    assert named == IMAGES


def test_example_jobs_use_the_store_of_the_examples() -> None:
    secret, service, deployment = objects("examples/store.yaml")
    (port,) = service["spec"]["ports"]
    endpoint = f"http://{service['metadata']['name']}:{port['port']}"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert set(secret["stringData"]) == {"accessKey", "secretKey"}
    bucket = next(Path(each["mountPath"]).name for each in container["volumeMounts"] if "subPath" in each)
    stores = {each["metadata"]["name"]: each["spec"]["snapshots"]["store"] for each in JOBS}
    del stores["criteo"], stores["dlrm-dcnv2"]  # have a store of their own, with TLS
    expected = {"endpoint": endpoint, "bucket": bucket, "credentialsSecret": secret["metadata"]["name"]}
    assert stores == dict.fromkeys(stores, expected)


def test_store_of_the_examples_has_the_restricted_profile() -> None:
    pod = objects("examples/store.yaml")[2]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [set(volume) - {"name"} for volume in pod["volumes"]] == [{"emptyDir"}]
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
