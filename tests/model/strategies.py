"""What the state machine draws: names from small sets, so that things meet, and edits that may or may not fit."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Self

from hypothesis import strategies as st
from tests.model.plain import MEDIA_TYPE

from stateward.v1 import diff_pb2, state_pb2

THREADS = ("a", "b", "c")
BRANCHES = ("main", "side", "third")
TAGS = ("one", "two")
SLOTS = ("s", "t")
LOGS = ("l", "m")
CHECKPOINT_IDS = ("", "", "x", "y")


class Long(bytes):
    """Some kilobytes that a failure does not print."""

    def __new__(cls, seed: int, count: int) -> Self:
        made = super().__new__(cls, sha256(bytes([seed])).digest() * count)
        made.text = f"Long({seed}, {count})"
        return made

    def __repr__(self) -> str:
        return self.text


SHORT = st.binary(max_size=12)
LONG = st.builds(Long, st.integers(0, 9), st.integers(100, 400))
DATA = st.one_of(SHORT, SHORT, LONG)
FITS = st.sampled_from((True, True, True, True, False))  # whether edits are moved to where they fit
PICK = st.integers(0, 10**6)  # picks from a list whose length only the model knows


def value(data: bytes) -> state_pb2.Value:
    return state_pb2.Value(media_type=MEDIA_TYPE, data=data)


def number(value: int) -> state_pb2.Value:
    return state_pb2.Value(number=value)


def _edit(**edit: Any) -> diff_pb2.Edit:
    return diff_pb2.Edit(**edit)


LOG_NAMES, SLOT_NAMES, INDEX = st.sampled_from(LOGS), st.sampled_from(SLOTS), st.integers(0, 12)
NUMBER = st.one_of(st.integers(-3, 3), st.sampled_from((-(1 << 63), (1 << 63) - 1)))
VALUES = st.one_of(DATA.map(value), DATA.map(value), NUMBER.map(number))
EXPECTED = st.sampled_from((None, None, b"", b"\1" * 32))  # moved to what the slot holds where edits are to fit
SET_SLOT = st.builds(
    lambda n, v, e: _edit(set_slot=diff_pb2.SetSlot(slot=n, value=v, expected_sha256=e)), SLOT_NAMES, VALUES, EXPECTED
)
ADD_NUMBER = st.builds(lambda n, d: _edit(add_number=diff_pb2.AddNumber(slot=n, delta=d)), SLOT_NAMES, NUMBER)
DELETE_SLOT = st.builds(lambda n: _edit(delete_slot=diff_pb2.DeleteSlot(slot=n)), SLOT_NAMES)
APPEND = st.builds(
    lambda n, d, at: _edit(append=diff_pb2.Append(log=n, entries=map(value, d), at_index=at)),
    LOG_NAMES,
    st.lists(DATA, min_size=1, max_size=4),
    st.one_of(st.none(), st.none(), INDEX),
)
REPLACE = st.builds(
    lambda n, at, d: _edit(replace_entry=diff_pb2.ReplaceEntry(log=n, index=at, value=value(d))), LOG_NAMES, INDEX, DATA
)
TRIM = st.builds(
    lambda n, kind, at: _edit(trim_log=diff_pb2.TrimLog(log=n, **{kind: at})),
    LOG_NAMES,
    st.sampled_from(("keep_last", "before_index", "from_index")),
    INDEX,
)
DELETE_LOG = st.builds(lambda n: _edit(delete_log=diff_pb2.DeleteLog(log=n)), LOG_NAMES)
SPLICE = st.builds(
    lambda n, at, gone, new: _edit(
        splice_slot=diff_pb2.SpliceSlot(slot=n, splices=[diff_pb2.Splice(offset=at, delete=gone, insert=new)])
    ),
    SLOT_NAMES,
    st.integers(0, 8),
    st.integers(0, 8),
    SHORT,
)
FREE_EDITS = st.lists(st.one_of(SET_SLOT, ADD_NUMBER, APPEND, APPEND, DELETE_SLOT), max_size=4)
ANY_EDITS = st.lists(
    st.one_of(SET_SLOT, ADD_NUMBER, APPEND, APPEND, DELETE_SLOT, REPLACE, TRIM, DELETE_LOG, SPLICE), max_size=5
)
STATES = st.builds(
    lambda slots, logs: state_pb2.State(
        slots=slots,
        logs={name: state_pb2.Log(entries=map(value, entries)) for name, entries in logs.items()},
    ),
    st.dictionaries(SLOT_NAMES, VALUES, max_size=2),
    st.dictionaries(LOG_NAMES, st.lists(DATA, max_size=6), max_size=2),
)
LOG_ENDS = st.dictionaries(LOG_NAMES, st.one_of(st.none(), INDEX))  # how much of each log a projection shows
