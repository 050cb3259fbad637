"""Random tokens, access files and requests against a daemon, and a model of who may do what.

    python -m tests.soak.access --minutes 60 --seed 7

The model reads the contract and the grants in a way of its own, in ten lines. Each round has a daemon, principals with
random grants, and threads with contents that nobody but their readers may see. The tests run a short form of it
(tests/start/test_access_model.py).
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import grpc
import hypothesis
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from jwt.api_jws import PyJWS
from tests.daemon.inside import Inside, daemon_inside
from tests.start.contract import (
    METHODS,
    STREAMED,
    WIRES,
    answers_of,
    begin,
    digest_of,
    info_in,
    open_channel,
    principal_of,
    reason_in,
    request_of,
    run_call,
)
from tests.start.issuer import BOTH, KINDS, NAME, SUB, access_text, private_key, raw

from stateward.v1 import access_pb2
from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest, SaveRequest
from stateward.v1.diff_pb2 import Append, Diff, Edit
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import CountThreadsRequest, ListThreadsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import IssuerUnavailable, StartError, Unauthenticated
from stateward_sidecar.service.admission import callers
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.service.admission.bearers import SKEW_S

VERBS = ("read", "write", "signal", "delete")
NAMESPACES = ("team", "shop", "default")
NAMES = ("a-1", "a-2", "b-1", "ab", "-a", "a*", "z")
CANARY = "canary"
"""In every value, label and question; with the name of its thread."""
PATTERNS = ("*", "a*", "*-1", "a-*", "b-1", "*a*", "a*b", "**", "[ab]-?", "${principal}")
PRINCIPALS = 40
OPERATOR = "operator"
REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")


# -- the model -------------------------------------------------------------------------------------------------

Grants = list[tuple[set[str], str, str]]


def may(grants: Grants, verb: str, namespace: str, thread: str) -> bool:
    """Whether one grant has the verb and both patterns match, in which only "*" is special. What cannot be a name
    matches none but "*/*"."""
    is_name = len(namespace) + len(thread) < 4096 and "\0" not in namespace + thread
    return any(
        verb in verbs and ((n, t) == ("*", "*") or (is_name and fits(namespace, n) and fits(thread, t)))
        for verbs, n, t in grants
    )


def fits(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern."""
    return fnmatchcase(text, re.sub(r"([\[?])", r"[\1]", pattern))


def is_denied(grants: Grants, method: MethodDescriptor, request: Message) -> bool:
    """Whether the contract asks something for a request that no grant gives."""
    for need in method.GetOptions().Extensions[access_pb2.access]:  # type: ignore[index]
        verb = access_pb2.Verb.Name(need.verb).removeprefix("VERB_").lower()
        if verb == "any" or (need.when and not getattr(request, need.when)) or (not need.thread and need.lists):
            continue
        if not need.thread:
            return True  # of the daemon as a whole, and nobody here is its operator
        for namespace, thread in named(request, need.thread.split("."), "default"):
            if not (need.lists and thread == "-") and not may(grants, verb, namespace, thread):
                return True
    return False


def named(message: Any, path: list[str], namespace: str) -> Iterator[tuple[str, str]]:
    """The threads that a request names at a path."""
    namespace = (getattr(message, "namespace", "") or "default") if hasattr(message, "namespace") else namespace
    if len(path) == 1:
        yield namespace, getattr(message, path[0])
        return
    inner = getattr(message, path[0])
    many = [inner] * message.HasField(path[0]) if isinstance(inner, Message) else inner
    for each in many:
        yield from named(each, path[1:], namespace)


# -- what is drawn ---------------------------------------------------------------------------------------------

WORDS = st.one_of(
    st.sampled_from(NAMES), st.sampled_from(NAMES),
    st.sampled_from([ "", "-", "a-1@@1", "A-1", "a-1 ", "a-1\0", "a/1", "..", "é", "a" * 1024, "a" * 5000]),
    st.text(max_size=12),
)
NUMBERS = st.one_of(st.integers(-2, 5), st.sampled_from([2**31 - 1, -(2**31)]))
PLACES = {"namespace": st.sampled_from([*NAMESPACES, "", "nobody"]), "thread": WORDS, "new_thread": WORDS}
NEVER = {"wait", "timeout"}
"""Fields that are left out: a call that waits finds no more than one that does not."""


@st.composite
def messages(draw: Any, kind: Descriptor, depth: int = 0) -> Message:
    """A message with random fields. What names a thread is set as a rule."""
    made = GetMessageClass(kind)()
    for field in kind.fields:
        if field.name in NEVER or draw(st.integers(0, 9)) >= (9 if field.name in PLACES else 4 - depth):
            continue
        place: Any = getattr(made, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None and depth < 4:
            if field.is_repeated:
                place.extend(draw(st.lists(messages(field.message_type, depth + 1), max_size=2)))
            else:
                place.CopyFrom(draw(messages(field.message_type, depth + 1)))
                place.SetInParent()
        elif field.message_type is None and field.is_repeated:
            place.extend(draw(st.lists(scalars(field), max_size=2)))
        elif field.message_type is None:
            setattr(made, field.name, draw(PLACES[field.name] if field.name in PLACES else scalars(field)))
    return made


def scalars(field: FieldDescriptor) -> Any:
    """Values of a field that is no message."""
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return {
        FieldDescriptor.CPPTYPE_STRING: st.binary(max_size=33) if field.type == field.TYPE_BYTES else WORDS,
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
        FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 9),
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 9),
    }.get(field.cpp_type, NUMBERS)


@st.composite
def calls(draw: Any) -> tuple[str, Message]:
    """A method, and a request of it that is near to a right one, or any."""
    name = draw(st.sampled_from(sorted(METHODS)))
    method = METHODS[name]
    if draw(st.booleans()):
        request = request_of(method, draw(WORDS), draw(PLACES["namespace"]))
    else:
        request = draw(messages(method.input_type))
    return name, request


HEADERS = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    st.tuples(
        st.sampled_from(["Bearer ", "bearer ", "Basic ", "Bearer", "Bearer  "]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    ).map("".join),
)
LINES = st.sampled_from([
    "[[principal]]", "[principal]", 'name = "a"', "name = 3", 'grants = ["read */*"]', 'grants = "read */*"',
    "grants = []", f'token_sha256 = "{"0" * 64}"', f'token_sha256 = ["{"1" * 64}", "{"2" * 64}"]',
    "uid = 1", "uid = -1", "uid = true", 'gid = "1"', "[[issuer]]", 'tls = "x"', "[[principal]", "=", '"',
    "a.b.c = 1", 'grants = ["admin a/*"]', 'grants = ["read,read a/${principal}"]',
    "x = [" * 50, "x = " + "9" * 5000, "\x00", "# a comment", "[[namespace]]", 'name = "team-*"', 'bytes = "1GiB"',
    'bytes = "1e9"', "bytes = -1", "threads = 3", "threads = true", "limits = { calls = 1 }", "limits = { calls = 0 }",
    "limits = { saves_per_second = 1.5 }", "limits = 3", 'tls = "spiffe://a/b"', 'tls = ["a.example", "a.example"]',
    f'issuer = "{NAME}"', 'audience = "a"', "audience = []", 'jwks = "/jwks"', 'jwks = "https://h/j"', 'ca = "/ca"',
    'jwks = "https://[/"', f'jwt = {{ issuer = "{NAME}", claims = {{ sub = "*" }} }}', 'jwt = { issuer = "x" }',
    f'jwt = {{ issuer = "{NAME}", claims = {{ a = {{ b = [1, ["x"]] }} }} }}', "claims = {}",
])  # fmt: skip
RIGHT = f"""[[issuer]]
issuer = "{NAME}"
audience = ["a", "b"]
jwks = "https://host:1/jwks"
ca = "/ca"
token_file = "/token"
[[principal]]
name = "a"
token_sha256 = ["{"0" * 64}", "{"1" * 64}"]
grants = ["read,write team/${{principal}}-*", "signal */*"]
limits = {{ calls = 3, streams = 2, saves_per_second = 9 }}
[[principal]]
name = "b"
grants = "admin */*"
tls = "spiffe://a/b"
uid = 7
jwt = {{ issuer = "{NAME}", claims = {{ sub = "x*", "k.io" = {{ n = ["a", "b"], on = true, at = 3 }} }} }}
[[namespace]]
name = "team-*"
bytes = "10GiB"
threads = 1000""".split("\n")


@st.composite
def nearly_right(draw: Any) -> bytes:
    """The lines of a right file, a few of which are changed, moved, doubled or gone."""
    lines = list(RIGHT)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        way, other = draw(st.sampled_from(["drop", "double", "swap", "put", "cut", "take"])), draw(LINES)
        if way == "drop" and len(lines) > 1:
            del lines[at]
        elif way == "double":
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        elif way == "swap":
            to = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[to] = lines[to], lines[at]
        elif way == "put":
            lines.insert(at, other)
        elif way == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        else:
            lines[at] = other
    return "\n".join(lines).encode()


FILES = st.one_of(
    nearly_right(),
    st.lists(LINES, max_size=12).map("\n".join).map(str.encode),
    st.binary(max_size=200),
    st.tuples(st.lists(LINES, max_size=8).map("\n".join), st.text(max_size=20)).map("".join).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    ),
)

TIMES = st.sampled_from([
    600, 600, 600, 600, 30, 0, -1, -59, -61, -600, 300, 1e300, -1e300, float("nan"), float("inf"), "soon", "", None,
    True, [], {}, 10**400, -(10**400),
])  # fmt: skip
"""A number is so many seconds from now, if it is small."""
KIDS = ("RS256", "ES256", "RS256", "ES256", "made up", "", 7, None)


class Bearer(NamedTuple):
    """What a token says, and who has signed it."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signer: str
    number: int

    def is_right(self, now: float) -> bool:
        """Whether it opens something, in ten lines."""
        header, said = self.header, self.claims
        audience = said.get("aud")
        return (
            header.get("kid") == header.get("alg") == self.signer and self.number == 0 and "crit" not in header
            and said.get("iss") == NAME and said.get("sub") == SUB
            and "stateward" in (audience if isinstance(audience, list) else [audience])
            and all(isinstance(each, str) for each in (audience if isinstance(audience, list) else [audience]))
            and is_number(said.get("exp")) and now < said["exp"] < 1e308
            and all(key not in said or (is_number(said[key], truths=True) and said[key] <= now + SKEW_S)
                    for key in ("nbf", "iat"))
        )  # fmt: skip


def is_number(value: Any, *, truths: bool = False) -> bool:
    """Whether a claim is a time: a number that ends."""
    if isinstance(value, bool):
        return truths
    return isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))


@st.composite
def bearers(draw: Any) -> tuple[str, Bearer]:
    """A token that is right, or wrong in one or more ways."""
    now, kind = time.time(), draw(st.sampled_from(KINDS))
    often = st.integers(0, 5)
    header: dict[str, Any] = {"alg": kind, "kid": kind}
    claims: dict[str, Any] = {"iss": NAME, "aud": "stateward", "sub": SUB, "exp": now + 600}
    signer, number = kind, 0
    if draw(often) == 0:
        header["kid"] = draw(st.sampled_from(KIDS))
    if draw(often) == 0:
        header |= draw(st.dictionaries(st.sampled_from(["crit", "b64", "jwk", "jku", "typ", "cty"]),
                                       st.sampled_from([["exp"], "x", True, {}]), max_size=2))  # fmt: skip
    if draw(often) == 0:
        signer, number = draw(st.sampled_from(KINDS)), draw(st.integers(0, 1))
        header["alg"] = signer
    if draw(often) == 0:
        claims["aud"] = draw(st.sampled_from(
            ["stateward", ["stateward"], ["x", "stateward"], "x", [], 7, None, ["stateward", 7], {"stateward": 1}]))
    if draw(often) == 0:
        claims["iss"] = draw(st.sampled_from([NAME, NAME + "/", "", 7, None, [NAME]]))
    if draw(often) == 0:
        claims["sub"] = draw(st.sampled_from([SUB, SUB + "x", "", 7, None, [SUB]]))
    for key in ("exp", "nbf", "iat"):
        if draw(often) == 0:
            drawn = draw(TIMES)
            small = is_number(drawn) and abs(drawn) <= 600
            claims[key] = now + drawn if small else drawn
    begun = raw(header, claims, b"").rpartition(".")[0]
    signature = PyJWS().get_algorithm_by_name(signer).sign(begun.encode(), private_key(signer, number))
    return f"{begun}.{raw({}, {}, signature).rpartition('.')[2]}", Bearer(header, claims, signer, number)


# -- a round ---------------------------------------------------------------------------------------------------


class Round:
    """A daemon, its principals, and its threads."""

    def __init__(self, directory: Path, seed: int, stack: ExitStack) -> None:
        dice = random.Random(seed)
        self.grants: dict[str, Grants] = {f"p{number}": drawn_grants(dice) for number in range(PRINCIPALS)}
        path = directory / "access.toml"
        told = {who: [f"{','.join(sorted(v))} {n}/{t}" for v, n, t in grants] for who, grants in self.grants.items()}
        told[OPERATOR] = ["admin */*", "read,write,signal,delete */*"]
        path.write_text("".join(principal_of(who, digest_of(token_of(who)), each) for who, each in told.items()))
        for who, grants in self.grants.items():
            grants[:] = [(v, n.replace("${principal}", who), t.replace("${principal}", who)) for v, n, t in grants]
        self.daemon: Inside = stack.enter_context(daemon_inside(directory, access=str(path)))
        target = self.daemon.wire.target.replace("unix:", "unix://")
        self.channels = {wire: stack.enter_context(open_channel(target, wire)) for wire in WIRES}
        self.done = Counter[str]()
        self.fill()

    def fill(self) -> None:
        """Makes every thread that is missing, with a canary."""
        for namespace in NAMESPACES:
            for name in (*NAMES, *self.grants):
                canary = f"{CANARY}<{namespace}/{name}>"
                value = Value(media_type="text/plain", data=canary.encode())
                request = SaveRequest(
                    namespace=namespace, thread=name, labels={"of": canary}, status_detail=canary,
                    options=WriteOptions(request_id="first", create=ThreadOptions(labels={"of": canary})),
                    diff=Diff(edits=[Edit(append=Append(log="m", entries=[value]))]),
                )  # fmt: skip
                self.ask("Save", request, OPERATOR)

    def ask(self, name: str, request: Message, who: str, wire: str = "grpc") -> Any:
        return answers_of(self.channels[wire], METHODS[name], request, token_of(who))[0]

    def check_call(self, who: str, wire: str, name: str, request: Message, *, streamed: bool) -> None:
        """Makes a call, and compares with the model. Nothing of a thread that may not be read is in what comes back."""
        if name == "Drain":
            return
        denied = is_denied(self.grants[who], METHODS[name], request)
        told, reason = b"", ""
        if streamed and name in STREAMED:
            found = run_call(self.channels[wire], name, request, token_of(who))
            told = found.SerializeToString()
            info = info_in(found) if isinstance(found, Status) else None
            reason = info.reason if info is not None else ""
        else:
            try:
                for each in self._answers(name, request, who, wire):
                    told += each.SerializeToString()
            except grpc.RpcError as error:
                reason = reason_in(error)
                told = str(error.details()).encode()  # type: ignore[attr-defined]
        self.done[reason or "done"] += 1
        assert (reason == "PERMISSION_DENIED") is denied, (who, self.grants[who], name, request, reason)
        assert reason not in ("UNAUTHENTICATED", "StatusCode.UNKNOWN", "StatusCode.INTERNAL"), (name, request, reason)
        for place in re.findall(rb"canary<([^/>]*)/([^>]*)>", told):
            namespace, thread = (part.decode() for part in place)
            assert may(self.grants[who], "read", namespace, thread), (who, name, request, place)

    def _answers(self, name: str, request: Message, who: str, wire: str) -> list[Message]:
        method, channel = METHODS[name], self.channels[wire]
        if not method.server_streaming:
            return [begin(channel, method, iter([request]), token_of(who)).result()]
        return answers_of(channel, method, request, token_of(who), 1 if name == "Watch" else 3)

    def check_lists(self, who: str, wire: str, namespace: str) -> None:
        """A list has what may be read, and a count is its length."""
        request = ListThreadsRequest(namespace=namespace, page_size=1000)
        everything = {each.thread for each in self.ask("ListThreads", request, OPERATOR, wire).threads}
        listed = [each.thread for each in self.ask("ListThreads", request, who, wire).threads]
        wanted = {name for name in everything if may(self.grants[who], "read", namespace, name)}
        assert set(listed) == wanted
        counts = self.ask("CountThreads", CountThreadsRequest(namespace=namespace), who, wire).counts
        assert sum(each.count for each in counts) == len(listed) == len(wanted)
        versions = ListCheckpointsRequest(namespace=namespace, thread="-", page_size=1000)
        assert {each.thread for each in self.ask("ListCheckpoints", versions, who, wire).checkpoints} <= wanted

    def check_header(self, header: str) -> None:
        """No text is a token but the tokens."""
        scheme, _, token = header.partition(" ")
        known = {token_of(who) for who in (*self.grants, OPERATOR)}
        right = scheme.lower() == "bearer" and token.strip() in known
        channel, method = self.channels["grpc"], METHODS["GetServerInfo"]
        call = channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
        try:
            call(b"", timeout=30, metadata=[("authorization", header)])
            reason = ""
        except grpc.RpcError as error:
            reason = reason_in(error)
        assert (reason == "UNAUTHENTICATED") is not right, (header, reason)


def drawn_grants(dice: random.Random) -> Grants:
    return [
        (
            set(dice.sample(VERBS, dice.choice([1, 2, 3, 3, 4]))), dice.choice([*NAMESPACES, *"***", "t*"]),
            dice.choice([*PATTERNS, *"****", *NAMES]),
        )
        for _ in range(dice.randint(1, 4))
    ]  # fmt: skip


def token_of(who: str) -> str:
    return f"{who}-".ljust(40, "t")


def check_file(directory: Path, content: bytes) -> None:
    """A file is taken as a whole or refused with its place, in time and without what it says."""
    path = directory / "drawn.toml"
    path.write_bytes(content)
    began = time.process_time()
    message, found = "", None
    try:
        found = read_access_file(path)
    except StartError as error:
        message = error.message
    if found is None:
        assert str(path) in message
        assert len(message) < 4000 + len(str(path))
    else:
        assert len(found)
        assert all(each.grants for each in (*found.tokens.values(), *found.uids.values(), *found.gids.values()))
    assert time.process_time() - began < 5


def check_unknown(directory: Path, value: str | bytes) -> None:
    """No value of the header opens anything, whatever it is."""
    path = directory / "tokens"
    if not path.exists():
        path.write_text("right" * 8)
        path.chmod(0o600)
    found = callers.Callers(path)
    try:
        found.identify([("authorization", value)])
    except Unauthenticated:
        return
    assert isinstance(value, str)
    assert value.partition(" ")[2].strip() == "right" * 8


def check_bearer(known: callers.Callers, made: str, said: Bearer) -> None:
    """A token opens what the model says. Else it is refused, and never fails in another way."""
    began, found = time.time(), ""
    with suppress(Unauthenticated, IssuerUnavailable):
        found = known.identify([("authorization", f"Bearer {made}")]).principal.name
    right = {said.is_right(began), said.is_right(time.time())}
    assert found in ("agent", "")
    assert bool(found) in right, (said, found)


# What is written to a file of two principals, and whom it names; None = it is not usable, "" = it names nobody.
TWO = [principal_of(name, digest_of(name * 40), ["read */*"]) for name in "ab"]
CONTENTS: list[tuple[bytes | None, str | None]] = [
    (TWO[0].encode(), "a"), (TWO[1].encode(), "b"), ("".join(TWO).encode(), "ab"), (b"# nobody", ""), (b"", ""),
    (None, ""), ("".join(TWO).encode()[:-9], None), (b"[[principal", None), (TWO[0].encode() * 2, None),
]  # fmt: skip
LOOKS = 3
"""A change counts at this look, if looks are ``PAUSE_S`` apart: seen at the first one, and old enough at the third."""
PAUSE_S = 0.3
STEPS = st.lists(st.one_of(st.sampled_from(CONTENTS), st.just("look"), st.just("look"), st.just("look")), max_size=25)


def check_changes(directory: Path, steps: list[Any]) -> None:
    """A file that changes again and again: at each moment it opens what the last change says that was old enough."""
    path, clock = directory / "changing.toml", mock.Mock(return_value=0.0)
    written, looks = 0, 0
    taken: int | None
    pending: int | None
    there: int | None
    path.write_bytes("".join(TWO).encode())
    with mock.patch.object(callers, "monotonic", clock), mock.patch.object(callers, "log"):
        known = callers.Callers(None, path)
        named, last = "ab", "ab"
        taken = pending = there = written  # the file that counts, the one that waits, and the one that is there
        for step in steps:
            if step == "look":
                clock.return_value += PAUSE_S
                known._look()
                looks = looks + 1 if there == pending else 1
                pending = there
                if there != taken and looks == LOOKS:
                    taken, named = there, named if last is None else last
                elif there == taken:
                    looks = 0
            else:
                content, last = step
                path.unlink(missing_ok=True)
                there = None
                if content is not None:
                    path.write_bytes(content)
                    there = written = written + 1
                    os.utime(path, ns=(written, written))  # files of one moment would look alike
            for name in "ab":
                is_known = True
                try:
                    known.identify([("authorization", f"Bearer {name * 40}")])
                except Unauthenticated:
                    is_known = False
                assert is_known is (name in named), (steps, name)


def run_round(directory: Path, seed: int, examples: int, until_s: float = float("inf")) -> Counter[str]:
    """Draws so many examples of each kind, or until the time is over. Raises AssertionError with the smallest finding.
    Returns how calls ended."""
    with ExitStack() as stack:
        made = Round(directory, seed, stack)
        how = settings(
            max_examples=examples, deadline=None, database=None, derandomize=False,
            suppress_health_check=list(HealthCheck), print_blob=False,
        )  # fmt: skip
        who, wire = st.sampled_from(sorted(made.grants)), st.sampled_from(WIRES)

        def stop_in_time() -> None:
            if time.monotonic() > until_s:
                raise OverError

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(who, wire, calls(), st.booleans())
        def requests(who: str, wire: str, call: tuple[str, Message], streamed: bool) -> None:
            stop_in_time()
            made.check_call(who, wire, *call, streamed=streamed)

        @hypothesis.seed(seed)
        @settings(how, max_examples=max(examples // 10, 10))
        @hypothesis.given(who, wire, st.sampled_from(NAMESPACES))
        def lists(who: str, wire: str, namespace: str) -> None:
            stop_in_time()
            made.check_lists(who, wire, namespace)

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(st.one_of(HEADERS, who.map(lambda each: f"bearer {token_of(each)} ")))
        def headers(header: str) -> None:
            stop_in_time()
            made.check_header(header)

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(FILES)
        def files(content: bytes) -> None:
            check_file(directory, content)

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(st.one_of(st.text(), st.binary(), HEADERS, st.just("Bearer " + "right" * 8)))
        def values(value: str | bytes) -> None:
            check_unknown(directory, value)

        (directory / "jwks.json").write_bytes(BOTH)
        (directory / "bearers.toml").write_text(access_text(directory / "jwks.json"))
        known = callers.Callers(None, directory / "bearers.toml")

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(bearers())
        def tokens(drawn: tuple[str, Bearer]) -> None:
            stop_in_time()
            check_bearer(known, *drawn)

        @hypothesis.seed(seed)
        @settings(how)
        @hypothesis.given(STEPS)
        def changes(steps: list[Any]) -> None:
            stop_in_time()
            check_changes(directory, steps)

        for each in (files, values, tokens, changes, headers, requests, lists):
            try:
                each()
            except OverError:
                break
        return made.done


class OverError(BaseException):
    """The time is over."""


def main() -> int:
    """Runs rounds until the time is over, each with other dice. The exit code is 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.access", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long (default: an hour)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of all dice (default: another one)")
    options = parser.parse_args()
    logging.getLogger("stateward").setLevel(logging.CRITICAL)  # a line for each denied call
    end, seed, table = time.monotonic() + options.minutes * 60, options.seed, Counter[str]()
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="soak-") as directory:
            try:
                table += run_round(Path(directory), seed, 3000, end)
            except Exception:
                print(f"found with --seed {seed}:", flush=True)
                raise
        seed += 1
    print(f"access: {sum(table.values()):,} calls in {seed - options.seed} rounds; seeds from {options.seed}")
    for reason, count in table.most_common():
        print(f"{reason:>38}  {count:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
