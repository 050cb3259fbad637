"""The danger: the sidecar breaks the pod that it is put into, or the API server refuses the pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deploy import programs
from tests.deploy.manifests import KINDS, paths_of, pod, render_mine, sidecar
from tests.deploy.podrules import faults
from tests.deploy.strangers import EACH, workload_of

MORE = ("../sidecar", "../sidecar, ../archive", "../sidecar, ../archive, ../token, ../metrics, ../network-policy",
        "../sidecar, ../access", "../sidecar, ../tls")


@pytest.fixture(scope="module", params=MORE)
def rendered(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]]]:
    """All workloads with these components."""
    agents = [workload_of(name, kind) for name, kind in EACH]
    place = tmp_path_factory.mktemp("rendered")
    return request.param, render_mine(repository, place, agents, components=request.param)


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_a_pod_of_somebody_else_stays_as_it_is(
    rendered: tuple[str, list[dict[str, Any]]], name: str, kind: str
) -> None:
    """The component adds its container, its volumes, a label and the group of volumes; everything else is as before."""
    components, objects = rendered
    before = workload_of(name, kind)
    (after,) = [item for item in objects if item["metadata"]["name"] == before["metadata"]["name"]]
    label, spec = "spec.template.metadata.labels.stateward", "spec.template.spec"
    volumes = {"data", "socket", "key", "scratch"} | ({"token"} if "token" in components else set())
    volumes |= {"access", "issuer", "token"} if "access" in components else set()
    volumes |= {"tls"} if "tls" in components else set()
    allowed = {label, f"{spec}.initContainers[stateward]", f"{spec}.securityContext.fsGroup", f"{spec}.securityContext"}
    assert paths_of(before, after) <= allowed | {f"{spec}.volumes[stateward-{volume}]" for volume in volumes}
    assert pod([after])["securityContext"]["fsGroup"] == 65532
    assert pod([after])["initContainers"][0]["name"] == "stateward"  # the pod's own init containers may use it


def test_the_pods_fit_together(rendered: tuple[str, list[dict[str, Any]]]) -> None:
    """No mount without a volume, no name twice, no field in the wrong place."""
    agents = [item for item in rendered[1] if item["kind"] in KINDS]
    assert len(agents) == len(EACH)
    for agent in agents:
        assert faults(pod([agent])) == [], agent["metadata"]["name"]


def test_the_api_server_takes_the_pods(rendered: tuple[str, list[dict[str, Any]]]) -> None:
    """The API server's own code accepts every workload, and the pod that it makes, without a warning."""
    verdicts = programs.check(rendered[1])
    assert [verdict["kind"] for verdict in verdicts].count("Pod") == len(EACH)
    for verdict in verdicts:
        assert not verdict.keys() & {"errors", "warnings", "unjudged"}, verdict


def test_the_pod_of_the_strictest_namespace(repository: Path, tmp_path: Path) -> None:
    """A pod that fits the Pod Security Standard "restricted" fits it with the sidecar too."""
    agent = workload_of("another user")
    spec = pod([agent])
    spec["securityContext"] |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    objects = render_mine(repository, tmp_path, [agent], components=MORE[2])
    (made,) = [verdict for verdict in programs.check(objects) if verdict["kind"] == "Pod"]
    assert "restricted" not in made
    del spec["securityContext"]["runAsNonRoot"]
    (other,) = [verdict for verdict in programs.check([agent]) if verdict["kind"] == "Pod"]
    assert any("runAsNonRoot" in reason for reason in other["restricted"])  # the check is able to fail


def mount_nowhere(spec: dict[str, Any]) -> None:
    spec["containers"][0]["volumeMounts"].append({"name": "nowhere", "mountPath": "/nowhere"})


def take_the_volume(spec: dict[str, Any]) -> None:
    spec["volumes"] = [{"name": "stateward-data", "persistentVolumeClaim": {"claimName": "theirs"}}]


def take_the_container(spec: dict[str, Any]) -> None:
    spec["containers"].append({"name": "stateward", "image": "web"})


# How a pod uses a name of ours, and what our rules and the API server then say.
CLASHES = {
    "volume": (take_the_volume, "volume stateward-data has 2 sources", "may not specify more than 1 volume type"),
    "container": (take_the_container, "container stateward is there 2 times", "Duplicate value"),
    "mount": (mount_nowhere, "mounts nowhere, which is no volume", "Not found"),
}


@pytest.fixture(params=CLASHES)
def clash(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> tuple[list[dict[str, Any]], str, str]:
    """The objects, and what our rules and the API server say about them."""
    change, ours, theirs = CLASHES[request.param]
    agent = workload_of("says nothing")
    change(pod([agent]))
    return render_mine(repository, tmp_path, [agent]), ours, theirs


def test_a_name_of_ours_that_is_taken_is_found(clash: tuple[list[dict[str, Any]], str, str]) -> None:
    """The rules are able to fail: a pod with a name of ours is found."""
    objects, ours, _ = clash
    assert ours in " ".join(faults(pod(objects)))


def test_a_name_of_ours_that_is_taken_is_refused(clash: tuple[list[dict[str, Any]], str, str]) -> None:
    """The API server refuses a pod with a name of ours, so none starts with half of each."""
    objects, _, theirs = clash
    assert theirs in " ".join(error for verdict in programs.check(objects) for error in verdict.get("errors", ()))


def test_the_metrics_can_be_scraped(repository: Path, tmp_path: Path) -> None:
    """With the network policy, the daemon's port stays open, and it is the port at which the daemon listens."""
    objects = render_mine(repository, tmp_path, [workload_of("an HTTP port")], components=MORE[2])
    (policy,) = [item for item in objects if item["kind"] == "NetworkPolicy"]
    (port,) = sidecar(objects)["ports"]
    given = {entry["name"]: entry["value"] for entry in sidecar(objects)["env"]}
    assert given["STATEWARD_METRICS"] == f"0.0.0.0:{port['containerPort']}"
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["containerPort"]}]}]


def test_without_the_network_policy_nothing_is_closed(repository: Path, tmp_path: Path) -> None:
    """The overlay of a component alone makes no object beside the pod's own: no account, no policy."""
    objects = render_mine(repository, tmp_path, [workload_of("an HTTP port")])
    assert [item["kind"] for item in objects] == ["Deployment"]
