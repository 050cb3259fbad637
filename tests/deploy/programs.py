"""Programs that Go builds from the folder `apiserver`: the code of the API server, and Helm (`make apiserver`)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

BUILT = Path(__file__).resolve().parents[2] / "build/apiserver"


def program(name: str) -> str:
    """The path of ``apiserver`` or ``helm``. Skips the test on a machine where it was not built."""
    built = BUILT / name
    found = str(built) if built.is_file() else (shutil.which(name) if name == "helm" else None)
    if found is None:
        pytest.skip(f"there is no {name}; `make apiserver` builds it, with Go")
    return found


def check(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict on each object, and after a workload that on its pod: kind, name, errors, warnings, restricted.

    ``restricted`` lists what the Pod Security Standard of that name forbids.
    """
    return _ask("check", yaml.safe_dump_all(list(objects)))


def admit(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each Pod after the mutating policies among the objects: refused, or pod and verdict."""
    return _ask("admit", yaml.safe_dump_all(list(objects)))


def compose(text: str) -> Any:
    """The project of a compose file, as Docker Compose reads it."""
    return _ask("compose", text)


def _ask(command: str, text: str) -> Any:
    asked = [program("apiserver"), command]
    done = subprocess.run(asked, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
