"""Rules in which records are put, compared and swapped, deleted, read, and replaced until their journal is cleaned."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import KEPT, NAMES, PLANS, RECORDS, SIZES, TTLS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.steps import Steps

from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN


class RecordRules(Steps):
    """Records beside versions, which belong to no version."""

    @rule(who=WHO, name=NAMES, keys=RECORDS, deletes=RECORDS, size=SIZES, conditional=st.booleans(),
          archived=st.booleans(), ttl_s=TTLS, plan=PLANS)  # fmt: skip
    def put_records(
        self, who: int, name: str, keys: set[str], deletes: set[str], size: int, conditional: bool, archived: bool,
        ttl_s: int, plan: tuple[Fault, ...],
    ) -> None:  # fmt: skip
        """Some are written and some deleted, all or none."""
        request = self.put_request(name, keys, size=size, conditional=conditional, ttl_s=ttl_s, deletes=deletes)
        what = f"put {sorted(keys)} of {name}{' if' if conditional else ''}{' archived' if archived else ''}"
        self.act(who, what, lambda it: self.put(it, request, archived=archived), plan)

    @rule(who=WHO, back=st.integers(1, 4), archived=st.booleans(), plan=PLANS)
    def put_again(self, who: int, back: int, archived: bool, plan: tuple[Fault, ...]) -> None:
        """A client whose answer was lost asks again, anywhere."""
        if len(self.puts) >= back:
            request = self.puts[-back][0]
            self.act(who, f"put {request.thread} again", lambda it: self.put(it, request, archived=archived), plan)

    @rule(who=WHO, name=NAMES, prefix=st.sampled_from(("a", "a/", "b")), archived=st.booleans(), plan=PLANS)
    def delete_records(self, who: int, name: str, prefix: str, archived: bool, plan: tuple[Fault, ...]) -> None:
        """Those whose key begins with a text."""
        request = self.delete_request(name, prefix)
        self.act(who, f"delete {prefix}* of {name}", lambda it: self.put(it, request, archived=archived), plan)

    @rule(who=WHO, name=NAMES, keys=RECORDS, how=st.sampled_from(("list", "list", "get", "refresh", "aside")),
          plan=PLANS)  # fmt: skip
    def show_records(self, who: int, name: str, keys: set[str], how: str, plan: tuple[Fault, ...]) -> None:
        """All of a thread or some, perhaps of an orphan, or with a new time to live."""
        orphans = [thread.name for thread in self.sidecars[who].threads() if thread.access == THREAD_ACCESS_ORPHAN]
        chosen = orphans[0] if orphans and how == "aside" else name
        some = keys if how in ("get", "refresh") else set[str]()
        what = f"{how} records of {chosen}"
        self.act(who, what, lambda it: self.read_records(it, chosen, some, refreshes=how == "refresh"), plan)

    @rule(who=WHO, name=NAMES, count=st.integers(3, 8), size=SIZES, takes=st.booleans(), plan=PLANS)
    def replace_records(
        self, who: int, name: str, count: int, size: int, takes: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """The same ones again and again, so that what is left is moved to the end of the journal, and what was replaced
        is cleared."""
        if takes:
            self.take_over(who, name)
        for at in range(count):
            request = self.put_request(name, KEPT[: 1 + at % 2], size=size)
            last = at == count - 1
            self.act(who, f"put {name}", lambda it, r=request: self.put(it, r, archived=True), plan if last else ())
        self.background(who, ())
