"""What became of an operation whose answer was lost with the process that asked for it."""

from __future__ import annotations

from typing import Any

from tests.soak.desk import Desk, Wrong, made_of
from tests.soak.ledger import Line, hash_of
from tests.soak.working import effects_of


class Recovery:
    """Looks whether what is pending has happened, or sends it again where that is harmless."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def recover(self) -> None:
        """Settles all of it. Exhausted says nothing about what was: what is still pending stays so."""
        for key, asked in list(self.desk.book.pending.items()):
            answer = getattr(self, f"_recover_{asked['op']}")(key, asked)
            if answer is None:
                self.desk.note("void", key)
            else:
                self.desk.note("answered", key, found=True, **answer)

    def _recover_save(self, key: str, asked: Line) -> dict[str, Any] | None:
        if "entry" in asked:
            thread = self.desk.client.thread(asked["parts"][0]["thread"])
            again = thread.append("notes", asked["entry"], request_id=key, checkpoint_id=asked["anchor"])
            return {"made": [made_of(self.desk.do(again))]}
        found = []
        for part in asked["parts"]:
            state = self.desk.do(self.desk.client.thread(part["thread"], branch=part["branch"]).hydrate())
            if state.version == part["head"]:
                found.append(None)
                continue
            if hash_of(state) != part["hash"]:
                raise Wrong(f"{key}: version {state.version} of {part['thread']} is neither the old nor the new state")
            found.append(made_of(state.checkpoint))
        if None not in found:
            return {"made": found}
        if any(found):
            raise Wrong(f"{key}: one half of a batch is there: {found}")
        return None

    def _recover_put(self, key: str, asked: Line) -> dict[str, Any] | None:
        found = self.desk.do(self.desk.client.thread(asked["thread"]).records.get_many(asked["writes"]))
        there = {name: name in found and found[name].value == value for name, value in asked["writes"].items() if value}
        if any(there.values()) and not all(there.values()):
            raise Wrong(f"{key}: a part of the records is there: {there}")
        if not any(there.values()):
            return None
        return {"revision": max(found[name].revision for name in there)}

    def _recover_effects(self, key: str, asked: Line) -> dict[str, Any]:
        thread = self.desk.client.thread(asked["thread"])
        if asked["values"] is None:
            self.desk.do(thread.effects.delete(asked["anchor"]))
        else:
            self.desk.do(thread.effects.put(effects_of(asked["values"])))
        return {}

    def _recover_move(self, key: str, asked: Line) -> dict[str, Any]:
        self.desk.do(self.desk.client.thread(asked["thread"]).branches.move("main", asked["version"]))
        return {}

    def _recover_fork(self, key: str, asked: Line) -> dict[str, Any] | None:
        state = self.desk.do(self.desk.client.thread(asked["new"]).hydrate())
        return {"uid": state.checkpoint.uid} if state.version else None

    def _recover_tag(self, key: str, asked: Line) -> dict[str, Any]:
        self.desk.do(self.desk.client.thread(asked["thread"]).tags.set(asked["tag"], at=asked["version"]))
        return {}

    def _recover_prune(self, key: str, asked: Line) -> dict[str, Any]:
        self.desk.do(self.desk.client.thread(asked["thread"]).prune(versions=asked["versions"]))
        return {"versions": asked["versions"]}

    def _recover_delete(self, key: str, asked: Line) -> dict[str, Any]:
        self.desk.do(self.desk.client.thread(asked["thread"]).delete(missing_ok=True))
        return {}
