"""The campaign: agents at work, and everything that goes wrong around them.

First comes the storm: the daemon and the agents are killed at random. Then the calm, in which the daemon lives on, the
disk still fills up, agents still die, and the daemon's memory is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.soak.check import ALL, check_all
from tests.soak.disasters import Disasters
from tests.soak.memory import GROWTH_BYTES_MAX
from tests.soak.stage import CampaignStage

CHECK_EVERY_S = 150.0
CALM_SHARE = 0.4
PAUSE_S = (0.2, 3.0)  # between two disasters
STATES_EACH = 4  # hydrated of each thread by the checks on the way; the last checks take all
AGENT_ENDS_S = 60.0
WATCH_QUIET_S, WATCH_ENDS_S = 2.0, 30.0
LOG_CHARACTERS = 1500
# Lines of the daemon's log that are errors for whoever runs it, and here no finding: a full disk is meant.
HARMLESS = (('"DISK_FULL"',), ('"not ready"', '"cause": "disk"'))


class Campaign:
    """One run of it."""

    def __init__(self, stage: CampaignStage) -> None:
        self.stage, self.disasters = stage, Disasters(stage)
        self._stderr_seen = 0

    def run(self, minutes: float) -> None:
        """All of it. What was found is in the stage."""
        begun = checked = time.monotonic()
        end = begun + minutes * 60
        calm = end - minutes * 60 * CALM_SHARE
        what = self.disasters
        storm: dict[Callable[[], None], int] = {
            what.kill_daemon: 30, what.kill_in_start: 8, what.stop_daemon: 8, what.kill_agents: 14,
            what.use_wrong_key: 4, what.fill_disk: 5, what.fill_disk_and_kill: 5,
        }  # fmt: skip
        gentle: dict[Callable[[], None], int] = {what.kill_agents: 4, what.fill_disk: 1, what.do_nothing: 5}
        dice = self.stage.dice
        try:
            self.stage.start()
            while (now := time.monotonic()) < end:
                self.stage.wait(dice.uniform(*PAUSE_S))
                events = storm if now < calm else gentle
                dice.choices(list(events), list(events.values()))[0]()
                if now - checked > CHECK_EVERY_S:
                    self._check_on_the_way()
                    checked = time.monotonic()
            self._finish()
        finally:
            self.stage.close()

    def _check_on_the_way(self) -> None:
        self.stage.freeze()
        try:
            self._compare(STATES_EACH)
        finally:
            self.stage.thaw()

    def _compare(self, states_each: int) -> None:
        """All ledgers with the store."""
        stage = self.stage
        result = check_all(stage.daemon, stage.books(), stage.dice, states_each=states_each)
        stage.counts["checks"] += 1
        stage.counts["versions compared"] += result.versions
        stage.counts["states compared"] += result.states
        stage.counts["records compared"] += result.records
        stage.counts["results compared"] += result.effects
        for finding in result.findings:
            stage.find(finding)
        self._check_log()

    def _check_log(self) -> None:
        new = self.stage.daemon.stderr[self._stderr_seen :]
        self._stderr_seen += len(new)
        if "Traceback" in new:
            at = max(new.index("Traceback") - LOG_CHARACTERS // 5, 0)
            self.stage.find(f"a traceback in the daemon's log: {new[at : at + LOG_CHARACTERS]}")
        errors = [
            line
            for line in new.splitlines()
            if '"level": "error"' in line and not any(all(word in line for word in words) for words in HARMLESS)
        ]
        if errors:
            self.stage.find(f"{len(errors)} errors in the daemon's log, such as {errors[0]}")

    def _finish(self) -> None:
        """Everybody comes to an end; everything is checked, as it is and after one more kill."""
        stage = self.stage
        stage.traveller.stop()
        for agent in stage.agents:
            agent.tell_to_end()
        for agent in stage.agents:
            if agent.finish(AGENT_ENDS_S):
                stage.find(f"agent {agent.number} did not end well: {agent.stderr.read_text()[-500:]}")
        stage.tell()
        self._judge_memory()
        self._compare(ALL)
        self._judge_watchers()
        stage.daemon.kill()
        stage.counts["kills"] += 1
        self.disasters.start_daemon()
        self._compare(ALL)
        stage.counts["travels"], stage.counts["forks of travellers"] = stage.traveller.compared, stage.traveller.forked

    def _judge_memory(self) -> None:
        growth, age_s = self.stage.memory.growth()
        self.stage.counts["memory at the end, MiB"] = self.stage.memory.last_bytes >> 20
        self.stage.counts["grown since it settled, MiB"] = growth >> 20
        if growth > GROWTH_BYTES_MAX:
            self.stage.find(f"the daemon grew by {growth >> 20} MiB after it had settled, in {age_s:.0f} s")

    def _judge_watchers(self) -> None:
        watchers, end = self.stage.watchers, time.monotonic() + WATCH_ENDS_S
        while any(time.monotonic() - each.last_event < WATCH_QUIET_S for each in watchers) and time.monotonic() < end:
            time.sleep(0.2)
        for watcher in watchers:
            watcher.stop()
            self.stage.counts["events"] += watcher.events
            self.stage.counts["events a deletion overtook"] += watcher.overtaken
            self.stage.counts["versions seen by watchers"] += watcher.compare(self.stage.books())
