"""The danger: parts that know each other in circles, and a client that drags the daemon in."""

import subprocess
import sys
import tomllib
from pathlib import Path

# Lives above all layers or beside them; everything else in the daemon has its place in the contract.
OUTSIDE = {"__init__"}


def test_imports_point_down(repository: Path) -> None:
    """Every contract in pyproject.toml holds."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    check = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_part_of_the_daemon_has_a_layer(repository: Path) -> None:
    """No module of the daemon escapes the contract by not being named in it."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {part.strip(" ()") for layer in layers for part in layer.replace(":", "|").split("|")}
    sidecar = repository / "sidecar" / "stateward_sidecar"
    found = {path.stem for path in sidecar.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert found - named - OUTSIDE == set()


def test_the_messages_do_not_load_the_client() -> None:
    """The daemon imports the contract without paying for the client library around it."""
    program = "import sys, stateward.v1.state_pb2; print(*(m for m in sys.modules if m.startswith('stateward')))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["stateward", "stateward.v1", "stateward.v1.state_pb2"]
