"""The danger: bytes of a stranger that the daemon takes for frames, or that make it keep memory or raise."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.daemon.framed import HEAD

from stateward_sidecar.service.local.frame import HEAD_BYTES, Head, split_metadata
from stateward_sidecar.service.local.incoming import LARGE_BYTES, TURN_FRAMES, Incoming, Verdict

BODY_MAX = 200_000
U16, U32, BYTE = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 255)
EDGES = (0, 1, HEAD_BYTES, LARGE_BYTES - HEAD_BYTES, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, BODY_MAX)
LENGTHS = st.one_of(st.sampled_from(EDGES), st.integers(0, 300))
FRAMES = st.lists(st.tuples(LENGTHS, U32, BYTE, BYTE, U16, U32), min_size=1, max_size=6)
CUTS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, LARGE_BYTES)), min_size=1, max_size=50)


class Taker:
    """Notes what it gets. ``judged`` says what becomes of a frame."""

    def __init__(self, judged: Callable[[Head], Verdict]) -> None:
        self.judged, self.heads, self.taken = judged, list[Head](), list[tuple[Head, bytes]]()
        self.closes_after = -1
        self.may: Iterator[bool] = chain([True, False, True, True], repeat(True))

    def judge(self, head: Head) -> Verdict:
        self.heads.append(head)
        return self.judged(head)

    def take(self, head: Head, body: bytes | bytearray) -> bool:
        self.taken.append((head, bytes(body)))
        return len(self.taken) != self.closes_after

    def may_go_on(self) -> bool:
        return next(self.may)


def feed(incoming: Incoming, data: bytes, cuts: list[int], on_read: Callable[[], None] = lambda: None) -> None:
    """Puts bytes into the parser as a socket would: as many at a time as there is room, and no more than a cut."""
    at, turn = 0, 0
    while at < len(data):
        room = incoming.buffer()
        assert len(room) > 0
        count = min(len(room), cuts[turn % len(cuts)], len(data) - at)
        room[:count] = data[at : at + count]
        incoming.filled(count)
        on_read()
        while incoming.has_rest:  # with the next turn of the loop
            incoming.go_on()
            on_read()
        at, turn = at + count, turn + 1


def shared() -> memoryview:
    return memoryview(bytearray(LARGE_BYTES))


def encoded(frames: Sequence[tuple[int, ...]]) -> tuple[bytes, list[tuple[Head, bytes]]]:
    """The bytes of frames, and what has to be made of them. Each body differs from the others."""
    made = [(Head(*each), bytes([number % 255 + 1]) * each[0]) for number, each in enumerate(frames)]
    return b"".join(HEAD.pack(*head) + body for head, body in made), made


@given(FRAMES, CUTS)
def test_frames_come_whole_however_they_are_cut(frames: list[tuple[int, ...]], cuts: list[int]) -> None:
    """Each frame is taken once, in order, with its own bytes."""
    data, wanted = encoded(frames)
    taker = Taker(lambda head: Verdict.TAKE)
    incoming = Incoming(taker, shared())
    feed(incoming, data, cuts)
    assert taker.taken == wanted
    assert incoming.kept_bytes == 0


@pytest.mark.parametrize("length", [0, 9])
def test_one_turn_takes_no_more_than_its_frames(length: int) -> None:
    """A read of thousands: the rest is kept, and nothing of it is judged before its turn."""
    data, wanted = encoded([(length, call, 1, 0, 0, 0) for call in range(LARGE_BYTES // (HEAD_BYTES + length))])
    taker = Taker(lambda head: Verdict.TAKE)
    taker.may = chain(repeat(True))
    incoming = Incoming(taker, shared())
    incoming.buffer()[: len(data)] = data
    incoming.filled(len(data))
    turns = 1
    while incoming.has_rest:
        assert len(taker.heads) == len(taker.taken) == turns * TURN_FRAMES
        incoming.go_on()
        turns += 1
    assert [head for head, _ in taker.taken] == [head for head, _ in wanted]


def test_a_frame_that_may_not_be_taken_yet_is_kept() -> None:
    """It is not judged before somebody goes on, and dropped when the connection ends."""
    data, wanted = encoded([(3, call, 1, 0, 0, 0) for call in range(9)])
    taker = Taker(lambda head: Verdict.TAKE)
    taker.may = iter([True, False, False])
    incoming = Incoming(taker, shared())
    incoming.buffer()[: len(data)] = data
    incoming.filled(len(data))
    assert taker.taken == [(head, body[:3]) for head, body in wanted[:2]]
    assert incoming.kept_bytes == len(data) - 2 * (HEAD_BYTES + 3)
    incoming.go_on()
    assert len(taker.heads) == 3
    incoming.end()
    assert not incoming.has_rest
    assert incoming.kept_bytes == 0


@given(FRAMES, CUTS, st.randoms(use_true_random=False))
def test_what_is_skipped_or_waits_harms_no_other_frame(
    frames: list[tuple[int, ...]], cuts: list[int], chance: object
) -> None:
    """A large body may wait for memory, and be thrown away before or while it comes: the next one begins behind it."""
    data, made = encoded(frames)
    fates = [chance.choice(["take", "skip", "wait", "wait and skip", "skip midway"]) for _ in made]  # type: ignore[attr-defined]
    fate_of = dict(enumerate(fates))

    def judged(head: Head) -> Verdict:
        fate = fate_of[len(taker.heads) - 1]
        if fate.startswith("wait") and head.length > LARGE_BYTES:
            return Verdict.WAIT
        return Verdict.SKIP if fate == "skip" else Verdict.TAKE

    taker = Taker(judged)
    incoming = Incoming(taker, shared())
    wanted = [
        each for each, fate in zip(made, fates, strict=True)
        if fate in {"take", "wait"} or (fate != "skip" and each[0].length <= LARGE_BYTES)
    ]  # fmt: skip
    waiting = {number for number, fate in enumerate(fates) if made[number][0].length > LARGE_BYTES and fate != "take"}

    def on_read() -> None:
        number = len(taker.heads) - 1
        if number in waiting and fates[number] != "skip":
            waiting.discard(number)
            if fates[number] == "wait":
                incoming.resume()
            else:
                incoming.skip()

    feed(incoming, data, cuts, on_read)
    assert taker.taken == wanted


def fuzz(data: bytes, cuts: list[int], closes_after: int) -> None:
    """Noise raises nothing, and no more is kept than the judge allowed."""
    allowed = 1 << 20

    def judged(head: Head) -> Verdict:
        if head.kind == 255:
            return Verdict.CLOSE
        return Verdict.SKIP if head.length > allowed else Verdict.TAKE

    taker = Taker(judged)
    taker.closes_after = closes_after
    incoming = Incoming(taker, shared())

    def on_read() -> None:
        assert incoming.kept_bytes <= allowed + HEAD_BYTES + LARGE_BYTES

    feed(incoming, data, cuts, on_read)
    for head, body in taker.taken:
        assert len(body) == head.length
        with suppress(ValueError):
            metadata, message = split_metadata(body)
            assert len(message) <= len(body)
            assert all(name for name, _ in metadata)
    if 0 < closes_after < len(taker.taken):
        raise AssertionError("taken after the end")


NOISE = st.lists(
    st.one_of(
        st.binary(max_size=64),
        st.builds(HEAD.pack, st.one_of(LENGTHS, U32), U32, BYTE, BYTE, U16, U32),
        st.integers(1, 3 * LARGE_BYTES).map(bytes),
    ),
    max_size=12,
).map(b"".join)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_noise_raises_nothing(seconds: float) -> None:
    """For a minute in `make test`, and for ten in `make soak-tests`: a busy machine tries less in the same time."""
    examples, end = 0, time.monotonic() + seconds
    while time.monotonic() < end or not examples:

        @hypothesis.seed(random.randrange(1 << 32))
        @settings(max_examples=200, database=None)
        @given(NOISE, CUTS, st.integers(-1, 4))
        def try_some(data: bytes, cuts: list[int], closes_after: int) -> None:
            nonlocal examples
            examples += 1
            fuzz(data, cuts, closes_after)

        try_some()
    print(f"{examples:,} examples")


@given(st.binary(max_size=200))
def test_metadata_of_noise_are_refused_or_read(body: bytes) -> None:
    """Both forms of a body, with the same answer."""
    def tried(given_body: bytes | bytearray) -> Iterator[object]:
        try:
            metadata, message = split_metadata(given_body)
        except ValueError as error:
            yield type(error).__name__ != ""
        else:
            yield metadata
            yield bytes(message)

    assert list(tried(body)) == list(tried(bytearray(body)))
