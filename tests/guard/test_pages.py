"""The pages that a user meets first: each printed command has its command, option, file, object and image."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from torchx.cli.main import create_parser, get_sub_cmds
from typer.main import get_command

from cpr_operator.api.spec import API_VERSION
from cpr_operator.api.status import ConditionType, Phase
from cpr_operator.cli.app import app
from cpr_operator.cli.kills import check_targets, parse_kill
from support.pages import DOCUMENTS, blocks, of_a_user

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/get-started.md", "docs/kind.md", "docs/torchx.md")
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]
IMAGES = {f"cprjob-operator:{VERSION}", f"cprjob-trainer:{VERSION}"}
OUR_IMAGE = re.compile(r"cprjob-(?:operator|trainer):[\w.-]+")
#: As kubectl takes them.
KINDS = {
    "cpr": "CPRJob",
    "cprjobs": "CPRJob",
    "crd": "CustomResourceDefinition",
    "cronjob": "CronJob",
    "deployment": "Deployment",
    "lease": "Lease",
    "namespace": "Namespace",
    "node": "Node",
    "nodes": "Node",
    "pod": "Pod",
    "pods": "Pod",
}
#: kubectl's options that take a value in the next word.
VALUED = {"--namespace", "--selector", "--output", "--type", "-f", "-p"}
HEADER = ("Prerequisites", "Apply", "Check", "Clean")
Object = dict[str, Any]


def objects(path: str) -> list[Object]:
    """What a manifest has."""
    return list(yaml.safe_load_all((ROOT / path).read_text("utf-8")))


@dataclass
class Reader:
    """Follows a page as its reader does, and fails at the first command that cannot be."""

    there: dict[tuple[str, str], Object] = field(default_factory=dict)
    variables: set[str] = field(default_factory=lambda: {"REGISTRY"})  # the page asks for it in words
    copies: dict[str, str] = field(default_factory=dict)  # files that the page writes, and what they are like

    def follow(self, words: list[str]) -> None:
        program, *rest = words
        check = getattr(self, f"_{program}", None)
        assert check is not None, f"nobody checks {program}: {words}"
        check(rest)

    def _make(self, words: list[str]) -> None:
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert set(words) <= set(targets), words

    def _pip(self, words: list[str]) -> None:
        found = re.fullmatch(r"install \.\[([\w,]+)\](?: torchx==[\d.]+| \./laboratory)?", " ".join(words))
        assert found, words
        assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])

    def _torchx(self, words: list[str]) -> None:
        # It leaves by SystemExit where there is no such command or option.
        arguments = create_parser(get_sub_cmds()).parse_args(words)
        if words[0] == "run":
            component, job, file, *_ = arguments.component_name_and_args
            assert (arguments.scheduler, component, job) == ("cprjob", "cprjob.dlrm", "--job")
            (found,) = objects(self.copies.get(file, file))
            if not arguments.dryrun:
                self.there["CPRJob", found["metadata"]["name"]] = found
        elif "$JOB" in words[-1]:
            assert ("CPRJob", "quickstart") in self.there
            if words[0] == "delete":
                del self.there["CPRJob", "quickstart"]

    def _cprjob(self, words: list[str]) -> None:
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, words
            command, words = command.commands[words[0]], words[1:]
        context = command.make_context("cprjob", list(words))  # refuses unknown options and files that are not there
        kills = tuple(parse_kill(each) for each in context.params.get("kill") or ())
        if kills:
            (job,) = objects(str(context.params["file"]))
            check_targets(kills, job["spec"]["trainers"]["replicas"], job["spec"]["shards"]["replicas"])

    def _kind(self, words: list[str]) -> None:
        cluster = words[words.index("--name") + 1]
        assert cluster == "cprjob"
        if words[:2] == ["create", "cluster"]:
            (config,) = objects(words[words.index("--config") + 1])
            names = [f"{cluster}-{node['role']}" for node in config["nodes"]]
            assert names == [f"{cluster}-control-plane", *[f"{cluster}-worker"] * 3]
        elif words[:2] == ["load", "docker-image"]:
            assert set(words[4:]) == IMAGES
        else:
            assert words[:2] == ["delete", "cluster"]

    def _docker(self, words: list[str]) -> None:
        command, *rest = words
        named = {word for word in rest if OUR_IMAGE.search(word)}
        assert {word.removeprefix("$REGISTRY/") for word in named} <= IMAGES
        if command == "image" and rest[0] == "ls":
            assert rest[1] in {image.partition(":")[0] for image in IMAGES}
        elif command in {"stop", "start"}:
            assert rest[-1] == "$NODE"
        else:
            assert command in {"tag", "push", "image"}
            assert named

    def _sed(self, words: list[str]) -> None:
        if words == ["1,/=== SCHEDULER REQUEST ===/d"]:
            return
        if words[-1].startswith(">"):
            program, file, copy = words
            assert program.split("/")[1] in (ROOT / file).read_text("utf-8")
            self.copies[copy.removeprefix(">")] = file
            return
        options, program, file = words
        _, old, new, _ = program.split("#")
        assert options == "-i.printed"
        assert new == old.replace("image: ", "image: $REGISTRY/")
        assert f"{old}:" in (ROOT / file).read_text("utf-8")

    def _helm(self, words: list[str]) -> None:
        command, release, *rest = words
        namespace = rest[rest.index("--namespace") + 1]
        if command != "install":
            assert command in {"test", "uninstall"}
            assert ("Lease", release) in self.there
            return
        chart = ROOT / rest[0]
        assert (chart / "Chart.yaml").is_file()
        if "--set" in rest:
            key, _, value = rest[rest.index("--set") + 1].partition("=")
            assert key == "image.registry"
            assert yaml.safe_load((chart / "values.yaml").read_text("utf-8"))["image"]["registry"] == ""
            assert value == "$REGISTRY"
        (crd,) = objects("crds/cprjobs.cprjob.io.yaml")
        self.there |= {("Lease", release): {}, ("Namespace", namespace): {}}
        self.there["CustomResourceDefinition", crd["metadata"]["name"]] = crd

    def _kubectl(self, words: list[str]) -> None:
        options = {name: value for name, value in pairwise(words) if name in VALUED}
        values = set(options.values())
        plain = [word for word in words if not word.startswith("-") and word not in values]
        if "--namespace" in options:
            assert ("Namespace", options["--namespace"]) in self.there
        if "--selector" in options:
            self._selects(dict(each.split("=") for each in options["--selector"].split(",")))
        verb, *rest = plain
        if verb == "apply":
            self.there |= {(each["kind"], each["metadata"]["name"]): each for each in objects(options["-f"])}
            return
        if "-f" in options:
            assert verb == "delete"
            for each in objects(options["-f"]):
                del self.there[each["kind"], each["metadata"]["name"]]  # KeyError: it was never applied
            return
        assert verb in {"get", "describe", "delete", "patch", "wait", "rollout"}
        if verb == "rollout":
            assert rest.pop(0) == "status"
        resource, _, name = rest.pop(0).partition("/")
        name = name or (rest[0] if rest else "")
        kind = KINDS[resource]
        assert name == "" or (kind, name) in self.there, words
        assert name or kind in {"Pod", "Node"} or "--all" in words, words
        for condition in (word.removeprefix("--for=") for word in words if word.startswith("--for=")):
            self._awaited(kind, condition)

    def _awaited(self, kind: str, condition: str) -> None:
        if condition.startswith("condition="):
            known = get_args(ConditionType) if kind == "CPRJob" else ("Ready",)
            assert condition.removeprefix("condition=") in known
        else:
            assert kind == "CPRJob"
            phase = condition.removeprefix("jsonpath={.status.phase}=")
            assert phase in get_args(Phase)

    def _selects(self, labels: dict[str, str]) -> None:
        """Pods of a job that was applied, of a role and with an index that it has."""
        spec = self.there["CPRJob", labels.pop("cprjob.io/job")]["spec"]
        role, index = labels.pop("cprjob.io/role", "shard"), int(labels.pop("cprjob.io/index", 0))
        assert index < spec[f"{role}s"]["replicas"]
        assert not labels


@pytest.mark.parametrize("page", PAGES)
def test_every_printed_command_is_possible(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    reader = Reader()
    found = [command for block in blocks(ROOT / page) for command in block.commands()]
    assert len(found) > 10
    for command in found:
        reader.follow(command)


@pytest.mark.parametrize("page", PAGES[:2])
def test_users_need_kubectl_alone_and_no_namespace_but_their_own(page: str) -> None:
    """tests/cluster/test_readme.py runs these."""
    for command in (command for block in of_a_user(ROOT / page) for command in block.commands()):
        assert command[0] == "kubectl"
        assert not {"--namespace", "--all-namespaces", "-n", "-A", "node", "nodes"} & set(command)


def test_both_commands_of_contributors_are_in_the_readme() -> None:
    printed = [command for block in blocks(ROOT / "README.md") for command in block.commands()]
    ours = [command for command in printed if command[0] == "make" and command != ["make", "images"]]
    assert ours == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_example_says_what_it_needs_and_how_to_apply_check_and_clean_it(path: Path) -> None:
    lines = path.read_text("utf-8").partition("\napiVersion")[0].splitlines()
    header = {name: [line for line in lines if line.startswith(f"# {name}:")] for name in HEADER}
    assert all(len(found) == 1 for found in header.values())
    words = {name: found[0].partition(":")[2].split() for name, found in header.items()}
    reader = Reader()
    reader.follow(words["Apply"])
    reader.follow(words["Check"])
    if path.name != "kind.yaml":
        assert words["Apply"][-1] == str(path.relative_to(ROOT))
    reader.follow(words["Clean"])
    assert not reader.there


def anchors(page: Path) -> set[str]:
    """What links may name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    pattern = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
    links = [(page, *found) for page in DOCUMENTS for found in pattern.findall(page.read_text("utf-8"))]
    assert len(links) > 50
    for page, path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {path}"
        assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def test_the_images_have_one_name_each() -> None:
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


def test_jobs_that_need_a_store_find_that_of_the_examples() -> None:
    secret, service, deployment = objects("examples/store.yaml")
    (port,) = service["spec"]["ports"]
    endpoint = f"http://{service['metadata']['name']}:{port['port']}"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert set(secret["stringData"]) == {"accessKey", "secretKey"}
    bucket = next(Path(each["mountPath"]).name for each in container["volumeMounts"] if "subPath" in each)
    jobs = [each for path in EXAMPLES for each in objects(str(path)) if each.get("apiVersion") == API_VERSION]
    stores = {each["metadata"]["name"]: each["spec"]["snapshots"]["store"] for each in jobs}
    del stores["criteo"]  # has a store of its own, with TLS
    wanted = {"endpoint": endpoint, "bucket": bucket, "credentialsSecret": secret["metadata"]["name"]}
    assert stores == dict.fromkeys(stores, wanted)


def test_the_store_of_the_examples_keeps_to_the_restricted_profile() -> None:
    pod = objects("examples/store.yaml")[2]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [set(volume) - {"name"} for volume in pod["volumes"]] == [{"emptyDir"}]
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
