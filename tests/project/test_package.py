"""The danger: an installed package that lacks a part, or that fails without saying which extra to install."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# Runs the daemon in a process where none of the extra's packages can be imported.
WITHOUT_EXTRA = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"lmdb", "zstandard", "cryptography", "grpc_health", "grpc_reflection"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["stateward-sidecar"]
runpy.run_module("stateward_sidecar", run_name="__main__")
"""


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        ".",
    ]
    subprocess.run(command, cwd=repository, check=True)
    with zipfile.ZipFile(next(folder.glob("stateward-*.whl"))) as archive:
        return archive.namelist()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["stateward", "stateward_sidecar"])
def test_wheel_holds_the_whole_package(repository: Path, wheel: list[str], package: str) -> None:
    """The wheel holds each source file of both packages, typed, with the licence."""
    root = repository / ("client" if package == "stateward" else "sidecar")
    sources = [str(file.relative_to(root)) for file in (root / package).rglob("*.py*") if file.suffix != ".pyc"]
    assert set(sources) - set(wheel) == set()
    assert f"{package}/py.typed" in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


@pytest.mark.slow
def test_wheel_holds_nothing_else(wheel: list[str]) -> None:
    """No test, cache or stray file gets into site-packages."""
    roots = {name.partition("/")[0] for name in wheel}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"stateward", "stateward_sidecar"}
    assert [name for name in wheel if "__pycache__" in name] == []


def test_daemon_without_its_extra_says_what_to_install(repository: Path, tmp_path: Path) -> None:
    """`stateward-sidecar` installed without the extra prints one line with the remedy and exits 1."""
    if not (repository / "sidecar/stateward_sidecar/__main__.py").exists():
        pytest.skip("the daemon has no __main__ yet")
    command = [sys.executable, "-c", WITHOUT_EXTRA]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1, answer.stderr
    assert "'.[sidecar]'" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
