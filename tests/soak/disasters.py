"""What goes wrong around the agents: kills, stops, full disks, wrong keys."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.soak.stage import CampaignStage

START_REFUSED = 1


class Disasters:
    """Each is one method without arguments, after which the daemon runs and there is room."""

    def __init__(self, stage: CampaignStage) -> None:
        self.stage = stage

    def do_nothing(self) -> None:
        """Nothing does."""

    def kill_daemon(self) -> None:
        """At any moment; sometimes it stays away for a while."""
        self.stage.daemon.kill()
        self.stage.counts["kills"] += 1
        if self.stage.dice.random() < 0.2:
            self.stage.wait(self.stage.dice.uniform(0, 2))
        self.start_daemon()

    def kill_in_start(self) -> None:
        """And once more while it starts."""
        self.stage.daemon.kill()
        killer = threading.Timer(self.stage.dice.uniform(0.02, 0.7), self.stage.daemon.kill)
        killer.start()
        with suppress(RuntimeError, AttributeError, AssertionError):  # it was not ready
            self.stage.daemon.start()
        killer.join()
        self.stage.daemon.kill()
        self.stage.counts["kills"] += 2
        self.start_daemon()

    def stop_daemon(self) -> None:
        """SIGTERM: what was taken is finished, exit code 0."""
        code = self.stage.daemon.stop()
        self.stage.counts["stops"] += 1
        if code != 0:
            self.stage.find(f"SIGTERM ended the daemon with {code}")
        self.start_daemon()

    def kill_agents(self) -> None:
        """Some of them; each is started again."""
        agents, dice = self.stage.agents, self.stage.dice
        for agent in dice.sample(agents, dice.randint(1, max(len(agents) // 3, 1))):
            agent.kill()
            self.stage.counts["kills of agents"] += 1
            agent.start()

    def use_wrong_key(self) -> None:
        """A daemon with another key must refuse, and leave the data as they are."""
        (self.stage.daemon.kill if self.stage.dice.random() < 0.5 else self.stage.daemon.stop)()
        key, before = self.stage.daemon.key_file.with_name("another.key"), self._fingerprint()
        key.write_text(secrets.token_hex(32))
        command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(self.stage.daemon.data_dir)]
        command += ["--listen", self.stage.daemon.target, "--key-file", str(key)]
        refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=_environment())
        self.stage.counts["wrong keys"] += 1
        if refused.returncode != START_REFUSED or "KEY_UNAVAILABLE" not in refused.stderr:
            self.stage.find(f"with another key the daemon ended with {refused.returncode}: {refused.stderr[-500:]}")
        if "Traceback" in refused.stderr or len(refused.stderr.splitlines()) > 2:
            self.stage.find(f"a wrong key is refused with many words: {refused.stderr}")
        if self._fingerprint() != before:
            self.stage.find("a start with another key changed the data")
        self.start_daemon()

    def fill_disk(self) -> None:
        """For some seconds nothing more fits; agents are refused, and go on when there is room."""
        self._fill(during=lambda: None)

    def fill_disk_and_kill(self) -> None:
        """The same, and the daemon is killed and started while the disk is full."""

        def restart() -> None:
            self.stage.daemon.kill()
            self.stage.counts["kills"] += 1
            self.start_daemon()

        self._fill(during=restart)

    def _fill(self, during: Callable[[], None]) -> None:
        self.stage.disk.fill(self.stage.daemon, self.stage.dice.choice((0, 20_000, 200_000, 5_000_000)))
        self.stage.counts["full phases"] += 1
        try:
            self.stage.wait(self.stage.dice.uniform(0.5, 3))
            during()
            self.stage.wait(self.stage.dice.uniform(0.5, 3))
        finally:
            self.stage.disk.free(self.stage.daemon)

    def start_daemon(self) -> None:
        """It must start, full disk or not."""
        try:
            self.stage.daemon.start()
        except RuntimeError as error:
            self.stage.find(f"the daemon does not start: {str(error)[-600:]}")
            self.stage.disk.free(self.stage.daemon)
            self.stage.daemon.kill()
            self.stage.daemon.start()

    def _fingerprint(self) -> dict[str, str]:
        files = [self.stage.daemon.data_dir / name for name in ("data.mdb", "keys")]
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in files}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
