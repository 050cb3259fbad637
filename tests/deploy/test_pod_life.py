"""The danger: a pod that begins, ends, freezes or dies in another order than was thought, and takes a save with it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warmcommand
from tests.deploy.manifests import pod, render, sidecar
from tests.processes import running

# An agent that counts, prints each number when it is answered, and on SIGTERM saves once more before it ends.
AGENT = """
import itertools, os, signal, sys
from stateward import Client
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
with Client() as client:
    thread = client.thread("work")
    start = len(thread.hydrate().logs["done"])
    for number in itertools.count(start):
        is_last = bool(ending) or number - start + 1 == int(sys.argv[1])
        thread.append("done", number)
        print(number, flush=True)
        if is_last:
            break
"""


class Pod:
    """What the kubelet does with a pod of the manifests, on directories in place of volumes."""

    def __init__(self, objects: list[dict[str, Any]], image: dict[str, str], data: Path, bucket: Path | None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
        self.spec, self.container = pod(objects), sidecar(objects)
        self._places: dict[str, Path] = {}
        for mount in self.container["volumeMounts"]:
            self._places[mount["mountPath"]] = self.root / mount["name"]
        self._places["/var/lib/stateward"] = data
        for place in self._places.values():
            place.mkdir(parents=True, exist_ok=True)
        environment = image | {entry["name"]: entry["value"] for entry in self.container["env"]}
        agent = {entry["name"]: entry["value"] for entry in self.spec["containers"][0]["env"]}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("STATEWARD_", "XDG_"))}
        inherited["PATH"] = f"{Path(sys.executable).parent}:{inherited['PATH']}"
        inherited["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._environment = inherited | {name: self._inside(value) for name, value in environment.items()}
        if bucket is not None:
            self._environment["STATEWARD_ARCHIVE"] = bucket.as_uri()
        self.begin: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
        self._agents = inherited | {name: self._inside(value) for name, value in agent.items()}
        self.daemon: subprocess.Popen[bytes] | None = None

    def _inside(self, value: str) -> str:
        paths = "|".join(self._places)
        return re.sub(rf"(^|://)({paths})(?=/|$)", lambda found: f"{found[1]}{self._places[found[2]]}", value)

    def put_key(self, key: str) -> None:
        (self._places["/etc/stateward"] / "key").write_text(key)

    def begin_warm(self) -> None:
        """From now on the installed program begins as a fork (tests/warmcommand.py), and so do agents."""

        def begin(command: list[str], **options: Any) -> subprocess.Popen[Any]:
            module = [sys.executable, "-m", "stateward_sidecar"] if command[0] == "stateward-sidecar" else [command[0]]
            return warmcommand.Popen([*module, *command[1:]], **options)

        self.begin = begin

    def probe(self, name: str) -> bool:
        """Runs a probe's exact command, as long as it may take."""
        probe = self.container[name]
        patience_s = probe["timeoutSeconds"] * 3  # this machine is busier than a node
        with (
            (self.root / "probe.log").open("ab") as log,
            running(probe["exec"]["command"], begin=self.begin, env=self._environment, stderr=log) as process,
        ):
            try:
                return process.wait(patience_s) == 0
            except subprocess.TimeoutExpired:
                return False

    def start(self) -> None:
        """The sidecar, until its startup probe succeeds."""
        command = ["stateward-sidecar", *self.container.get("args", [])]
        with (self.root / "daemon.log").open("ab") as log:
            self.daemon = self.begin(command, env=self._environment, cwd="/", stdout=log, stderr=log)
        for _ in range(self.container["startupProbe"]["failureThreshold"]):
            if self.probe("startupProbe"):
                return
            assert self.daemon.poll() is None, (self.root / "daemon.log").read_text()
            time.sleep(self.container["startupProbe"]["periodSeconds"] / 5)
        raise AssertionError((self.root / "daemon.log").read_text())

    def agent(self, count: int = 0) -> subprocess.Popen[str]:
        """The agent's container; after ``count`` saves it ends by itself."""
        command = [sys.executable, "-c", AGENT, str(count)]
        return self.begin(command, env=self._agents, cwd="/", stdout=subprocess.PIPE, text=True)

    def stop(self) -> int:
        """SIGTERM to the sidecar, which may take the rest of the pod's grace period."""
        assert self.daemon is not None
        self.daemon.terminate()
        return self.daemon.wait(self.spec["terminationGracePeriodSeconds"])

    def kill(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        shutil.rmtree(self.root, ignore_errors=True)


class Node:
    """Pods of one workload, one after the other, which share the Secret and the bucket."""

    def __init__(self, repository: Path, workload: str, place: Path) -> None:
        self.objects = render(repository / "deploy/kubernetes" / workload)
        self.has_archive = "envFrom" in sidecar(self.objects)
        self._image = dict(re.findall(r"\b(STATEWARD_\w+|HOME)=(\S+)", (repository / "Dockerfile").read_text()))
        self.begins_warm = False
        self._place, self._key, self.pods = place, secrets.token_hex(32), list[Pod]()

    def pod(self) -> Pod:
        """A new pod: on the same volume, or on an empty one if the data lie in an emptyDir."""
        data = self._place / (f"data-{len(self.pods)}" if self.has_archive else "data")
        made = Pod(self.objects, self._image, data, self._place / "bucket" if self.has_archive else None)
        made.put_key(self._key)
        if self.begins_warm:
            made.begin_warm()
        self.pods.append(made)
        return made


@pytest.fixture(params=["statefulset", "job"])
def node(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Iterator[Node]:
    made = Node(repository, request.param, tmp_path)
    yield made
    for each in made.pods:
        each.kill()


def read_numbers(agent: subprocess.Popen[str], count: int) -> list[int]:
    assert agent.stdout is not None
    return [int(agent.stdout.readline()) for _ in range(count)]


def read_rest(agent: subprocess.Popen[str]) -> list[int]:
    """What the agent still says, until it has ended."""
    assert agent.stdout is not None
    with agent.stdout:
        said = [int(line) for line in agent.stdout]
    agent.wait(60)
    return said


@pytest.mark.slow
def test_a_whole_life(node: Node) -> None:
    """Sidecar, probes, agent. SIGTERM to the agent, which saves once more, then to the sidecar. A new pod has all."""
    first = node.pod()
    assert not first.probe("startupProbe")  # nothing runs yet, and the probe says so
    first.start()
    assert first.probe("readinessProbe")
    agent = first.agent()
    answered = read_numbers(agent, 20)
    agent.send_signal(signal.SIGTERM)
    answered += read_rest(agent)
    assert agent.returncode == 0
    assert first.probe("readinessProbe")  # the sidecar serves until the agent has ended
    begun = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - begun < float(first._environment["STATEWARD_GRACE"]) + 5
    assert not first.probe("readinessProbe")
    second = node.pod()
    second.start()
    agent = second.agent(1)
    assert read_rest(agent) == [len(answered)]
    assert agent.returncode == 0
    assert answered == list(range(len(answered)))
    assert second.stop() == 0


@pytest.mark.slow
def test_a_node_that_dies(node: Node) -> None:
    """After SIGKILL to everything a volume has every answered save, and an archive all but those of its last moment."""
    node.begins_warm = True  # the other test begins what is installed
    first = node.pod()
    first.start()
    agent = first.agent()
    answered = read_numbers(agent, 30)
    if node.has_archive:
        time.sleep(3)  # an interval of the archive, and some
    assert first.daemon is not None
    first.daemon.kill()
    agent.kill()
    first.daemon.wait()
    read_rest(agent)
    second = node.pod()
    second.start()
    agent = second.agent(1)
    assert read_rest(agent)[0] >= len(answered)
    assert agent.returncode == 0
    assert second.stop() == 0


@pytest.mark.slow
def test_a_sidecar_that_is_killed_or_frozen(node: Node) -> None:
    """The sidecar is frozen, then killed and started again by the kubelet: the agent waits, and goes on by itself."""
    node.begins_warm = True
    only = node.pod()
    only.start()
    agent = only.agent()
    answered = read_numbers(agent, 10)
    assert only.daemon is not None
    only.daemon.send_signal(signal.SIGSTOP)
    time.sleep(2)
    only.daemon.send_signal(signal.SIGCONT)
    answered += read_numbers(agent, 100)
    only.daemon.kill()
    only.daemon.wait()
    only.start()
    answered += read_numbers(agent, 100)
    agent.send_signal(signal.SIGTERM)
    answered += read_rest(agent)
    assert answered == list(range(len(answered)))  # nothing lost, nothing twice
    assert only.stop() == 0
