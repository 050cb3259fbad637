"""The manifests as kustomize renders them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = ("statefulset", "deployment", "job")
KINDS = {"StatefulSet", "Deployment", "DaemonSet", "Job"}
OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{base}]
components: [{components}]
"""


def render(folder: Path) -> list[dict[str, Any]]:
    """The objects of a folder. Skips the test without kustomize."""
    yaml = pytest.importorskip("yaml")
    if program := shutil.which("kustomize"):
        command = [program, "build"]
    elif program := shutil.which("kubectl"):
        command = [program, "kustomize"]
    else:
        pytest.skip("neither kustomize nor kubectl is installed")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def render_mine(
    repository: Path, place: Path, agent: list[dict[str, Any]], kustomization: str = "", components: str = "../sidecar"
) -> list[dict[str, Any]]:
    """The objects of an overlay for somebody's ``agent``: their file ``kustomization``, or one with ``components``."""
    yaml = pytest.importorskip("yaml")
    base = place / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base, dirs_exist_ok=True)
    (base / "mine").mkdir(exist_ok=True)
    text = kustomization or OVERLAY.format(base="your-agent.yaml", components=components)
    (base / "mine/kustomization.yaml").write_text(text)
    (base / "mine/your-agent.yaml").write_text(yaml.safe_dump_all(agent))
    return render(base / "mine")


def named(item: Any) -> bool:
    return isinstance(item, dict) and "name" in item


def paths_of(before: Any, after: Any, path: str = "") -> set[str]:
    """The fields that differ. Entries of a list that have a name are told apart by it."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = {*before, *after}
        return set().union(*(paths_of(before.get(key), after.get(key), f"{path}.{key}".lstrip(".")) for key in keys))
    if isinstance(after, list) and isinstance(before, list | None) and all(map(named, after)):
        old, new = ({item["name"]: item for item in items or ()} for items in (before, after))
        return set().union(*(paths_of(old.get(name), new.get(name), f"{path}[{name}]") for name in {*old, *new}))
    return set() if before == after else {path}


def workload(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The StatefulSet, Deployment, DaemonSet or Job."""
    (found,) = [item for item in objects if item["kind"] in KINDS]
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """What a pod is made of."""
    found: dict[str, Any] = workload(objects)["spec"]["template"]["spec"]
    return found


def sidecar(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the daemon."""
    (found,) = [item for item in pod(objects)["initContainers"] if item["name"] == "stateward"]
    return dict(found)
