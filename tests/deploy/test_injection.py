"""The danger: a pod with the label starts without the sidecar, with another one than the component's, or not at all."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import programs
from tests.deploy.manifests import paths_of, pod, render, render_mine, sidecar
from tests.deploy.strangers import EACH, workload_of

from stateward_sidecar.settings import load_settings

LABEL = {"stateward": "inject"}


@pytest.fixture(scope="module")
def policy(repository: Path) -> list[dict[str, Any]]:
    """The policy, its binding, and the ConfigMap that it reads."""
    return render(repository / "deploy/kubernetes/policy")


def pod_of(workload: dict[str, Any], labels: dict[str, str] = LABEL) -> dict[str, Any]:
    """The Pod of a workload before the policy sees it: no container mounts the socket."""
    template = deepcopy(workload["spec"]["template"])
    template["metadata"]["name"] = workload["metadata"]["name"]
    template["metadata"]["labels"] |= labels
    for container in template["spec"]["containers"]:
        mounts = container.get("volumeMounts", [])
        kept = [mount for mount in mounts if mount["name"] != "stateward-socket"]
        container.pop("volumeMounts", None)
        if kept:
            container["volumeMounts"] = kept
    return {"apiVersion": "v1", "kind": "Pod", **template}


def admit(policy: list[dict[str, Any]], *pods: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods as the API server stores them: accepted, without a warning."""
    answers = programs.admit([*policy, *pods])
    for answer in answers:
        assert "refused" not in answer, answer
        assert not answer["verdict"].keys() & {"errors", "warnings"}, answer["verdict"]
    assert len(answers) == len(pods)
    return [answer["pod"] for answer in answers]


def settings_of(made: dict[str, Any]) -> dict[str, str]:
    """The variables of the sidecar."""
    return {entry["name"]: entry["value"] for entry in made["spec"]["initContainers"][0]["env"]}


def containers_with_mount(spec: dict[str, Any]) -> list[str]:
    mounts = {item["name"]: item.get("volumeMounts", ()) for item in spec["containers"]}
    wanted = {"name": "stateward-socket", "mountPath": "/run/stateward"}
    return [name for name, found in mounts.items() if wanted in found]


def test_the_policy_is_one(policy: list[dict[str, Any]]) -> None:
    """The API server takes the policy: every expression compiles, and none costs too much."""
    verdicts = {verdict["kind"]: verdict for verdict in programs.check(policy)}
    for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ConfigMap"):
        assert not verdicts[kind].keys() & {"errors", "warnings", "unjudged"}, verdicts[kind]
    broken = deepcopy(policy)
    (one,) = [item for item in broken if item["kind"] == "MutatingAdmissionPolicy"]
    assert one["spec"]["failurePolicy"] == "Fail"
    one["spec"]["variables"][0]["expression"] = "object.spec.nothing("
    assert any("compilation failed" in str(verdict) for verdict in programs.check(broken))


def test_every_pod_gets_it(policy: list[dict[str, Any]]) -> None:
    """Pods that differ get the sidecar as their first container, its volumes and the mount, and keep the rest."""
    plain = [pod_of(workload_of(name, kind), {}) for name, kind in EACH]
    before = admit(policy, *plain)
    after = admit(policy, *(pod_of(workload_of(name, kind)) for name, kind in EACH))
    volumes = {f"spec.volumes[stateward-{name}]" for name in ("data", "socket", "key", "scratch")}
    for old, new in zip(before, after, strict=True):
        changed = paths_of(old, new)
        names = [item["name"] for item in old["spec"]["containers"]]
        mounts = {f"spec.containers[{name}].volumeMounts[stateward-socket]" for name in names}
        mounts |= {
            f"spec.containers[{item['name']}].env[{name}]"
            for item in old["spec"]["containers"]
            for name in ("STATEWARD_TARGET", "STATEWARD_SOCKET_OWNER")
            if name not in {entry["name"] for entry in item.get("env", ())}
        }
        group = set() if "fsGroup" in old["spec"]["securityContext"] else {"spec.securityContext.fsGroup"}
        assert changed == {"spec.initContainers[stateward]", "metadata.labels.stateward", *volumes, *mounts, *group}
        assert new["spec"]["initContainers"][0]["name"] == "stateward"


def test_it_is_the_component(policy: list[dict[str, Any]], repository: Path, tmp_path: Path) -> None:
    """Container and volumes are those of the component, but for the bucket's URL, which comes from the defaults."""
    agent = workload_of("says nothing")
    component = render_mine(repository, tmp_path, [agent], components="../sidecar, ../archive")
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": pod(component)}
    injected, wanted = admit(policy, pod_of(agent), plain)
    own, given = (sidecar([{"kind": "Job", "spec": {"template": item}}]) for item in (wanted, injected))
    urls = [container["envFrom"][:-1] for container in (own, given)]
    assert urls[0]
    assert not urls[1]
    for container in (own, given):
        container["envFrom"] = container["envFrom"][-1:]
        container["env"] = {entry["name"]: entry["value"] for entry in container["env"]}
        del container["image"]
    assert given["env"].pop("STATEWARD_ARCHIVE").startswith("s3://")
    rooms = [load_settings([], {"STATEWARD_MAP_SIZE": one["env"].pop("STATEWARD_MAP_SIZE")})[0] for one in (own, given)]
    assert rooms[0].map_bytes == rooms[1].map_bytes
    assert given == own
    assert {item["name"]: item for item in injected["spec"]["volumes"]} == {
        item["name"]: item for item in wanted["spec"]["volumes"]
    }
    target, owner = injected["spec"]["containers"][0].pop("env")
    assert target == {"name": "STATEWARD_TARGET", "value": "unix:///run/stateward/stateward.sock"}
    assert owner == {"name": "STATEWARD_SOCKET_OWNER", "value": str(own["securityContext"]["runAsUser"])}
    assert injected["spec"]["containers"] == wanted["spec"]["containers"]
    assert injected["spec"]["securityContext"] == wanted["spec"]["securityContext"]


def test_a_claim_of_the_pod_takes_the_place_of_the_volume(policy: list[dict[str, Any]]) -> None:
    """A volume `stateward-data` of the pod, as a StatefulSet makes it of its claim, holds the data."""
    agent = pod_of(workload_of("says nothing"))
    claim = {"name": "stateward-data", "persistentVolumeClaim": {"claimName": "stateward-data-0"}}
    agent["spec"]["volumes"] = [claim]
    (made,) = admit(policy, agent)
    assert [volume for volume in made["spec"]["volumes"] if volume["name"] == "stateward-data"] == [claim]
    container = made["spec"]["initContainers"][0]  # our limits are not those of the claim
    assert "STATEWARD_MAP_SIZE" not in {entry["name"] for entry in container["env"]}
    assert "ephemeral-storage" not in container["resources"]["requests"]


@pytest.mark.parametrize(("changes", "wanted"), [
    ({}, {"a": "s3://your-bucket/agents/a", "b": "s3://your-bucket/agents/b"}),
    ({"STATEWARD_ARCHIVE": "gs://x/"}, {"a": "gs://x/a", "b": "gs://x/b"}),
    ({"archive-per-namespace": "no"}, {"a": "s3://your-bucket/agents", "b": "s3://your-bucket/agents"}),
])  # fmt: skip
def test_each_namespace_has_its_archive(
    policy: list[dict[str, Any]], changes: dict[str, str], wanted: dict[str, str]
) -> None:
    """No key opens the archive of another namespace, unless the administrator wants one archive for all."""
    objects = deepcopy(policy)
    (defaults,) = [item for item in objects if item["kind"] == "ConfigMap"]
    defaults["data"] |= changes
    pods = [pod_of(workload_of("says nothing")) for _ in wanted]
    for asking, namespace in zip(pods, wanted, strict=True):
        asking["metadata"]["namespace"] = namespace
    given = {made["metadata"]["namespace"]: settings_of(made)["STATEWARD_ARCHIVE"] for made in admit(objects, *pods)}
    assert given == wanted


@pytest.mark.parametrize(("changes", "wanted"), [
    ({"data": "40Gi"}, 30 << 30),
    ({"data": "40Gi", "STATEWARD_MAP_SIZE": "7GiB"}, 7 << 30),
])  # fmt: skip
def test_the_data_end_below_the_limit_of_their_volume(
    policy: list[dict[str, Any]], changes: dict[str, str], wanted: int
) -> None:
    """The daemon refuses saves before Kubernetes ends the pod, whatever the size is; a setting of its own counts."""
    objects = deepcopy(policy)
    (defaults,) = [item for item in objects if item["kind"] == "ConfigMap"]
    defaults["data"] |= changes
    (made,) = admit(objects, pod_of(workload_of("says nothing")))
    names = [entry["name"] for entry in made["spec"]["initContainers"][0]["env"]]
    assert names.count("STATEWARD_MAP_SIZE") == 1
    assert load_settings([], settings_of(made))[0].map_bytes == wanted
    (data,) = [volume for volume in made["spec"]["volumes"] if volume["name"] == "stateward-data"]
    assert data["emptyDir"]["sizeLimit"] == "40Gi"


def test_an_annotation_chooses_the_containers(policy: list[dict[str, Any]]) -> None:
    """Only containers that the annotation names get mount and address; one that has its own keeps it."""
    agent = pod_of(workload_of("one namespace of processes"))
    every, chosen, own = agent, deepcopy(agent), deepcopy(agent)
    chosen["metadata"]["annotations"] = {"stateward/containers": "tail, nobody"}
    own["spec"]["containers"][0]["volumeMounts"] = [{"name": "stateward-socket", "mountPath": "/run/stateward"}]
    found = [containers_with_mount(made["spec"]) for made in admit(policy, every, chosen, own)]
    assert found == [["web", "tail"], ["tail"], ["web", "tail"]]
    own["spec"]["containers"][0]["env"] = [
        {"name": "STATEWARD_TARGET", "value": "unix:///other"}, {"name": "STATEWARD_SOCKET_OWNER", "value": "me"}
    ]  # fmt: skip
    made, other = admit(policy, own, chosen)
    values = [[entry["value"] for entry in item["env"]] for item in made["spec"]["containers"]]
    assert values == [["unix:///other", "me"], ["unix:///run/stateward/stateward.sock", "65532"]]
    assert "env" not in other["spec"]["containers"][0]


def test_pods_that_do_not_ask_stay_as_they_are(
    policy: list[dict[str, Any]], repository: Path, tmp_path: Path
) -> None:
    """A pod without the label has no sidecar after it, and one that has the component's has no second one."""
    plain = pod_of(workload_of("says nothing"), {})
    component = pod_of({"metadata": {"name": "has"}, "spec": {"template": {"metadata": {"labels": {}}, "spec": pod(
        render_mine(repository, tmp_path, [workload_of("says nothing")]))}}})  # fmt: skip
    first, second = admit(policy, plain, component)
    assert "initContainers" not in first["spec"]
    assert [item["name"] for item in second["spec"]["initContainers"]] == ["stateward"]


@pytest.mark.parametrize("lacks", ["ConfigMap", "image"])
def test_a_pod_does_not_start_without_it(policy: list[dict[str, Any]], lacks: str) -> None:
    """Without defaults, or with defaults that name no image, a pod with the label is refused; others are not."""
    objects = deepcopy([item for item in policy if item["kind"] != lacks])
    for item in objects:
        item.get("data", {}).pop("image", None)
    agent = workload_of("says nothing")
    asking, plain = programs.admit([*objects, pod_of(agent), pod_of(agent, {})])
    assert "denied request" in asking["refused"] or "no params found" in asking["refused"], asking
    assert "pod" in plain


def test_settings_come_from_the_defaults(policy: list[dict[str, Any]]) -> None:
    """Each key that begins with STATEWARD_ is a variable of the sidecar; metrics open a port, and a probe can go."""
    objects = deepcopy(policy)
    (defaults,) = [item for item in objects if item["kind"] == "ConfigMap"]
    defaults["data"] |= {"STATEWARD_METRICS": "0.0.0.0:9464", "STATEWARD_METRICS_REMOTE": "yes", "memory": "1Gi"}
    defaults["data"]["readiness-probe"] = "no"
    (made,) = admit(objects, pod_of(workload_of("an HTTP port")))
    container = made["spec"]["initContainers"][0]
    given = settings_of(made)
    assert given["STATEWARD_METRICS"] == "0.0.0.0:9464"
    assert "memory" not in given
    assert "readinessProbe" not in container
    assert "startupProbe" in container
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert [port["containerPort"] for port in container["ports"]] == [9464]
