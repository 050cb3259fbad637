"""Boards without I/O: where the names of an area lie in the state, and reading them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stateward._operations.reading import hydrate
from stateward._operations.steps import Operation, ThreadRef

PRIVATE = "agents/"


@dataclass(frozen=True)
class Area:
    """The names of a board that all agents share (`owner` empty), or those of one agent: below "agents/<owner>/".

    It keeps names apart, so that two agents never take the same one unawares; it protects nothing from anybody.
    """

    owner: str = ""

    @classmethod
    def of(cls, agent: str) -> Area:
        """The area of one agent."""
        if not agent:
            raise ValueError('this board was opened without an agent: client.board(name, agent="…") has a private area')
        if "/" in agent:
            raise ValueError(f'agent {agent!r}: a "/" would make its names those of another agent')
        return cls(agent)

    @property
    def prefix(self) -> str:
        """What its names begin with."""
        return f"{PRIVATE}{self.owner}/" if self.owner else ""

    def place(self, name: str) -> str:
        """The slot or log of the state that a name stands for."""
        if not self.owner and name.startswith(PRIVATE):
            raise ValueError(f"{name!r} lies in the area of one agent; that agent reaches it through board.private")
        return self.prefix + name

    def places(self, names: Iterable[str]) -> list[str]:
        """The same for several."""
        if isinstance(names, str):
            raise TypeError("slots and logs take a list of names, not one name")
        return [self.place(name) for name in names]

    def holds(self, place: str) -> bool:
        """Whether a slot or log of the state belongs to this area."""
        return place.startswith(self.prefix) if self.owner else not place.startswith(PRIVATE)

    def watched(self, slots: Iterable[str], logs: Iterable[str]) -> tuple[list[str], list[str]]:
        """The slots and logs of the state that are watched; without any, a watch tells of all of them."""
        found = self.places(slots), self.places(logs)
        if self.owner and not any(found):
            raise ValueError("name slots or logs of the private area that are watched")
        return found


def read(ref: ThreadRef, area: Area, names: Iterable[str]) -> Operation[dict[str, Any]]:
    """Values of slots at one version, in the order of their names as given; without any those of the whole area."""
    chosen = area.places(names)
    state = yield from hydrate(ref, slots=chosen or None)
    found = [place for place in chosen or sorted(state.slots) if place in state.slots and area.holds(place)]
    return {place.removeprefix(area.prefix): state.slots[place] for place in found}
