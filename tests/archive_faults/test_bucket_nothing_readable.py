"""The danger: whoever keeps the bucket reads in it, or learns from names what agents work on."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from datetime import timedelta

from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, Durability, ThreadOptions

EVERY_KIND = {"HEAD", "pack", "snap", "index", "image", "blob"}
# Random bytes of each canary, so that it is found by accident in no object.
CANARY_BYTES = 8


class Canaries:
    """Words that occur nowhere else, by what they were given as."""

    def __init__(self) -> None:
        self.made: dict[str, bytes] = {}

    def __call__(self, what: str) -> str:
        word = self.made.setdefault(what, secrets.token_hex(CANARY_BYTES).encode())
        return word.decode()

    def found_in(self, data: bytes) -> list[str]:
        """What the bytes give away, as it is or as it would look encoded."""
        return [what for what, word in self.made.items() if any(form in data for form in _forms(word))]


def _forms(word: bytes) -> Iterator[bytes]:
    yield word
    yield bytes.fromhex(word.decode())
    yield word.hex().encode()
    yield from (base64.b64encode(b"x" * shift + word)[4:-4] for shift in range(3))


def kinds(fleet: Fleet) -> set[str]:
    """Of objects, by how their names end."""
    return {name.rpartition("/")[2].rpartition(".")[2] for name in fleet.objects()}


def fill(fleet: Fleet, client: Client, canary: Canaries) -> None:
    """Says a canary wherever an agent can say something, and makes objects of every kind."""
    thread = client.thread(canary("thread name"))
    state = thread.hydrate()
    state.slots[canary("slot name")] = {canary("key"): [canary("value")]}
    state.slots["picture"] = (canary("blob") * 80_000).encode()
    for number in range(150):
        if number > 40 and "index" in kinds(fleet):  # how soon there is one depends on when snapshots are made
            break
        entry = {"text": canary("entry"), "noise": os.urandom(20_000).hex()}
        state.logs[canary("log name")].append(entry)
        thread.save(
            state, step=number, checkpoint_id=f"{canary('checkpoint id')}-{number}", status="running",
            status_detail=canary("status detail"), labels={canary("label name"): canary("label")},
            metadata={"note": canary("metadata")}, metrics={canary("metric"): number},
            request_id=f"{canary('request id')}-{number}", durability=Durability.ARCHIVED,
            create=ThreadOptions(
                labels={canary("thread label name"): canary("thread label")}, ttl=timedelta(days=3),
                parent_thread=canary("parent thread"), agent=canary("agent"),
            ),
        )  # fmt: skip
    for number in range(140):  # more than fit into HEAD
        thread.tags.set(f"{secrets.token_hex(100)}-{canary('tag')}", 1 + number % 40)
    other = thread.branch(canary("branch"), 7)
    state = other.hydrate()
    state.slots["note"] = canary("value on a branch")
    other.save(state)
    thread.append("messages", {}, durability=Durability.ARCHIVED)


def test_no_word_of_an_agent_is_in_the_bucket(fleet_on_disk: Fleet) -> None:
    """No name, value, label or id occurs in any object or object name, whatever kind of object, nor in a tombstone."""
    canary = Canaries()
    daemon = fleet_on_disk.machine_on(canary("owner id"))
    with daemon.client(namespace=canary("namespace")) as client:
        fill(fleet_on_disk, client, canary)
        eventually(lambda: client.stats().archive.dirty_threads == 0)
        deleted = canary("deleted thread")
        write_steps(client, deleted, 2, archived=True)
        client.thread(deleted).delete()
    objects = fleet_on_disk.objects()
    assert kinds(fleet_on_disk) >= EVERY_KIND
    given_away = {name: canary.found_in(name.encode() + b"\n" + data) for name, data in objects.items()}
    assert {name: found for name, found in given_away.items() if found} == {}
