"""Rules in which an owner was replaced while it was idle, and does not know it: it sweeps, deletes, renews and writes.

Another machine took its thread and worked, or deleted it, and perhaps made the next one of its name. What the owner
does then reaches the thread that the archive has, or nothing. Nothing that it does by itself sets anything aside.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.blobrules import BlobRules
from tests.archive_model.choices import NAMES, PLANS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.giving import TTL_S, GivingUp
from tests.archive_model.late import LateWriters
from tests.archive_model.stage import SIDECARS
from tests.daemon.driven import NAMESPACE
from tests.daemon.small import BLOB_KEPT_S

# What a sweep of the owner will find. Most often one kind: whatever comes first asks HEAD for all that follow.
KINDS = st.sampled_from(("versions", "records", "blob", "claim"))
BELONGINGS = st.one_of(st.sets(KINDS, min_size=1, max_size=1), st.sets(KINDS, min_size=1))
ELSEWHERE = st.sampled_from(("works", "works", "deletes", "makes anew", "makes anew and leaves"))
THEN = st.lists(
    st.sampled_from(
        ("sweep", "sweep", "sweep", "sweep", "delete", "delete", "delete old", "delete new", "blob old", "blob new",
         "blob new", "renew old", "renew new", "finish old", "finish new", "signal new", "put new", "save new", "read")
    ),
    min_size=1, max_size=3,
)  # fmt: skip


class Replaced(BlobRules, LateWriters, GivingUp):
    """Idle owners, and what became of their threads."""

    @rule(who=WHO, name=NAMES, has=BELONGINGS, elsewhere=ELSEWHERE, then=THEN, plan=PLANS,
          seconds=st.sampled_from((1.0, 11.0, BLOB_KEPT_S + 1.0, BLOB_KEPT_S + 1.0, TTL_S + 1.0)))  # fmt: skip
    def go_on_unknowing(
        self, who: int, name: str, has: set[str], elsewhere: str, then: list[str], seconds: float,
        plan: tuple[Fault, ...],
    ) -> None:  # fmt: skip
        """The owner is idle meanwhile, perhaps for so long that a part of what it has is over."""
        other = (who + 1) % SIDECARS
        self.take_over(who, name)
        self.work(who, name, 2, 10, archived=True)
        self.furnish(who, name, has)
        old = self.uid_of(who, name)
        self.take_over(other, name)
        self.replace(other, name, elsewhere)
        self.wait(seconds)
        new = self.uid_of(who, name)
        for number, what in enumerate(then, 1):
            self.go_on_with(who, name, what, new if what.endswith("new") else old, plan if number == len(then) else ())
        self.ship(who, ())
        self.read(who, name, "main", ())

    @rule(who=WHO, name=NAMES, kind=KINDS, elsewhere=st.sampled_from(("works", "works", "makes anew")), plan=PLANS)
    def sweep_unknowing(self, who: int, name: str, kind: str, elsewhere: str, plan: tuple[Fault, ...]) -> None:
        """What the owner does by itself comes first, before anything asks HEAD for it."""
        self.go_on_unknowing(who, name, {kind}, elsewhere, ["sweep"], BLOB_KEPT_S + 1.0, plan)

    def furnish(self, who: int, name: str, has: set[str]) -> None:
        """Gives a thread what a sweep removes, and an agent that has begun to pay."""
        if "versions" in has:
            self.set_retention(who, name, 1)
        if "records" in has:
            request = self.put_request(name, ("a", "b"), size=10, ttl_s=30)
            self.act(who, f"put {name}", lambda it: self.put(it, request, archived=True))
        if "blob" in has:
            content = self.mark(400).encode()
            self.act(who, f"write a blob of {name}", lambda it: self.write_content(it, name, content, announced=True))
        if "claim" in has:
            self.claim(who, name, "fare")
        self.act(who, "ship", self.ship_all)

    def replace(self, other: int, name: str, elsewhere: str) -> None:
        """What the next owner does."""
        if elsewhere != "works":
            self.act(other, f"delete {name}", lambda it: self.delete_one(it, name, is_again=False))
            self.background(other, ())
        if elsewhere != "deletes":
            self.work(other, name, 2, 10, archived=True)
        if elsewhere == "makes anew and leaves":
            self.act(other, f"detach {name}", lambda it: it.archive.detach(NAMESPACE, name))

    def go_on_with(self, who: int, name: str, what: str, uid: str, plan: tuple[Fault, ...]) -> None:
        """What a replaced owner does by itself, or is asked for by clients that know a creation of its thread."""
        form = what.split(maxsplit=1)[0]
        if form == "sweep":
            self.act(who, "sweep", self.sweep_here, plan, sweeps=True)
        elif form == "read":
            self.read(who, name, "main", plan)
        elif what == "delete":
            self.act(who, f"delete {name}", lambda it: self.delete_one(it, name, is_again=True), plan)
        elif form == "delete" and uid:
            self.act(who, f"{what} {name}", lambda it: self.delete_creation(it, name, uid), plan)
        elif uid:
            self.act(who, f"{what} {name}", lambda it: self.write(it, form, name, uid, archived=False), plan)

    def uid_of(self, who: int, name: str) -> str:
        """The uid of the thread that the archive has; empty if there is none."""
        head = self.truth.head(self.key_of(self.sidecars[who], name))
        return head.uid.hex() if head is not None else ""
