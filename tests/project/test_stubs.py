"""The danger: committed stubs that are not those of the contract, or that an installed runtime refuses."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for file in sorted(root.glob("stateward/**/*_pb2*.py")):
    importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))
import google.protobuf, grpc
print("grpcio", grpc.__version__, "protobuf", google.protobuf.__version__)
"""


def test_stubs_are_fresh(repository: Path) -> None:
    """The committed stubs are exactly what the pinned generator makes of the .proto files."""
    command = [sys.executable, "proto/generate.py", "--check"]
    check = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_stubs_import_with_this_runtime(repository: Path) -> None:
    """Every stub imports with the grpc and protobuf that are installed beside the development tools."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, str(repository / "client")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stubs_import_with_the_newest_runtime(repository: Path, tmp_path: Path) -> None:
    """Every stub imports with the newest grpc and protobuf that the client's bounds allow."""
    # Into a folder, and Python without its own packages: an environment would get its own pip first, at twice the cost.
    place = tmp_path / "packages"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    install = subprocess.run(
        [*command, "--target", place, *client_dependencies()], capture_output=True, text=True, check=False
    )
    if "No matching distribution" in install.stderr or "NewConnectionError" in install.stderr:
        pytest.skip("no package registry can be reached: " + install.stderr.splitlines()[-1])
    assert install.returncode == 0, install.stderr
    answer = subprocess.run(
        [sys.executable, "-S", "-W", "error", "-c", IMPORT_ALL, str(repository / "client")],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(repository / "client"), str(place)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "protobuf 7." in answer.stdout, "the upper bound in pyproject.toml is no longer tried: " + answer.stdout


def client_dependencies() -> list[str]:
    """Returns what the client requires, without extras, as pip takes it."""
    requirements = importlib.metadata.requires("stateward") or []
    return [requirement for requirement in requirements if "extra ==" not in requirement]
