"""Results of tools that an agent records under anchors, and deletes: free anchors, and ids of checkpoints."""

from __future__ import annotations

from typing import Any

from tests.soak.desk import Desk
from tests.soak.ledger import Known

from stateward import Effect

FREE = ("run-0", "run-1")  # anchors that belong to no version


def record(desk: Desk, known: Known) -> None:
    """Puts some results, all or none, or deletes all of an anchor."""
    dice, number = desk.dice, desk.book.used
    anchors = [anchor for anchor, version in known.anchors.items() if version not in known.covered]
    anchor = dice.choice((*FREE, *anchors[-4:]))
    values: dict[str, str] | None = None
    if dice.random() < 0.75:
        values = {f"{anchor} {number}.{place}": f"result {number} " * dice.choice((1, 50)) for place in range(3)}

    def send(_: str) -> dict[str, Any]:
        thread = desk.client.thread(known.name)
        if values is None:
            desk.do(thread.effects.delete(anchor))
        else:
            desk.do(thread.effects.put(effects_of(values)))
        return {}

    desk.ask("effects", send, thread=known.name, anchor=anchor, values=values)


def effects_of(values: dict[str, str]) -> list[Effect]:
    """The results of an operation, as it sends them."""
    return [Effect(name.partition(" ")[2], value, anchor=name.partition(" ")[0]) for name, value in values.items()]
