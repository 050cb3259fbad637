"""Rules in which a deletion fails or is interrupted between its tombstone and its end, and somebody finds it so."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, WHO
from tests.archive_model.faults import AWAY, DIES_AFTER, DIES_BEFORE, LOST_AWAY, REFUSED, Fault
from tests.archive_model.steps import Steps

# Around the tombstone, which comes after a HEAD that closes the thread unless the thread was closed before.
CUTS = st.builds(
    Fault, st.sampled_from((DIES_AFTER, DIES_AFTER, LOST_AWAY, LOST_AWAY, AWAY, DIES_BEFORE, REFUSED)),
    st.sampled_from((0, 0, 1)), st.just(True),
)  # fmt: skip
THEN = st.lists(st.sampled_from(("again", "again", "anew", "anew", "read")), min_size=1, max_size=2)


class Halves(Steps):
    """Whoever finds half a deletion does the rest, and nobody answers for it before the key is gone."""

    @rule(who=WHO, other=WHO, name=NAMES, cut=CUTS, later=st.booleans(), then=THEN)
    def delete_by_half(self, who: int, other: int, name: str, cut: Fault, later: bool, then: list[str]) -> None:
        """The deletion is asked for again, or the name is used again, or read; there or elsewhere."""
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.act(who, f"delete {name}", lambda it: self.delete_one(it, name, is_again=False), (cut,))
        if later:
            self.wait(11.0)  # nothing counts as away any more
        for what in then:
            if what == "again":
                self.act(other, f"delete {name} again", lambda it: self.delete_one(it, name, is_again=True))
            elif what == "anew":
                self.work(other, name, 1, 10, archived=True)
            else:
                self.read(other, name, "main", ())
        self.guarded(self.check_graves)

    def check_graves(self) -> None:
        """A name that is used again, or whose tombstone says so, has no key of an earlier thread in the bucket."""
        for key, sent in self.truth.heads.items():
            if not sent.head.deleted or sent.head.cleared:
                self.check_destroyed(self.keys_of(key, dead=True))
