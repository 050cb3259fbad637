"""The danger: the chart does not install, or has a policy, alerts or a dashboard that are older than ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import programs
from tests.deploy.manifests import render
from tests.deploy.strangers import workload_of
from tests.deploy.test_injection import pod_of

import stateward

CHART = "deploy/helm/stateward"
# What each file of the chart is: a link, so that there is no second copy.
LINKS = {
    "policy.yaml": "deploy/kubernetes/policy/policy.yaml",
    "alerts.yaml": "deploy/prometheus/alerts.yaml",
    "dashboard.json": "deploy/grafana/stateward.json",
}
IMAGE = "image=example.com/stateward:1"
ALL = [IMAGE, "archive=s3://your-bucket/agents", "metrics=true", "alerts.enabled=true", "podMonitor.enabled=true",
       "alerts.labels.a=b"]  # fmt: skip


def helm(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [programs.program("helm"), *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=60)


def template(repository: Path, *values: str) -> list[dict[str, Any]]:
    """The objects that Helm makes of the chart with these values, in the namespace `stateward`."""
    given = [word for value in values for word in ("--set-string" if "settings" in value else "--set", value)]
    done = helm(repository, "template", "mine", CHART, "--namespace", "stateward", *given)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


@pytest.fixture(scope="module")
def objects(repository: Path) -> list[dict[str, Any]]:
    return template(repository, *ALL)


def one(objects: list[dict[str, Any]], kind: str, name: str = "stateward") -> dict[str, Any]:
    (found,) = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


def test_the_chart_has_no_copies(repository: Path) -> None:
    """Each file of the chart is a link to the one that everybody else uses, and the versions are the product's."""
    folder = repository / CHART / "files"
    assert {path.name for path in folder.iterdir()} == LINKS.keys()
    for name, target in LINKS.items():
        assert (folder / name).is_symlink(), name
        assert (folder / name).resolve() == (repository / target).resolve()
    about = yaml.safe_load((repository / CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == stateward.__version__


def test_helm_takes_the_chart(repository: Path) -> None:
    """Helm's linter has nothing to say, errors or warnings."""
    done = helm(repository, "lint", "--strict", CHART, "--set", IMAGE)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize(("value", "says"), [
    ("archive=s3://b/a", "image: the sidecar's image in your registry"),
    (f"{IMAGE},archive=bucket", "archive"),
    (f"{IMAGE},memory=much", "memory"),
    (f"{IMAGE},memory=127Mi", "memory"),
    (f"{IMAGE},settings.STATEWARD_METRICS=0.0.0.0:1", "STATEWARD_METRICS"),
    (f"{IMAGE},imag=x", "imag"),
    (f"{IMAGE},settings.GRACE=20", "GRACE"),
    (f"{IMAGE},podMonitor.enabled=true", "podMonitor.enabled needs metrics"),
])  # fmt: skip
def test_values_that_are_wrong_are_refused(repository: Path, value: str, says: str) -> None:
    """A missing image, a misspelt value and one of the wrong form end the installation, with its name."""
    done = helm(repository, "template", "mine", CHART, "--set", value)
    assert done.returncode != 0
    assert says in done.stderr


def test_the_cluster_takes_it(objects: list[dict[str, Any]]) -> None:
    """The API server's code accepts each object, and no object of the Prometheus Operator has an unknown field."""
    verdicts = programs.check(objects)
    assert sorted(verdict["kind"] for verdict in verdicts) == [
        "ConfigMap", "ConfigMap", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
        "PodMonitor", "PrometheusRule",
    ]  # fmt: skip
    assert not any(verdict.keys() & {"errors", "warnings"} for verdict in verdicts), verdicts
    one(objects, "PodMonitor")["spec"]["endpoint"] = []
    assert any("endpoint" in str(verdict.get("errors")) for verdict in programs.check(objects))  # it is able to fail
    del one(objects, "PodMonitor")["spec"]["endpoint"]


def test_alerts_and_dashboard_are_ours(objects: list[dict[str, Any]], repository: Path) -> None:
    """Helm changes nothing in the alerts, whose braces it could take for its own, nor in the dashboard."""
    rules = one(objects, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((repository / "deploy/prometheus/alerts.yaml").read_text())
    assert rules["metadata"]["labels"] == {"a": "b"}
    shown = one(objects, "ConfigMap", "stateward-dashboard")["data"]["stateward.json"]
    assert json.loads(shown) == json.loads((repository / "deploy/grafana/stateward.json").read_text())


def test_the_chart_is_the_folder(objects: list[dict[str, Any]], repository: Path) -> None:
    """Policy and binding are those of kubernetes/policy, and so are the defaults, with metrics in addition."""
    folder = render(repository / "deploy/kubernetes/policy")
    for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"):
        assert one(objects, kind) == one(folder, kind)
    own = one(objects, "ConfigMap", "stateward-defaults")["data"]
    assert one(folder, "ConfigMap", "stateward-defaults")["data"].items() <= own.items()


def test_a_pod_gets_the_values(repository: Path) -> None:
    """A pod with the label has image, bucket, limits and port of the values; Prometheus finds the port by its name."""
    values = [IMAGE, "archive=gs://b/a", "memory=1Gi", "data=9Gi", "settings.STATEWARD_ARCHIVE_INTERVAL=5",
              "archivePerNamespace=false", "readinessProbe=false"]  # fmt: skip
    objects = template(repository, *values, "metrics=true", "podMonitor.enabled=true")
    kept = [item for item in objects if item["kind"] != "PodMonitor"]
    (answer,) = programs.admit([*kept, pod_of(workload_of("an HTTP port"))])
    spec = answer["pod"]["spec"]
    container = spec["initContainers"][0]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert container["image"] == IMAGE.partition("=")[2]
    assert given["STATEWARD_ARCHIVE"] == "gs://b/a"
    assert given["STATEWARD_ARCHIVE_INTERVAL"] == "5"
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert "readinessProbe" not in container
    assert {"name": "stateward-data", "emptyDir": {"sizeLimit": "9Gi"}} in spec["volumes"]
    (port,) = container["ports"]
    (endpoint,) = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]


def test_numbers_are_settings(repository: Path, tmp_path: Path) -> None:
    """A number in a file of values arrives as it was written, and not as Helm's float."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"image": "i:1", "settings": {"STATEWARD_MAX_STATE_SIZE": 10_000_000}}))
    done = helm(repository, "template", "mine", CHART, "--values", str(values))
    assert done.returncode == 0, done.stderr
    defaults = one([item for item in yaml.safe_load_all(done.stdout) if item], "ConfigMap", "stateward-defaults")
    assert defaults["data"]["STATEWARD_MAX_STATE_SIZE"] == "10000000"


def test_the_notes_name_what_each_namespace_needs(repository: Path) -> None:
    """The notes name both Secrets, and say whether one key serves all namespaces."""
    dry = ("install", "mine", CHART, "--dry-run=client", "--namespace", "stateward", "--set", IMAGE, "--set")
    values = ("archive=s3://b/a/", "archive=s3://b/a,archivePerNamespace=false", "archive=")
    apart, shared, without = (helm(repository, *dry, value).stdout for value in values)
    assert "s3://b/a/NAMESPACE, and should have a key of its own" in apart
    assert "secret generic stateward-bucket" in apart
    assert "each needs the same key" in shared
    assert "stateward-bucket" not in without.partition("NOTES:")[2]
