"""The danger: an image that does not build from what is pinned, that needs root, or that loses what it was given.

`make image-test` builds it without a container engine: buildah runs each step in a chroot, on a base of Debian's
packages in place of python:slim. deploy/README.md lists what a container engine alone can show.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stateward import Client

SERVICES = ("aws", "vault")
EXTRAS = ("", "cli", "jwt", "metrics", "sidecar")
PACKAGES = "ca-certificates,python3,python3-venv"
# A tag, and after `make image-pin` its digest.
BASE = re.compile(r"^ARG BASE=python:3\.\d+-slim(|@sha256:[0-9a-f]{64})$", re.MULTILINE)
SITE = "opt/stateward/lib/python3*/site-packages"
# Of everything above the base: packages, daemon and compiled modules.
ADDED_BYTES_MAX = {"": 130 << 20, "aws vault": 170 << 20}
SHOWN = ("limits", "status", "environ")
# The root becomes read-only; the volumes are directories of the test. $1 root, $2 data, $3 sockets, then the command.
RUN = """
set -e
mount --bind "$1" "$1"
mount --bind "$2" "$1/var/lib/stateward"
mount --bind "$3" "$1/run/stateward"
mount -t tmpfs tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount -o remount,ro,bind "$1"
root=$1; shift 3
exec chroot --userspec=65532:65532 "$root" "$@"
"""


def pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


def test_everything_is_pinned_and_current(repository: Path) -> None:
    """The lists name each package that the image needs, in a version that pyproject.toml allows, with its hashes."""
    lists = {path.stem: path.read_text() for path in (repository / "deploy/image").glob("*.txt")}
    for text in lists.values():
        for entry in re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in entry, entry
    found = pinned(lists["requirements"])
    for line in importlib.metadata.requires("stateward") or []:
        requirement = Requirement(line)
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in EXTRAS):
            assert found[requirement.name] in requirement.specifier, requirement
    assert "hatchling" in pinned(lists["build-requirements"])


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_service_adds_is_pinned(repository: Path, service: str) -> None:
    """With all that its packages need, in versions that they and the image allow. What the image has is not repeated,
    and what two services have is the same."""
    lists = {path.stem: pinned(path.read_text()) for path in (repository / "deploy/image").glob("*requirements.txt")}
    base, added = lists["requirements"], lists[f"{service}-requirements"]
    assert not base.keys() & added.keys()
    for other in SERVICES:
        more = lists[f"{other}-requirements"]
        assert {name: more[name] for name in more.keys() & added.keys()} == {
            name: added[name] for name in more.keys() & added.keys()
        }
    needed, seen = [Requirement(f"stateward[{service}]")], set[str]()
    while needed:
        asked = needed.pop()
        for line in importlib.metadata.requires(asked.name) or []:
            each = Requirement(line)
            extras = asked.extras or {""}
            if not any(each.marker is None or each.marker.evaluate({"extra": extra}) for extra in extras):
                continue
            name = canonicalize_name(each.name)
            version = (base | added)[name]
            assert version in each.specifier, f"{asked.name} needs {each}"
            if name not in seen and name in added:
                seen.add(name)
                needed.append(each)
    assert seen == {name for name in added if not is_elsewhere(repository, service, name)}


def is_elsewhere(repository: Path, service: str, name: str) -> bool:
    """Whether a package is for other systems only."""
    text = (repository / f"deploy/image/{service}-requirements.txt").read_text()
    (line,) = re.findall(rf"^{name}==[^\\\n]*", text, re.MULTILINE)
    marker = Requirement(line.strip()).marker
    return marker is not None and not marker.evaluate()


@pytest.mark.parametrize(("services", "code"), [("", 0), ("aws", 0), ("vault", 0), ("aws vault", 0), ("aws gcp", 1)])
def test_services_are_asked_for(repository: Path, tmp_path: Path, services: str, code: int) -> None:
    """Each service that the build is told adds its list, by its hashes, and the list of its parts; an unknown one ends
    the build."""
    text = (repository / "Dockerfile").read_text()
    (step,) = re.findall(r"^RUN (for service.*?done)$", text, re.MULTILINE | re.DOTALL)
    pip, root = tmp_path / "pip", tmp_path / "root"
    pip.write_text('#!/bin/sh\necho "$@" >>"${0%/*}/said"\nfor last; do :; done\ntest -f "$last"\n')
    pip.chmod(0o700)
    for old, new in {"/builder/bin/pip": pip, "/requirements": repository / "deploy/image", "/opt": root}.items():
        step = re.sub(rf"(?<![\w/}}]){old}(?=[/ ])", str(new), step)
    done = subprocess.run(["sh", "-c", step], env={**os.environ, "SERVICES": services}, check=False)
    assert done.returncode == code
    said = (tmp_path / "said").read_text().splitlines() if services else []
    assert [Path(line.split()[-1]).name for line in said] == [f"{each}-requirements.txt" for each in services.split()]
    assert all("--require-hashes" in line and "--no-deps" in line for line in said)
    found = sorted(path.name for path in root.rglob("*.json"))
    assert found == [f"{each}.cdx.json" for each in services.split() if each in SERVICES]


def test_the_dockerfile_keeps_the_rules(repository: Path) -> None:
    """A base with a version, two stages, a number for the user, signals that arrive, a health check; and hadolint."""
    text = (repository / "Dockerfile").read_text()
    assert BASE.search(text)
    assert len(re.findall(r"^FROM \$\{BASE\}", text, re.MULTILINE)) == 2
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER \d+:\d+$", final, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .* CMD \["stateward-sidecar", "--health", "liveness"\]$', final, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["stateward-sidecar"\]$', final, re.MULTILINE)
    assert "pip" not in final
    assert "--require-hashes" in text
    if program := shutil.which("hadolint"):
        done = subprocess.run([program, repository / "Dockerfile"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_base_is_pinned_by_its_digest(repository: Path, tmp_path: Path) -> None:
    """`make image-pin` writes what the registry says into the Dockerfile, over an older digest, too; or nothing."""
    shutil.copy(repository / "Dockerfile", tmp_path)
    docker = tmp_path / "docker"
    docker.touch(mode=0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def pin(digest: str) -> str:
        docker.write_text(
            "#!/bin/sh\n[ \"$*\" = 'buildx imagetools inspect python:3.13-slim' ] || exit 1\n"
            f"echo 'Name: x'; echo 'Digest:    {digest}'; echo '  Digest: other'\n"
        )
        command = ["make", "--file", str(repository / "Makefile"), "image-pin"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert (done.returncode == 0) == digest.startswith("sha256:")
        (found,) = BASE.findall((tmp_path / "Dockerfile").read_text())
        return found

    for digit in "ab":
        assert pin(f"sha256:{digit * 64}") == f"@sha256:{digit * 64}"
    assert pin("error") == f"@sha256:{'b' * 64}"


class Engine:
    """buildah with a store of its own."""

    def __init__(self, place: Path) -> None:
        self._options = ["--root", str(place / "root"), "--runroot", str(place / "run"), "--storage-driver", "vfs"]

    def __call__(self, command: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        line = ["buildah", *self._options, command, *map(str, arguments)]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture(scope="module", params=ADDED_BYTES_MAX)
def services(request: pytest.FixtureRequest) -> str:
    """The services for keys whose packages the image gets."""
    return str(request.param)


@pytest.fixture(scope="module")
def root(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, services: str
) -> Iterator[tuple[Path, Path, dict[str, object]]]:
    """The root of the built image, that of its base, and the image's configuration."""
    for tool in ("buildah", "mmdebstrap", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    place = tmp_path_factory.mktemp("image")
    base = place / "base.tar"
    made = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={PACKAGES}", "trixie", str(base)]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Debian's packages cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    engine = Engine(place)
    container = engine("from", "scratch")
    engine("add", container, base, "/")
    engine("commit", "--rm", container, "localhost/base")
    certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"
    engine("bud", "--format", "docker", "--build-arg", "BASE=localhost/base", "--build-arg", f"SERVICES={services}",
           "--volume", certificates, "--tag", "localhost/stateward", ".", cwd=repository)  # fmt: skip
    config = json.loads(engine("inspect", "--type", "image", "localhost/stateward"))["Docker"]["config"]
    containers = [engine("from", name) for name in ("localhost/base", "localhost/stateward")]
    below, whole = (Path(engine("mount", name)) for name in containers)
    yield whole, below, config
    for name in containers:
        engine("rm", name)


def size_of(path: Path) -> int:
    return int(subprocess.run(["du", "-sb", path], capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_is_in_it(root: tuple[Path, Path, dict[str, object]], services: str) -> None:
    """Small, with the daemon and its packages alone: no source, no pip, no tests."""
    whole, below, config = root
    added = size_of(whole) - size_of(below)
    packages = sorted((size_of(path), path.name) for path in whole.glob(f"{SITE}/*"))
    print(f"\nabove the base {added / 1e6:.0f} MB, the base of Debian's packages {size_of(below) / 1e6:.0f} MB")
    print("\n".join(f"{size / 1e6:6.1f} MB  {name}" for size, name in packages[::-1][:10]))
    assert added < ADDED_BYTES_MAX[services]
    assert not (whole / "source").exists()
    assert not list(whole.glob(f"{SITE}/pip"))
    assert config["User"] == "65532:65532"
    assert config["Healthcheck"]["Test"] == ["CMD", "stateward-sidecar", "--health", "liveness"]  # type: ignore[index]
    bills = [json.loads(path.read_text()) for path in (whole / "opt/stateward/share").glob("*.cdx.json")]
    assert len(bills) == 1 + len(services.split())
    listed = {part["name"] for bill in bills for part in bill["components"]}
    found = {each.metadata["Name"] for each in importlib.metadata.distributions(path=map(str, whole.glob(SITE)))}
    assert {canonicalize_name(name) for name in found} == {*listed, "stateward"}


def is_hidden(pid: int) -> bool:
    """Whether another program of the image's user cannot read the daemon's memory, nor a core of it."""
    user = ["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"]

    def show(name: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*user, "cat", f"/proc/{pid}/{name}"], capture_output=True, check=False)

    shown = {name: show(name) for name in SHOWN}
    limits = shown["limits"].stdout.decode()
    has_no_core = re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE) is not None
    return has_no_core and b"Umask:\t0077" in shown["status"].stdout and shown["environ"].returncode != 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_it_runs_without_rights(
    root: tuple[Path, Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As user 65532 on a read-only root: the health check succeeds, a save outlives SIGKILL, SIGTERM ends it well."""
    whole, _, config = root
    monkeypatch.setenv("STATEWARD_SOCKET_OWNER", "65532")
    # Not below tmp_path, whose parents are closed to other users; and the path of a socket is short.
    volumes = [Path(f"/tmp/sw-image-{os.getpid()}-{name}") for name in ("data", "run")]
    environment = ["env", "-i", *map(str, config["Env"])]  # type: ignore[call-overload]
    shell = ["unshare", "--mount", "--propagation", "private", "sh", "-c", RUN, "sh", whole, *volumes, *environment]
    try:
        for volume in volumes:
            volume.mkdir()
            os.chown(volume, 65532, 65532)
        for ending in (signal.SIGKILL, signal.SIGTERM):
            with (tmp_path / "log").open("ab") as log:
                daemon = subprocess.Popen([*map(str, shell), "stateward-sidecar"], stdout=log, stderr=log)
                try:
                    check = [*map(str, shell), *config["Healthcheck"]["Test"][1:]]  # type: ignore[index]
                    end = time.monotonic() + 60
                    while subprocess.run(check, capture_output=True, check=False).returncode:
                        assert daemon.poll() is None, (tmp_path / "log").read_text()
                        assert time.monotonic() < end, (tmp_path / "log").read_text()
                    with Client(f"unix://{volumes[1]}/stateward.sock") as client:
                        client.thread("t").append("kept", ending.name)
                        kept = list(client.thread("t").hydrate().logs["kept"])
                    assert is_hidden(daemon.pid)
                finally:
                    daemon.send_signal(ending)
                assert daemon.wait(30) == (0 if ending is signal.SIGTERM else -9)
        assert kept == ["SIGKILL", "SIGTERM"]
        refused = subprocess.run([*map(str, shell), "touch", "/opt/x"], capture_output=True, text=True, check=False)
        assert "Read-only file system" in refused.stderr
    finally:
        for volume in volumes:
            shutil.rmtree(volume, ignore_errors=True)
