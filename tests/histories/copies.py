"""Copies that forks make of threads in a history. They share files with their threads, and are pruned.

A copy that was answered, as archived if there is an archive, has the words of its source for ever, on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import grpc
from tests.histories import calls
from tests.histories.machines import Machine
from tests.histories.recorder import Recorder, Words

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions

CALL: dict[str, Any] = {"timeout": 3.0}


@dataclass
class Copies:
    """The copies of one history."""

    recorder: Recorder
    words: Words
    has_archive: bool
    asked: list[str] = field(default_factory=list)
    answered: dict[str, list[str]] = field(default_factory=dict)  # their words

    def make(self, machine: Machine, thread: str, dice: random.Random) -> None:
        """Forks a version that was read just now, or all versions up to it."""
        source = calls.read(machine, self.words, thread, 0, CALL["timeout"])
        if source["outcome"] != "ok" or not source["version"]:
            return
        name, level = f"copy-{len(self.asked)}", DURABILITY_ARCHIVED if self.has_archive else DURABILITY_COMMITTED
        request = ForkThreadRequest(thread=thread, new_thread=name, options=WriteOptions(durability=level))
        request.all_versions = dice.random() < 0.5
        if not request.all_versions:
            request.version.version, request.version.digest = source["version"], bytes.fromhex(source["digest"])
        self.asked.append(name)
        self.recorder.event("copy", machine=machine.name, thread=thread, name=name)
        try:
            machine.wire.threads.ForkThread(request, **CALL)
        except grpc.RpcError:
            return
        found = calls.read(machine, self.words, name, 0, CALL["timeout"])
        if found["outcome"] == "ok":
            self.answered[name] = found["log"]
            if not request.all_versions and found["log"] != source["log"]:
                self.find(machine, name, f"is not what version {source['version']} of {thread} was")

    def prune(self, machine: Machine, dice: random.Random) -> None:
        """Prunes all but the newest version of one."""
        if self.answered:
            name = dice.choice(list(self.answered))
            self.recorder.event("prune copy", machine=machine.name, name=name)
            try:
                machine.wire.threads.PruneThread(PruneThreadRequest(thread=name, keep_latest_per_branch=1), **CALL)
            except grpc.RpcError:
                return

    def look(self, machine: Machine, timeout_s: float) -> None:
        """Reads all of them. All is well, so each can be read."""
        for name, log in self.answered.items():
            found = calls.read(machine, self.words, name, 0, timeout_s, is_patient=True)
            if found["outcome"] != "ok":
                self.find(machine, name, f"cannot be read: {found['outcome']} {found.get('reason', '')}")
            elif found["log"] != log:
                self.find(machine, name, f"has {len(found['log'])} words, not the {len(log)} that it had")

    def find(self, machine: Machine, name: str, text: str) -> None:
        """Something is wrong."""
        self.recorder.write("finding", machine=machine.name, thread=name, text=f"copy {name} {text}")
