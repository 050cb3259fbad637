"""The danger: a release that cannot be built from its source, or that a Python which it promises cannot run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateward.testing import Daemon, run_daemon

MINORS = (11, 12, 13, 14)
UNPACKED = str(Path(__file__).resolve().parents[2] / "build/python3.{0}/usr/bin/python3.{0}")
CLIENT = {"googleapis-common-protos", "grpcio", "protobuf", "stateward", "typing-extensions"}
SAVE = """
import sys, stateward
with stateward.Client(sys.argv[1]) as client:
    thread = client.thread(sys.argv[2])
    state = thread.hydrate()
    state.slots["python"] = list(sys.version_info[:2])
    thread.save(state)
    assert thread.hydrate().slots["python"] == list(sys.version_info[:2])
"""
INSTALLED = """
import json
from importlib import metadata
print(json.dumps([each.metadata["Name"] for each in metadata.distributions()]))
"""
WHOLE = """
import sys
from stateward.testing import run_daemon
with run_daemon(archive=sys.argv[1]) as daemon:
    with daemon.client() as client:
        client.thread("t").append("log", {"n": 1}, durability="archived")
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert client.thread("t").hydrate().logs["log"][0] == {"n": 1}
    assert daemon.stop() == 0
"""


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source package and the wheel of this tree."""
    place = tmp_path_factory.mktemp("built")
    build(repository, place)
    return place


def build(source: Path, place: Path, *kinds: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *kinds, "-d", str(place)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_the_source_package_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    """From the source package alone comes the wheel of the repository, byte for byte; the tests and pages are in it."""
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    for part in ("tests/conftest.py", "docs/guide.md", "deploy/README.md", "proto/stateward/v1/state.proto"):
        assert (tree / part).exists(), part
    build(tree, tmp_path / "again", "-t", "wheel")
    (wheel,), (again,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    assert contents(again) == contents(wheel)


def find_python(minor: int) -> str | None:
    """A Python of this minor version: this one, one on the path, of pyenv, or what unpack_python.py has unpacked."""
    if sys.version_info[:2] == (3, minor):
        return sys.executable
    found = [shutil.which(f"python3.{minor}")]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found += sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}")))
    found.append(shutil.which(UNPACKED.format(minor)))
    for python in filter(None, found):
        if subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def in_bare_environment(python: str, place: Path, requirement: str) -> Path:
    """A new environment with this and what it needs. Skips the test if no package registry can be reached."""
    # Without a pip of its own, and nothing is compiled that is not imported: both take longer than the installation.
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile", requirement]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "NewConnectionError" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr
    return place / "bin"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Without what this environment adds: settings, and the path of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STATEWARD_", "PYTHON"))}
    return subprocess.run(list(map(str, command)), cwd="/", env=kept, capture_output=True, text=True, check=False)


def check_client(built: Path, python: str, place: Path, daemon: Daemon, thread: str) -> None:
    (wheel,) = built.glob("*.whl")
    commands = in_bare_environment(python, place, str(wheel))
    listed = json.loads(run(commands / "python", "-c", INSTALLED).stdout)
    assert {name.lower().replace("_", "-") for name in listed} <= CLIENT
    done = run(commands / "python", "-W", "error", "-c", SAVE, daemon.target, thread)
    assert done.returncode == 0, done.stderr
    for command, extra in (("stateward", "cli"), ("stateward-sidecar", "sidecar")):
        done = run(commands / command, "--help")
        assert done.returncode == 1
        assert f"'.[{extra}]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)  # it installs packages
def test_the_client_alone(built: Path, daemon: Daemon, tmp_path: Path) -> None:
    """The package without extras brings what the client needs and nothing else, and the client works."""
    check_client(built, sys.executable, tmp_path / "bare", daemon, "alone")


@pytest.mark.soak
@pytest.mark.parametrize("minor", MINORS)
def test_a_promised_python(built: Path, daemon: Daemon, tmp_path: Path, minor: int) -> None:
    """Client, daemon and command install from the wheel in a bare environment, and work; also from the source."""
    python = find_python(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} on this machine")
    check_client(built, python, tmp_path / "client", daemon, f"3.{minor}")
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    for package in (wheel, source):
        commands = in_bare_environment(python, tmp_path / package.suffix, f"{package}[sidecar,cli]")
        done = run(commands / "python", "-W", "error", "-c", WHOLE, (tmp_path / f"bucket{package.suffix}").as_uri())
        assert done.returncode == 0, done.stderr
        assert run(commands / "stateward", "--version").stdout.startswith("stateward ")
        listed = run(commands / "stateward", "--target", daemon.target, "threads", "--json")
        assert f"3.{minor}" in listed.stdout, listed.stderr
