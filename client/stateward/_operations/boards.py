"""Boards without I/O: maps names of an area to slots and logs of the state, and reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stateward._operations.reading import hydrate
from stateward._operations.steps import Operation, ThreadRef
from stateward.arguments import several, text

PRIVATE = "agents/"


@dataclass(frozen=True)
class Area:
    """The names of a board that all agents share (`owner` empty), or those of one agent: below "agents/<owner>/".

    An area prevents that two agents use the same name by mistake. It does not restrict access.
    """

    owner: str = ""

    @classmethod
    def of(cls, agent: str) -> Area:
        """Returns the area of one agent."""
        if not agent:
            raise ValueError('this board was opened without an agent: client.board(name, agent="…") has a private area')
        if "/" in agent:
            raise ValueError(
                f'agent {agent!r}: the name of an agent must not contain "/", which separates it from its own names'
            )
        return cls(agent)

    @property
    def prefix(self) -> str:
        """The prefix of its names in the state."""
        return f"{PRIVATE}{self.owner}/" if self.owner else ""

    def place(self, name: str, what: str = "the name of a slot or a log") -> str:
        """Returns the slot or log of the state for a name, which errors call `what`."""
        text(name, what)
        if not self.owner and name.startswith(PRIVATE):
            raise ValueError(f"{name!r} is in the private area of an agent; that agent uses it through board.private")
        return self.prefix + name

    def places(self, names: Iterable[str], argument: str) -> list[str]:
        """Returns the slots or logs of the state for the names in an argument."""
        return [self.place(name) for name in several(names, argument, "names")]

    def holds(self, place: str) -> bool:
        """Whether a slot or log of the state belongs to this area."""
        return place.startswith(self.prefix) if self.owner else not place.startswith(PRIVATE)

    def watched(self, slots: Iterable[str], logs: Iterable[str]) -> tuple[list[str], list[str]]:
        """Returns the slots and logs of the state to watch. Both empty = all of the shared area."""
        found = self.places(slots, "slots"), self.places(logs, "logs")
        if self.owner and not any(found):
            raise ValueError("a watch of the private area needs the names of slots or logs")
        return found


def read(ref: ThreadRef, area: Area, names: Iterable[str]) -> Operation[dict[str, Any]]:
    """Returns the values of the named slots, read at one version, in this order; without names, of the whole area."""
    chosen = area.places(names, "slots")
    state = yield from hydrate(ref, slots=chosen or None)
    found = [place for place in chosen or sorted(state.slots) if place in state.slots and area.holds(place)]
    return {place.removeprefix(area.prefix): state.slots[place] for place in found}
