"""The manifests as kustomize renders them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = ("statefulset", "deployment", "job")
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


def workload(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The StatefulSet, Deployment or Job."""
    (found,) = [item for item in objects if item["kind"].lower() in WORKLOADS]
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """What a pod is made of."""
    found: dict[str, Any] = workload(objects)["spec"]["template"]["spec"]
    return found


def sidecar(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the daemon."""
    (found,) = [item for item in pod(objects)["initContainers"] if item["name"] == "stateward"]
    return dict(found)
