"""The danger: the files for Compose and for systemd do not start, or start a daemon that agents cannot reach."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import programs
from tests.processes import running

from stateward import Client
from stateward_sidecar.settings import NAMES, Settings, load_settings

UNIT = "deploy/systemd/stateward.service"


@pytest.fixture(scope="module")
def unit(repository: Path) -> dict[str, list[str]]:
    """The values of each name of the unit."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (repository / UNIT).read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


@pytest.fixture(scope="module")
def services(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((repository / "deploy/compose/compose.yaml").read_text())["services"]
    return found


def settings_of(given: dict[str, str]) -> Settings:
    """The daemon's settings with these variables, all of which must be settings."""
    assert {name.removeprefix("STATEWARD_").lower() for name in given} <= set(NAMES)
    return load_settings([], given)[0]


def environment_of(unit: dict[str, list[str]]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in unit["Environment"])


def test_systemd_takes_the_unit(repository: Path, tmp_path: Path) -> None:
    """The check of systemd itself has nothing to say, and finds a misspelt name."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze; Debian's package systemd has it")
    text = (repository / UNIT).read_text().replace("/opt/stateward/bin/stateward-sidecar", "/bin/true")
    path = tmp_path / "stateward.service"
    for written, is_wrong in ((text, False), (text.replace("RestartSec", "RestartSecs"), True)):
        path.write_text(written)
        done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if "stateward" in line]
        assert bool(ours) == is_wrong, done.stderr


def test_the_unit_has_few_rights(repository: Path) -> None:
    """The unit is rated by systemd as exposed by at most 1.9 of 10."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze; Debian's package systemd has it")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=19", str(repository / UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze looks at no files")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_daemon_takes_the_settings_of_the_unit(unit: dict[str, list[str]]) -> None:
    """Each variable is a setting, its paths are in the unit's own directories, and it stops before systemd kills it."""
    settings = settings_of(environment_of(unit))
    assert str(settings.data_dir).startswith(f"/var/lib/{unit['StateDirectory'][0]}/")
    assert environment_of(unit)["STATEWARD_LISTEN"] == f"unix:///run/{unit['RuntimeDirectory'][0]}/stateward.sock"
    assert settings.grace_s < int(unit["TimeoutStopSec"][0])
    credential = unit["LoadCredential"][0].partition(":")[0]
    assert environment_of(unit)["STATEWARD_KEY_FILE"] == f"%d/{credential}"
    assert int(unit["RuntimeDirectoryMode"][0], 8) & 0o070 == 0o050  # the group reaches the socket


def test_the_unit_runs(unit: dict[str, list[str]], tmp_path: Path) -> None:
    """What the unit starts answers an agent on its socket, and ends well on SIGTERM; directories are elsewhere."""
    places = {"/var/lib": tmp_path / "lib", "/run": tmp_path / "run", "%d": tmp_path / "credentials"}
    for place in places.values():
        (place / "stateward").mkdir(parents=True)
    (places["%d"] / "key").write_text("5" * 64)
    given = {name: re.sub(r"(/var/lib|/run|%d)(?=/)", lambda found: str(places[found[1]]), value)
             for name, value in environment_of(unit).items()}  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STATEWARD_")}
    (command,) = unit["ExecStart"]
    assert Path(command).name == "stateward-sidecar"
    started = [sys.executable, "-m", "stateward_sidecar", *command.split()[1:]]
    with running(started, env=inherited | given, stderr=subprocess.DEVNULL) as daemon:
        socket = Path(given["STATEWARD_LISTEN"].removeprefix("unix://"))
        for _ in range(600):
            if socket.exists():
                break
            time.sleep(0.1)
        with Client(given["STATEWARD_LISTEN"]) as client:
            client.thread("work").append("done", 1)
            assert client.thread("work").hydrate().logs["done"] == [1]
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_compose_takes_the_file(repository: Path) -> None:
    """The code of Docker Compose reads the file, and refuses a misspelt name."""
    text = (repository / "deploy/compose/compose.yaml").read_text()
    project = programs.compose(text)
    assert project["services"]["agent"]["depends_on"]["stateward"]["condition"] == "service_healthy"
    with pytest.raises(AssertionError, match="stop_grace_periods"):
        programs.compose(text.replace("stop_grace_period", "stop_grace_periods"))


def test_the_services_share_the_directory_of_the_sockets(services: dict[str, Any], repository: Path) -> None:
    """Both mount the directory, the agent is in the socket's group, and the daemon's volumes are the image's."""
    image = (repository / "Dockerfile").read_text()
    own, agent = services["stateward"], services["agent"]
    paths = dict(volume.split(":")[:2] for volume in own["volumes"] if isinstance(volume, str))
    (volumes,) = re.findall(r"^VOLUME \[(.*)\]$", image, re.MULTILINE)
    assert sorted(paths.values()) == sorted(re.findall(r'"(.*?)"', volumes))
    assert f"socket:{paths['socket']}" in agent["volumes"]
    assert agent["environment"]["STATEWARD_TARGET"] == f"unix://{paths['socket']}/stateward.sock"
    [(user, group)] = re.findall(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert agent["environment"]["STATEWARD_SOCKET_OWNER"] == user
    assert agent["group_add"] == [group]
    assert own["read_only"]
    assert own["cap_drop"] == ["ALL"]


def test_the_daemon_takes_the_settings_of_compose(services: dict[str, Any]) -> None:
    """Each variable is a setting, the key is where it is mounted, and the daemon stops before Compose kills it."""
    own = services["stateward"]
    given = {name: value or "s3://b/a" for name, value in own["environment"].items() if name.startswith("STATEWARD_")}
    settings = settings_of(given)
    assert settings.grace_s < int(own["stop_grace_period"].removesuffix("s"))
    (key,) = [volume for volume in own["volumes"] if isinstance(volume, dict)]
    assert key["target"] == str(settings.key.path)
    assert key["read_only"]
    assert not key["bind"]["create_host_path"]
