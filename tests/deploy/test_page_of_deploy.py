"""The danger: a stranger follows deploy/README.md, and has a pod that does not start."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import programs
from tests.deploy.manifests import paths_of, pod, render, render_mine, sidecar, workload
from tests.deploy.podrules import faults


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "deploy/README.md").read_text()


def block(page: str, beginning: str) -> str:
    """The block of YAML that begins so."""
    (found,) = re.findall(rf"```yaml\n({re.escape(beginning)}.*?)```", page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def agent(page: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(block(page, "apiVersion: apps/v1"))
    return found


@pytest.fixture(scope="module")
def objects(
    page: str, agent: dict[str, Any], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What a stranger applies who copies the page's files."""
    text = block(page, "apiVersion: kustomize")
    return render_mine(repository, tmp_path_factory.mktemp("page"), [agent], text)


def test_the_files_of_the_page(objects: list[dict[str, Any]]) -> None:
    """The overlay renders as written: the stranger's image and bucket, and every mount has its volume."""
    (bucket,) = [item["data"]["STATEWARD_ARCHIVE"] for item in objects if item["kind"] == "ConfigMap"]
    assert bucket == "s3://my-bucket/agents"
    assert sidecar(objects)["image"] == "example.com/stateward:1"
    assert faults(pod(objects)) == []


def test_the_api_server_takes_the_files(objects: list[dict[str, Any]]) -> None:
    """The API server's own code accepts what the stranger applies."""
    verdicts = programs.check(objects)
    assert {verdict["kind"] for verdict in verdicts} == {"ConfigMap", "Deployment", "Pod"}
    for verdict in verdicts:
        assert not verdict.keys() & {"errors", "warnings", "unjudged"}, verdict


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = page.partition(f"{heading}\n")[2].partition("\n##")[0]
    lines = [line.strip("|") for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_table_names_every_field(page: str, agent: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    """The table of the page has each field of the pod that changes, with its names and values, and no other."""
    template = workload(objects)["spec"]["template"]
    changed = paths_of(agent["spec"]["template"], template)
    table = {row[0].strip("`"): row[1] for row in rows(page, "### What changes in your pod")}
    assert {re.sub(r"\[.*|\.stateward$", "", path) for path in changed} - {"spec.securityContext"} == table.keys() - {
        "spec.securityContext.fsGroup"
    }
    for volume in template["spec"]["volumes"]:
        assert f"`{volume['name']}`" in table["spec.volumes"]
    assert f"sets {template['spec']['securityContext']['fsGroup']}:" in table["spec.securityContext.fsGroup"]
    assert template["spec"]["securityContext"].keys() == {"fsGroup"}
    user = sidecar(objects)["securityContext"]
    assert f"as user and group {user['runAsUser']}," in table["spec.initContainers"]
    assert user["runAsUser"] == user["runAsGroup"]
    needs = sidecar(objects)["resources"]
    wanted, limit = needs["requests"], needs["limits"]["memory"]
    said = f"requests {wanted['cpu']} CPU and {wanted['memory']} memory, and its limit is {limit}"
    assert said in table["spec.initContainers"]


def test_the_patches_of_the_page(page: str, agent: dict[str, Any], repository: Path, tmp_path: Path) -> None:
    """A pod keeps its own group of volumes, and has its own claim for the data, with the patches of the page."""
    text = yaml.safe_load(block(page, "apiVersion: kustomize"))
    text["patches"] += yaml.safe_load(block(page, "patches:"))["patches"]
    agent = deepcopy(agent)
    pod([agent])["securityContext"] = {"fsGroup": 1}
    found = render_mine(repository, tmp_path, [agent], yaml.safe_dump(text))
    assert pod(found)["securityContext"] == {"fsGroup": 2000}
    (data,) = [volume for volume in pod(found)["volumes"] if volume["name"] == "stateward-data"]
    assert data == {"name": "stateward-data", "persistentVolumeClaim": {"claimName": "web-agent-state"}}
    assert faults(pod(found)) == []


def test_every_folder_is_on_the_page(page: str, repository: Path) -> None:
    """Each component has a row, and each row has a folder."""
    folders = repository / "deploy/kubernetes"
    components = {
        str(file.parent.relative_to(folders))
        for file in folders.rglob("kustomization.yaml")
        if "kind: Component" in file.read_text()
    }
    named = {name.strip("`/") for row in rows(page, "### The components") for name in row[0].split(", ")}
    assert named == components


def test_the_pod_of_the_page_is_injected(page: str, repository: Path) -> None:
    """The page's CronJob is one, and its pods get the sidecar and the mount from the policy."""
    job = yaml.safe_load(block(page, "apiVersion: batch/v1"))
    verdicts = programs.check([job])
    assert [verdict["kind"] for verdict in verdicts] == ["CronJob", "Pod"]
    assert not any(verdict.keys() & {"errors", "warnings"} for verdict in verdicts), verdicts
    template = job["spec"]["jobTemplate"]["spec"]["template"]
    template["metadata"]["name"] = "nightly"
    policy = render(repository / "deploy/kubernetes/policy")
    (answer,) = programs.admit([*policy, {"apiVersion": "v1", "kind": "Pod", **template}])
    assert answer["pod"]["spec"]["initContainers"][0]["name"] == "stateward"
    assert answer["pod"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/run/stateward"
