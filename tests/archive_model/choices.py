"""What the rules choose from."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.archive_model.faults import COMMIT_KINDS, HELD, KINDS, Fault
from tests.archive_model.stage import SIDECARS

from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES

WHO = st.integers(0, SIDECARS - 1)
ASIDE = "a@1"  # looks like the name of an orphan, and is the name of a thread
NAMES = st.sampled_from(("a", "a", "a", "a", "b", ASIDE, "fork"))
KEYS = st.sampled_from(("fare", "hotel"))
KEPT = ("a", "a/b", "a/c", "b")  # keys of records
RECORDS = st.sets(st.sampled_from(KEPT), min_size=1)
TTLS = st.sampled_from((0, 0, 30, 5000))
BRANCHES = st.sampled_from(("main", "main", "main", "side"))
SIZES = st.sampled_from((10, 10, 60, 300, 1500))
WINDOWS = st.sampled_from((REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_ENTRIES, 4, 2))
MEANWHILES = st.integers(0, 27)
# Most of what can go wrong goes wrong around a HEAD.
FAULT = st.one_of(
    st.builds(Fault, st.sampled_from(KINDS), st.sampled_from((0, 0, 0, 1)), st.just(True), MEANWHILES),
    st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 4), st.just(False), MEANWHILES),
    st.builds(
        Fault, st.sampled_from(COMMIT_KINDS), st.sampled_from((0, 0, 1, 2)), st.just(False), MEANWHILES, st.just(True)
    ),
)
PLANS = st.one_of(st.just(()), st.tuples(FAULT), st.tuples(FAULT, FAULT))
# What a start does by itself may take long.
STARTS = st.sampled_from(((), (), (Fault(HELD, 0, at_commit=True),)))
SELDOM = st.sampled_from((False, False, True))
