"""The danger: a manifest that the API server refuses, that starts the daemon wrongly, or that opens too much."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.manifests import WORKLOADS, pod, render, render_mine, sidecar, workload
from tests.deploy.strangers import workload_of

from stateward_sidecar.addresses import Port, check_listeners, parse_listen
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.settings import NAMES, guards_of, load_settings, make_parser

# The first release with native sidecars switched on, and a recent one.
RELEASES = ("1.29", "1.33")
IDENTITIES = {"aws": "eks.amazonaws.com/role-arn", "gke": "iam.gke.io/gcp-service-account",
              "azure": "azure.workload.identity/client-id"}  # fmt: skip


@pytest.fixture(scope="module", params=WORKLOADS)
def objects(request: pytest.FixtureRequest, repository: Path) -> list[dict[str, Any]]:
    return render(repository / "deploy/kubernetes" / request.param)


def bytes_of(quantity: str) -> int:
    """The bytes of a size in GiB."""
    return int(quantity.removesuffix("Gi")) << 30


def check_schema(objects: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for item in objects:
        for release in RELEASES:
            validate.validate(item, release, strict=True)


def test_the_api_server_takes_them(objects: list[dict[str, Any]]) -> None:
    """Each object fits the schemas of the oldest and of a recent release, without a field that they do not know."""
    check_schema(objects)
    assert {"ServiceAccount", "NetworkPolicy"} < {item["kind"] for item in objects}


def test_a_field_that_does_not_exist_is_found(objects: list[dict[str, Any]]) -> None:
    """The check is able to fail: a misspelt field is refused."""
    item = workload(objects)
    pod([item])["initContainers"][0]["restartPolcy"] = "Always"
    with pytest.raises(Exception, match="restartPolcy"):
        check_schema([item])
    del pod([item])["initContainers"][0]["restartPolcy"]


def test_the_daemon_takes_its_settings(objects: list[dict[str, Any]], repository: Path) -> None:
    """Every variable is a setting with a valid value, and every argument is a flag of the daemon."""
    container = sidecar(objects)
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    given |= dict(re.findall(r"\b(STATEWARD_\w+)=(\S+)", (repository / "Dockerfile").read_text()))
    for item in objects:
        if item["kind"] == "ConfigMap":
            given |= item["data"]
    assert {name.removeprefix("STATEWARD_").lower() for name in given} <= set(NAMES)
    settings, _ = load_settings(container.get("args", []), given)
    assert settings.grace_s < pod(objects)["terminationGracePeriodSeconds"]
    for probe, asked in (("startupProbe", "liveness"), ("readinessProbe", "readiness")):
        program, *arguments = container[probe]["exec"]["command"]
        assert program == "stateward-sidecar"
        assert make_parser().parse_args(arguments).health == asked
        assert container[probe]["timeoutSeconds"] > 3  # the probe's own patience


def test_paths_lie_on_volumes(objects: list[dict[str, Any]]) -> None:
    """Every path that the daemon writes to is a mount of a volume that exists; the root stays read-only."""
    names = {volume["name"] for volume in pod(objects)["volumes"]}
    names |= {claim["metadata"]["name"] for claim in workload(objects)["spec"].get("volumeClaimTemplates", ())}
    mounts = {mount["mountPath"]: mount for mount in sidecar(objects)["volumeMounts"]}
    assert set(mounts) == {"/var/lib/stateward", "/run/stateward", "/etc/stateward", "/tmp"}
    assert mounts["/etc/stateward"]["readOnly"]
    for container in (sidecar(objects), *pod(objects)["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_nothing_has_more_rights_than_it_needs(objects: list[dict[str, Any]]) -> None:
    """No root, no capability, no writable root, no token of the API server, no open port; a key that is a Secret."""
    spec = pod(objects)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    own = sidecar(objects)["securityContext"]  # also in a pod that says nothing
    assert own["runAsNonRoot"]
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "ports" not in container
    (key,) = [volume for volume in spec["volumes"] if volume["name"] == "stateward-key"]
    assert key["secret"]["secretName"] == "stateward-key"
    (policy,) = [item for item in objects if item["kind"] == "NetworkPolicy"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9464}]}]  # nobody but Prometheus
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= (
        workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    )


def test_a_pod_that_loses_its_disk_has_an_archive(objects: list[dict[str, Any]]) -> None:
    """An emptyDir for data comes with object storage; a volume that outlives the pod is for one pod alone."""
    (data,) = [volume for volume in pod(objects)["volumes"] if volume["name"] == "stateward-data"]
    assert "emptyDir" in data
    given = {entry["name"]: entry["value"] for entry in sidecar(objects)["env"]}
    settings, _ = load_settings([], {"STATEWARD_ARCHIVE": "file:///archive", **given})
    limit_bytes = settings.map_bytes
    has_rivals = workload(objects)["spec"].get("replicas", 1) > 1
    assert settings.default_durability == ("archived" if has_rivals else "committed")
    claims = workload(objects)["spec"].get("volumeClaimTemplates")
    if claims:  # a claim of the same name takes the place of the volume
        (claim,) = claims
        assert claim["metadata"]["name"] == "stateward-data"
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
        assert limit_bytes < bytes_of(claim["spec"]["resources"]["requests"]["storage"])
        assert "ephemeral-storage" not in sidecar(objects)["resources"]["requests"]
    else:
        assert limit_bytes < bytes_of(data["emptyDir"]["sizeLimit"])  # full before Kubernetes ends the pod
        assert sidecar(objects)["resources"]["requests"]["ephemeral-storage"] == "1Gi"
        sources = sidecar(objects)["envFrom"]
        assert any(entry.get("configMapRef", {}).get("name", "").startswith("stateward-archive") for entry in sources)


@pytest.mark.parametrize("cloud", IDENTITIES)
@pytest.mark.parametrize("account", ["stateward-agent", "theirs"])
def test_workload_identity(repository: Path, tmp_path: Path, cloud: str, account: str) -> None:
    """The component of a cloud annotates the service account: ours, or one of somebody else that has the label."""
    agent = workload_of("its own service account")
    components = f"../sidecar, ../archive, ../identity/{cloud}"
    labelled = {"name": "theirs", "labels": {"stateward": "sidecar"}}
    own = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": labelled}
    if account == "theirs":
        found = render_mine(repository, tmp_path, [agent, own], components=components)
    else:
        found = render_mine(repository, tmp_path, [agent], components=f"../service-account, {components}")
    check_schema(found)
    (made,) = [item for item in found if item["kind"] == "ServiceAccount"]
    assert IDENTITIES[cloud] in made["metadata"]["annotations"]
    assert made["metadata"]["name"] == pod(found)["serviceAccountName"] == account
    if cloud == "azure":
        labels = workload(found)["spec"]["template"]["metadata"]["labels"]
        assert labels["azure.workload.identity/use"] == "true"


def test_a_token_comes_from_a_secret(repository: Path, tmp_path: Path) -> None:
    """With the component, the daemon reads its tokens where the Secret is mounted; the key stays where it was."""
    agent = workload_of("says nothing")
    found = render_mine(repository, tmp_path, [agent], components="../sidecar, ../token")
    check_schema(found)
    container = sidecar(found)
    settings, _ = load_settings([], {entry["name"]: entry["value"] for entry in container["env"]})
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert settings.token_file == Path(mounts["stateward-token"]["mountPath"], "tokens")
    assert mounts["stateward-token"]["readOnly"]
    assert settings.key.path.parent == Path(mounts["stateward-key"]["mountPath"])
    (volume,) = [volume for volume in pod(found)["volumes"] if volume["name"] == "stateward-token"]
    assert volume["secret"]["secretName"] == "stateward-token"


def test_certificates_come_from_a_secret_of_cert_manager(repository: Path, tmp_path: Path) -> None:
    """With the component, the daemon has a port with mutual TLS beside its socket, and the files of such a Secret."""
    found = render_mine(repository, tmp_path, [workload_of("says nothing")], components="../sidecar, ../tls")
    check_schema(found)
    container = sidecar(found)
    settings, _ = load_settings([], {entry["name"]: entry["value"] for entry in container["env"]})
    check_listeners(settings.listen, guards_of(settings))
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "stateward-tls"]
    place = Path(mount["mountPath"])
    assert (settings.tls_cert, settings.tls_key) == (place / "tls.crt", place / "tls.key")
    assert settings.tls_client_ca == place / "ca.crt"
    assert mount["readOnly"]
    assert "subPath" not in mount
    (volume,) = [volume for volume in pod(found)["volumes"] if volume["name"] == "stateward-tls"]
    assert volume["secret"]["secretName"] == "stateward-tls"
    (port,) = container["ports"]
    socket, listener = map(parse_listen, settings.listen)
    assert isinstance(listener, Port)
    assert (listener.number, listener.has_tls) == (port["containerPort"], True)
    (place,) = [Path(each["mountPath"]) for each in container["volumeMounts"] if each["name"] == "stateward-socket"]
    assert socket == place / "stateward.sock"


def test_a_token_of_the_service_account_comes_from_kubelet(repository: Path, tmp_path: Path) -> None:
    """With the component and the overlay of the page, the daemon finds its file of principals, and every file that this
    one names, on volumes; and the agent's token is for the daemon alone."""
    page = (repository / "deploy/README.md").read_text()
    overlay = "components: [../sidecar, ../access]" + page.partition("components: [../sidecar, ../access]")[2]
    (tmp_path / "kubernetes/mine").mkdir(parents=True)
    example = (repository / "deploy/kubernetes/access/access.toml").read_text()
    (tmp_path / "kubernetes/mine/access.toml").write_text(example)
    found = render_mine(
        repository, tmp_path, [workload_of("says nothing")],
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [your-agent.yaml]\n"
        + overlay.partition("```")[0],
    )  # fmt: skip
    check_schema(found)
    container = sidecar(found)
    settings, _ = load_settings([], {entry["name"]: entry["value"] for entry in container["env"]})
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(found)["volumes"]}
    assert settings.access_file == Path(mounts["stateward-access"]["mountPath"], "access.toml")
    (config,) = [item for item in found if item["kind"] == "ConfigMap"]
    assert config["metadata"]["name"] == volumes["stateward-access"]["configMap"]["name"] == "stateward-access"
    (tmp_path / "access.toml").write_text(config["data"]["access.toml"])
    (issuer,) = read_access_file(tmp_path / "access.toml").issuers.values()
    place = mounts["stateward-issuer"]["mountPath"]
    account, authority = volumes["stateward-issuer"]["projected"]["sources"]
    assert issuer.source.token_file == Path(place, account["serviceAccountToken"]["path"])
    assert issuer.source.ca == Path(place, authority["configMap"]["items"][0]["path"])
    assert "audience" not in account["serviceAccountToken"]  # the API server's own
    (given,) = volumes["stateward-token"]["projected"]["sources"]
    assert given["serviceAccountToken"]["audience"] in issuer.audiences
    assert given["serviceAccountToken"]["path"] == "tokens"
    assert "stateward-token" not in mounts
    assert all(mounts[name]["readOnly"] for name in ("stateward-access", "stateward-issuer"))
