"""deploy/kubernetes as kubectl builds it and Kubernetes' own JSON schemas read it; no cluster."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from prunella.deploy.cli import main as cli
from prunella.deploy.machines import keys

FILES = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZE = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
VERSION = "1.33"
needs_kustomize = pytest.mark.skipif(
    shutil.which(KUSTOMIZE[0]) is None, reason="neither kubectl nor kustomize is installed"
)


def documents(*names: str) -> list[dict[str, Any]]:
    """Every object in files of the directory."""
    return [each for name in names for each in yaml.safe_load_all((FILES / name).read_text())]


def resources() -> list[dict[str, Any]]:
    return documents(*documents("kustomization.yaml")[0]["resources"])


def pods() -> dict[str, dict[str, Any]]:
    return {
        each["kind"]: each["spec"]["template"]["spec"] for each in resources() if "template" in each.get("spec", {})
    }


def containers() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for pod in pods().values() for each in pod["containers"]}


def make_keys(place: Path) -> None:
    """The keys that kustomization.yaml names, made as its first lines say."""
    shutil.copytree(FILES, place)
    keys.make(place / "keys", ["node-0", "node-1"], ["prunella-superlink"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("cluster") / "files"
    make_keys(place)
    done = subprocess.run([*KUSTOMIZE, str(place)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def accepted(objects: list[dict[str, Any]]) -> None:
    """Every object fits its schema, and one with a slip of the pen does not."""
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for each in objects:
        schemas.validate(each, VERSION, strict=True)
    (daemons,) = [each for each in objects if each["kind"] == "DaemonSet"]
    with pytest.raises(schemas.ValidationError):
        schemas.validate(daemons | {"spec": daemons["spec"] | {"selektor": {}}}, VERSION, strict=True)


def test_kubernetes_schemas_accept_every_file() -> None:
    accepted(resources())


@needs_kustomize
def test_kubernetes_schemas_accept_what_kustomize_makes_of_them(built: list[dict[str, Any]]) -> None:
    accepted(built)


@needs_kustomize
def test_what_a_pod_mounts_is_there(built: list[dict[str, Any]]) -> None:
    kinds = ("Secret", "ConfigMap")
    names = {
        (each["kind"], each["metadata"]["name"]): {*each.get("data", {})} for each in built if each["kind"] in kinds
    }
    assert all(each["metadata"].get("namespace", "prunella") == "prunella" for each in built)
    for pod in (each["spec"]["template"]["spec"] for each in built if "template" in each.get("spec", {})):
        for volume in pod["volumes"]:
            for part in volume.get("projected", {}).get("sources", [volume]):
                source = part.get("secret") or part.get("configMap")
                if source:
                    kind = "Secret" if "secret" in part else "ConfigMap"
                    held = names[kind, source.get("name") or source["secretName"]]
                    assert {item["key"] for item in source.get("items", [])} <= held
    (clients,) = [held for (_, name), held in names.items() if name.startswith("prunella-clients")]
    (private,) = [held for (_, name), held in names.items() if name.startswith("prunella-supernodes")]
    assert clients == private, "a client has a number and a key under the name of its node"
    assert not [name for held in names.values() for name in held if name == "ca.key"]


def test_every_container_is_confined() -> None:
    for pod in pods().values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]} and container["resources"]["limits"]["memory"]
            assert "livenessProbe" in container


def test_the_superlink_keeps_its_state_and_a_client_its_own() -> None:
    (link,) = [each for each in resources() if each["kind"] == "StatefulSet"]
    claims = {claim["metadata"]["name"] for claim in link["spec"]["volumeClaimTemplates"]}
    mounted = {m["mountPath"]: m["name"] for c in pods()["StatefulSet"]["containers"] for m in c["volumeMounts"]}
    assert {mounted["/state"], mounted["/runs"]} == claims and link["spec"]["replicas"] == 1
    volumes = {volume["name"]: volume for volume in pods()["DaemonSet"]["volumes"]}
    for name in ("state", "data"):
        assert volumes[name]["hostPath"]["type"] == "Directory", "a site takes part by making them"


def test_whoever_runs_submitted_code_is_shown_no_private_key_nor_what_the_superlink_keeps() -> None:
    pod = pods()["StatefulSet"]
    secret = {volume["name"]: volume["projected"]["sources"] for volume in pod["volumes"] if "projected" in volume}
    mounts = {c["name"]: [(m["name"], m.get("subPath")) for m in c["volumeMounts"]] for c in pod["containers"]}
    assert not set(mounts["superlink"]) & set(mounts["executor"])
    shown = {
        item["key"] if whole else "*"
        for name, _ in mounts["executor"]
        for part in secret.get(name, [])
        if "secret" in part
        for whole in [part["secret"].get("items")]
        for item in whole or [{}]
    }
    assert shown == {"ca.crt"}


def test_every_command_is_one_that_exists() -> None:
    commands = typer.main.get_command(cli.app)
    assert isinstance(commands, click.Group)
    found = {}
    for name, container in containers().items():
        shell = " ".join(container["args"]).replace("exec prunella ", "")
        words = re.sub(r'"\$[^"]*"', "1", shell.replace('"$(cat /client/id)"', "0")).split()
        command = commands.get_command(click.Context(commands), words[0])
        assert command is not None
        found[name] = command.make_context(words[0], words[1:]).params
    assert found["superlink"]["no_executor"] and found["superlink"]["control"].startswith("127.0.0.1:")
    assert found["executor"]["superlink"].startswith("127.0.0.1:")
    assert found["supernode"]["audit"] == "deny"
    assert not [name for name, options in found.items() if options["insecure"] or options["insecure_anyway"]]


def test_no_policy_lets_anybody_to_the_control_port() -> None:
    policies = [each for each in resources() if each["kind"] == "NetworkPolicy"]
    everybody = [each["spec"] for each in policies if each["spec"]["podSelector"] == {}]
    assert [set(spec["policyTypes"]) for spec in everybody] == [{"Ingress", "Egress"}]
    assert not everybody[0].keys() & {"ingress", "egress"}
    ports = {port["name"]: port["containerPort"] for c in containers().values() for port in c.get("ports", [])}
    assert ports == {"fleet": 9092, "metrics": 9464}
    opened = {
        port["port"]
        for each in policies
        for way in ("ingress", "egress")
        for rule in each["spec"].get(way, [])
        for port in rule["ports"]
    }
    assert opened == {"fleet", "metrics", 53}
    labels = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for each in resources()
        if "template" in each.get("spec", {})
    }
    chosen = {each["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name") for each in policies}
    assert chosen - {None} == labels
