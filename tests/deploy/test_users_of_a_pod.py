"""The danger: the agent runs as another user than the daemon, and may not open the socket, or anybody may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.processes import running

DAEMON, AGENT = 65532, 1000
# The programs of this checkout may lie where only root can read.
READ = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
SAVE = """
import sys
from stateward import Client
with Client(sys.argv[1]) as client:
    client.thread("work").append("done", 1)
    print(client.server_info().wire)
"""


def as_user(user: int, groups: list[int], *command: str) -> list[str]:
    """A command of a container: its user and main group, and in addition the pod's groups."""
    more = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", str(user), "--regid", str(user), *more, *READ, sys.executable, *command]


@pytest.fixture
def pod() -> Iterator[Path]:
    """The place of the volumes of a pod. Skips the test without root."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root runs programs as other users, with setpriv")
    place = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def make_volumes(place: Path, group: int) -> None:
    """What the kubelet does for fsGroup: volumes have the group and its bit, and the Secret's file is for the group."""
    for name in ("data", "socket", "key"):
        (place / name).mkdir()
        os.chown(place / name, 0, group)
        (place / name).chmod(0o2777)
    key = place / "key/key"
    key.write_text("5" * 64)
    os.chown(key, 0, group)
    key.chmod(0o440)


def group_of_the_component(repository: Path) -> int:
    text = (repository / "deploy/kubernetes/sidecar/sidecar.yaml").read_text()
    return int(yaml.safe_load(text)["spec"]["template"]["spec"]["securityContext"]["fsGroup"])


@pytest.mark.parametrize("own", [None, 2000])
def test_the_group_opens_both_sockets(repository: Path, pod: Path, own: int | None) -> None:
    """With the component's fsGroup, or one of the pod's own, an agent of another user speaks frames; others may not."""
    group = own or group_of_the_component(repository)
    make_volumes(pod, group)
    target = f"unix://{pod}/socket/stateward.sock"
    settings = {"STATEWARD_DATA_DIR": f"{pod}/data/data", "STATEWARD_KEY_FILE": f"{pod}/key/key"}
    settings["STATEWARD_LISTEN"] = target
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STATEWARD_", "XDG_"))}
    inherited |= {"HOME": str(pod), "PYTHONDONTWRITEBYTECODE": "1"}
    inherited |= {"STATEWARD_SOCKET_OWNER": str(DAEMON)}
    daemon = as_user(DAEMON, [group], "-m", "stateward_sidecar")
    with running(daemon, env=inherited | settings, cwd="/", stderr=subprocess.DEVNULL):
        for _ in range(600):
            if (pod / "socket/stateward.sock~").exists():
                break
            time.sleep(0.1)
        ask = [
            subprocess.run(as_user(AGENT, groups, "-c", SAVE, target), env=inherited, cwd="/", capture_output=True,
                           text=True, check=False, timeout=120)
            for groups in ([group], [])
        ]  # fmt: skip
    member, stranger = ask
    assert member.stdout == "frames\n", member.stderr
    assert "WrongTarget" in stranger.stderr
