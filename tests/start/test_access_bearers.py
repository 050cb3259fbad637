"""The danger: a token that nobody of trust has made opens threads, or one that is over; or a good one opens nothing."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from tests.start.bearing import bearing, callers_of, fault_of, is_agent, when, who, write
from tests.start.issuer import (
    AUDIENCE,
    BOTH,
    KINDS,
    NAME,
    RULES,
    SUB,
    IssuerServer,
    access_text,
    authorities,
    key_set,
    private_key,
    public_jwk,
    raw,
    token,
)

from stateward import Client
from stateward.errors import PermissionDenied, Unauthenticated
from stateward.testing import run_daemon
from stateward.v1 import (
    checkpoint_service_pb2,
    checkpoint_service_pb2_grpc,
    thread_service_pb2,
    thread_service_pb2_grpc,
)
from stateward_sidecar import errors
from stateward_sidecar.app import warnings_of
from stateward_sidecar.errors import IssuerUnavailable, StartError
from stateward_sidecar.service.admission import accessfile, bearers, jwks, keysets
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.service.admission.callers import LOOK_S, Callers
from stateward_sidecar.service.admission.issuers import Source
from stateward_sidecar.service.admission.jwks import KeysWrong, parse_keys, read_keys
from stateward_sidecar.settings import load_settings

GROUPS = {"groups": ["staff", "admins"], "kubernetes.io": {"namespace": "ops-1"}}


ONE = '[[principal]]\nname = "p"\ngrants = ["read */*"]\n'
ONE_TOKEN = f'{ONE}token_sha256 = "{"0" * 64}"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IssuerServer]:
    (tmp_path / "tls").mkdir()
    with IssuerServer(tmp_path / "tls").serving() as found:
        yield found


@pytest.mark.parametrize("wire", ["grpc", "frames"])
@pytest.mark.parametrize("algorithm", KINDS)
def test_a_token_of_kubernetes_opens_what_its_account_may(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch, wire: str, algorithm: str
) -> None:
    """With keys of a real server over TLS, to which the daemon shows its own token. Another account may do nothing."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    own = write(tmp_path / "own", "the-daemon's-own\n")
    path = write(
        tmp_path / "access.toml", access_text(server.url, ca=server.ca, more=f'token_file = "{own}"')
    )
    with run_daemon(tmp_path / "data", access=path) as daemon:
        with Client(daemon.target, token=token(algorithm), namespace="team") as client:
            client.thread("agent-1").append("m", 1)
            with pytest.raises(PermissionDenied):
                client.thread("other-1").append("m", 1)
        with Client(daemon.target, token=token(algorithm, **GROUPS), namespace="team") as client:
            assert client.thread("agent-1").info().version == 1  # agent: the first in the file
        with Client(daemon.target, token=token(algorithm, sub="x", **GROUPS), namespace="team") as client:
            client.thread("other-1").append("m", 1)
        for sub in ("system:serviceaccount:team:other", "system:serviceaccount:team:agent2"):
            with (
                Client(daemon.target, token=token(algorithm, sub=sub)) as client,
                pytest.raises(Unauthenticated, match="no principal has its claims"),
            ):
                client.thread("agent-1").info()
    assert {each.get("authorization") for each in server.requests} == {"Bearer the-daemon's-own"}


def hostile() -> Iterator[tuple[str, str, str]]:
    """Names, tokens, and what the error says."""
    now = time.time()
    rsa_key = private_key("RS256")
    claims = {"iss": NAME, "aud": AUDIENCE, "sub": SUB, "exp": now + 600}
    pem = rsa_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for name in ("none", "None", "nOnE", ""):
        yield f"alg {name!r}", raw({"alg": name, "kid": "RS256"}, claims, b""), "is not signed with RS256"
    yield "no alg", raw({"kid": "RS256"}, claims), "is not signed with RS256"
    signed = jwt.api_jws.PyJWS()
    hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    begun = raw({"alg": "HS256", "kid": "RS256"}, claims, b"").rsplit(".", 1)[0]
    made = base64.urlsafe_b64encode(hmac.sign(begun.encode(), pem)).rstrip(b"=").decode()
    yield "the public key as a password", f"{begun}.{made}", "is not signed with RS256"
    for algorithm in ("RS512", "PS256", "RS384"):
        made = signed.encode(json.dumps(claims).encode(), rsa_key, algorithm, {"kid": "RS256"})
        yield algorithm, made, "is not signed with RS256"
    yield "the other key's algorithm", token("ES256", kid="RS256"), "is not signed with RS256"
    yield "no kid", token(kid=None), "does not name its key"
    yield "a kid that is no text", raw({"alg": "RS256", "kid": 7}, claims), "does not name its key"
    yield "an unknown kid", token(kid="unknown"), "its issuer does not publish|are not here"
    yield "another key", token(key=private_key("RS256", 1)), "is not signed by the key"
    yield "another key, ES256", token("ES256", key=private_key("ES256", 1)), "is not signed by the key"
    own = public_jwk(private_key("RS256", 1), "RS256")
    for header in ({"jwk": own}, {"jku": "https://evil.example"}, {"x5u": "https://evil.example"}):
        yield f"its own {min(header)}", jwt.encode(
            claims, private_key("RS256", 1), "RS256", {"kid": "RS256", **header}
        ), "is not signed by the key"
    yield "crit", raw({"alg": "RS256", "kid": "RS256", "crit": ["exp"]}, claims), "does not name its key"
    for issuer in ("https://evil.example", NAME + "/", "", 7, None, [NAME]):
        given = {**claims, "iss": issuer}
        yield f"issuer {issuer!r}", raw({"alg": "RS256", "kid": "RS256"}, given), "does not name"
    for audience in ("other", ["other"], "statewar", "stateward2"):
        yield f"audience {audience!r}", token(aud=audience), "is for another audience"
    for audience in (7, [], {"stateward": 1}, None, [["stateward"]], [7]):
        yield f"audience {audience!r}", token(aud=audience), "audience|malformed"
    for ends in (None, "soon", [], {}, float("nan"), float("inf"), str(int(now + 600)), True, 10**400):
        yield f"exp {ends!r}", token(exp=ends), "malformed|when it ends|expired"
    for seconds in (1, 59, 600):
        yield f"expired for {seconds} s", token(for_s=-seconds), "has expired"
    yield "not yet", token(nbf=now + 300), "is not valid yet"
    yield "issued tomorrow", token(iat=now + 86400), "is not valid yet"
    good = token()
    head, body, end = good.split(".")
    yield "more", f"{good}.", "not valid"
    yield "less", f"{head}.{body}", "not valid"
    yield "no signature", f"{head}.{body}.", "is not signed by|malformed"
    yield "a cut signature", good[:-8], "is not signed by|malformed"
    yield "of another", f"{head}.{token(sub='x').split('.')[1]}.{end}", "is not signed by"
    yield "no header", f".{body}.{end}", "malformed"
    yield "no claims", f"{head}..{end}", "malformed"
    yield "a list of claims", raw({"alg": "RS256", "kid": "RS256"}, [1]), "malformed"
    yield "a list of headers", raw([1], claims), "malformed"
    yield "deep", raw(b"[" * 3000, claims), "malformed"
    yield "deep claims", raw({"alg": "RS256", "kid": "RS256"}, b'{"a":' * 1000), "malformed"
    yield "huge", raw({"alg": "RS256", "kid": "RS256"}, {**claims, "x": "x" * 7000}), "more than 8192"
    yield "a sub that is no text", token(sub=7), "malformed|no principal"
    yield "no sub", token(sub=None), "no principal has its claims"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Callers:
    return callers_of(tmp_path_factory.mktemp("known"))


def test_a_token_that_is_wrong_opens_nothing(known: Callers) -> None:
    """The error says what is wrong, and never shows the token. None is remembered."""
    for name, made, said in hostile():
        error = fault_of(who, known, made)
        assert isinstance(error, errors.Unauthenticated | IssuerUnavailable), (name, error)
        assert re.search(said, error.message), (name, error.message)
        assert not made or made not in error.message, name
        assert len(error.message) < 600, name
        assert not known._bearers._proofs, name  # type: ignore[union-attr]


def test_wrong_tokens_get_nothing_from_a_daemon(tmp_path: Path) -> None:
    """Each of them over a real connection. None is a failure of the daemon, and a good one still opens."""
    (tmp_path / "jwks.json").write_bytes(BOTH)
    path = write(tmp_path / "access.toml", access_text(tmp_path / "jwks.json"))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel,
    ):
        stub = thread_service_pb2_grpc.ThreadServiceStub(channel)
        asked = thread_service_pb2.ListThreadsRequest(namespace="team")
        for name, made, _ in hostile():
            with pytest.raises(grpc.RpcError) as failed:
                stub.ListThreads(asked, metadata=bearing(made), timeout=20)
            if name == "huge":
                continue  # gRPC itself may refuse it
            assert "stateward" in str(failed.value.trailing_metadata()), name  # type: ignore[attr-defined]
            assert failed.value.code().name in ("UNAUTHENTICATED", "UNAVAILABLE"), name  # type: ignore[attr-defined]
        stub.ListThreads(asked, metadata=bearing(token()), timeout=20)


@cache
def good_token(algorithm: str) -> str:
    return token(algorithm, for_s=86400)


@given(st.data())
def test_no_change_of_a_good_token_is_one(known: Callers, data: st.DataObject) -> None:
    """Bytes are changed, cut and moved; parts are of another token, or of anything."""
    good = good_token(data.draw(st.sampled_from(KINDS)))
    parts = good.split(".")
    at = data.draw(st.integers(0, 2))
    anything = st.one_of(
        st.text(max_size=40), st.binary(max_size=60).map(lambda each: base64.urlsafe_b64encode(each).decode()),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
            lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(
                ["alg", "kid", "iss", "aud", "exp", "nbf", "crit", "b64", "typ"]), each, max_size=4),
            max_leaves=8,
        ).map(lambda each: base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")),
    )  # fmt: skip
    way = data.draw(st.sampled_from(["byte", "cut", "part", "swap", "text"]))
    if way == "byte":
        place = data.draw(st.integers(0, len(good) - 1))
        letter = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
        made = good[:place] + letter + good[place + 1 :]
    elif way == "cut":
        made = good[: data.draw(st.integers(0, len(good) - 1))]
    elif way == "part":
        parts[at] = data.draw(anything)
        made = ".".join(parts)
    elif way == "swap":
        made = ".".join(data.draw(st.permutations(parts)))
    else:
        made = data.draw(st.text())
    if _says_the_same(made, good):
        return
    with pytest.raises((errors.Unauthenticated, IssuerUnavailable)):
        known.identify(bearing(made))


def _says_the_same(made: str, good: str) -> bool:
    """Whether it differs in bits only that base64 leaves out."""
    try:
        return [base64.urlsafe_b64decode(part + "==") for part in made.strip().split(".")] == [
            base64.urlsafe_b64decode(part + "==") for part in good.split(".")
        ] and made.strip().split(".")[:2] == good.split(".")[:2]
    except ValueError:
        return False


def test_a_new_key_is_found_and_an_old_one_ends(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer signs with a key that the daemon does not know; the client does not notice. When the issuer takes the
    old key away, its tokens open nothing, also those that were good before."""
    monkeypatch.setattr(keysets, "UNKNOWN_PAUSE_S", 0.2)
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    old = token("RS256")
    when(lambda: is_agent(callers, old))
    server.body = key_set(public_jwk(private_key("RS256", 1), "next"))
    time.sleep(0.3)
    fresh = token(kid="next", key=private_key("RS256", 1))
    with pytest.raises(IssuerUnavailable, match="try again"):
        who(callers, fresh)
    when(lambda: is_agent(callers, fresh))
    callers._look()
    assert isinstance(fault_of(who, callers, old), errors.Unauthenticated | IssuerUnavailable)


def test_a_stranger_does_not_make_the_daemon_ask_its_issuer(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tokens with keys that nobody knows, however long the machine takes for them: one more request, and
    not one for each."""
    now_s = [1000.0]
    for module in ("keysets", "callers"):
        monkeypatch.setattr(f"stateward_sidecar.service.admission.{module}.monotonic", lambda: now_s[0])
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    good = token()
    when(lambda: is_agent(callers, good))
    now_s[0] += keysets.UNKNOWN_PAUSE_S
    for number in range(1000):
        with pytest.raises((errors.Unauthenticated, IssuerUnavailable)):
            who(callers, token("ES256", kid=f"kid {number}", key=private_key("ES256")))
    when(lambda: len(server.requests) == 2)
    time.sleep(0.5)
    assert len(server.requests) == 2
    assert who(callers, good) == "agent"


def test_keys_outlive_their_server_for_an_hour(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away, tokens are good for an hour; then none is, also one that was found good before, until it is
    back."""
    now_s, stamp = [1000.0], time.time()
    for module in ("keysets", "callers", "bearers"):
        monkeypatch.setattr(f"stateward_sidecar.service.admission.{module}.monotonic", lambda: now_s[0])
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    old = token(for_s=9e9, iat=stamp)
    when(lambda: is_agent(callers, old))
    keys = next(iter(callers._bearers._sets.values()))  # type: ignore[union-attr]

    def goes_on(seconds: float, *, is_read: bool) -> None:
        """Time passes, and the read that it brings ends."""
        asked = len(server.requests)
        now_s[0] += seconds
        callers._look()
        if is_read:
            when(lambda: len(server.requests) > asked and keys._outcome is not None)
        now_s[0] += LOOK_S
        callers._look()

    server.behave = lambda handler: handler.send_error(503)
    goes_on(keysets.REFRESH_S - 2, is_read=False)
    goes_on(2, is_read=True)
    assert "503" in keys.why
    left_s = 1000 + keysets.STALE_S - now_s[0] - 30
    for _ in range(3):
        goes_on(left_s / 3, is_read=True)
        assert who(callers, old) == "agent"
        assert who(callers, token()) == "agent"
    changes = callers.changes
    goes_on(60, is_read=True)
    assert callers.changes > changes
    for each in (old, token()):
        with pytest.raises(IssuerUnavailable, match="not here at present") as refused:
            who(callers, each)
        assert "503" not in refused.value.message
    server.behave = None
    goes_on(keysets.RETRY_S, is_read=True)
    assert who(callers, old) == "agent"


def test_a_daemon_starts_while_its_issuer_is_away(tmp_path: Path, server: IssuerServer) -> None:
    """Calls wait for it, as they do for a daemon."""
    server.behave = lambda handler: handler.send_error(500)
    path = write(tmp_path / "access.toml", access_text(server.url, ca=server.ca))
    with run_daemon(tmp_path / "data", access=path) as daemon:
        when(lambda: server.requests)
        with Client(daemon.target, token=token(), namespace="team", retry_timeout=0) as client:
            with pytest.raises(Exception, match="not here at present") as failed:
                client.thread("agent-1").info()
            assert type(failed.value).__name__ == "IssuerUnavailable"
        server.behave = None
        with Client(daemon.target, token=token(), namespace="team", retry_timeout=60) as client:
            client.thread("agent-1").append("m", 1)


def slowly(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:  # the daemon leaves
        handler.wfile.write(b" ")
        time.sleep(0.05)


def half(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(BOTH)


def elsewhere(handler: Any) -> None:
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere")
    handler.end_headers()


def endless_headers(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X: " + b"x" * 60000 + b"\r\n")


def huge(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def nothing(handler: Any) -> None:
    handler.rfile.read(1)


@pytest.mark.parametrize("behave", [slowly, half, elsewhere, endless_headers, huge, nothing])
def test_a_server_cannot_keep_the_daemon_or_lead_it_elsewhere(
    server: IssuerServer, monkeypatch: pytest.MonkeyPatch, behave: Callable[[Any], None]
) -> None:
    """An answer that never ends, is endless, a half, or a redirect is no set of keys."""
    monkeypatch.setattr(jwks, "FETCH_S", 1.0)
    server.behave = behave
    began = time.monotonic()
    with pytest.raises(KeysWrong, match="cannot be read"):
        read_keys(Source(server.url, server.ca))
    assert time.monotonic() - began < 60
    assert len(server.requests) == 1


def test_a_handshake_that_never_ends_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Something listens there that says a byte at a time, or nothing."""
    monkeypatch.setattr(jwks, "FETCH_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(KeysWrong, match="cannot be read"):
            read_keys(Source(url))


def test_only_a_server_of_its_authority_is_believed(server: IssuerServer, tmp_path: Path) -> None:
    """Neither the authorities of the machine nor another one vouch for it, nor does it stand for another name."""
    assert set(read_keys(Source(server.url, server.ca))) == set(KINDS)
    other, _ = authorities(tmp_path, "other")
    for source in (Source(server.url), Source(server.url, other)):
        with pytest.raises(KeysWrong, match="CERTIFICATE_VERIFY_FAILED"):
            read_keys(source)
    with pytest.raises(KeysWrong, match="cannot be read"):
        read_keys(Source(server.url.replace("127.0.0.1", "127.0.0.2"), server.ca))
    assert len(server.requests) == 1
    for wrong in (tmp_path / "missing", write(tmp_path / "wrong", "x")):
        with pytest.raises(KeysWrong, match="cannot be read"):
            read_keys(Source(server.url, wrong))


def test_certificates_of_common_clusters_are_taken(
    server: IssuerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many clusters lack the id of the authority's key, which Python asks for since 3.13."""
    ca, certificate = authorities(tmp_path, "plain", has_key_ids=False)
    make = ssl.create_default_context

    def strict(**more: Any) -> ssl.SSLContext:
        made = make(**more)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    server.show(certificate)
    assert set(read_keys(Source(server.url, ca))) == set(KINDS)


def test_the_token_of_the_daemon_is_read_anew(server: IssuerServer, tmp_path: Path) -> None:
    """For each request, because kubelet replaces it."""
    own = write(tmp_path / "own", "first")
    for text in ("first", "second"):
        own.write_text(text)
        read_keys(Source(server.url, server.ca, own))
    assert [each["authorization"] for each in server.requests] == ["Bearer first", "Bearer second"]
    for text in ("", "a b", "a\r\nX: y", "é", "x" * (17 << 10)):
        own.write_text(text)
        with pytest.raises(KeysWrong, match="cannot be read"):
            read_keys(Source(server.url, server.ca, own))
    assert len(server.requests) == 2


def wrong_sets() -> Iterator[tuple[str, bytes, str]]:
    """What is no set of keys."""
    weak = rsa.generate_private_key(65537, 1024)
    curve = ec.generate_private_key(ec.SECP384R1())
    good, other = public_jwk(private_key("RS256"), "a"), public_jwk(private_key("ES256"), "a")
    yield "no JSON", b"-----BEGIN CERTIFICATE-----", "no JSON"
    yield "nothing", b"", "no JSON"
    yield "deep", b"[" * 100_000, "no JSON"
    yield "a list", b"[]", "no set"
    yield "no keys", b"{}", "no set"
    yield "texts", b'{"keys": ["a"]}', "no set"
    yield "none", b'{"keys": []}', "no key for"
    yield "many", key_set(*[good] * 101), "no set"
    yield "twice", key_set(good, other), "two keys with the id"
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key("RS256")))
    yield "private", key_set({**private, "kid": "a", "use": "sig"}), "private"
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private_key("ES256")))
    yield "private beside", key_set(good, {**private, "kid": "b"}), "private"
    yield "symmetric", key_set(good, {"kty": "oct", "k": "AAAA", "kid": "b"}), "private"
    yield "weak", key_set(public_jwk(weak, "a")), "no key for"
    yield "P-384", key_set({**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(curve.public_key())), "kid": "a"}), "no key"
    for change in ({"kid": ""}, {"kid": 7}, {"kid": None}, {"use": "enc"}, {"alg": "RS512"}, {"alg": "none"},
                   {"alg": "HS256"}, {"key_ops": ["encrypt"]}, {"key_ops": 7}, {"kty": "OKP"}, {"kty": []},
                   {"n": "A" * 3000}, {"e": "A" * 3000}):  # fmt: skip
        yield str(change)[:30], key_set({**good, **change}), "no key for"
    for change in ({"n": 7}, {"n": ""}, {"e": ""}, {"n": "AA"}, {"e": "AA"}, {"n": "!"}):
        yield str(change), key_set({**good, **change}), "none|no key"
    for change in ({"x": 7}, {"x": ""}, {"x": "AA"}, {"y": other["x"]}):
        yield str(change)[:30], key_set({**other, **change}), "is none"


def test_a_set_that_is_wrong_has_no_keys() -> None:
    for name, made, said in wrong_sets():
        error = fault_of(parse_keys, made)
        assert isinstance(error, KeysWrong), (name, error)
        assert re.search(said, str(error)), (name, error)


def test_other_kinds_of_keys_may_stand_beside() -> None:
    """An issuer has keys for others, too."""
    curve = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP521R1()).public_key()))
    okp = {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "o"}
    good = public_jwk(private_key("RS256"), "good")
    del good["alg"], good["use"]
    assert set(parse_keys(key_set({**curve, "kid": "c"}, okp, good, {"kty": "new", "kid": "n"}))) == {"good"}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda each: st.lists(each, max_size=3)
    | st.dictionaries(st.sampled_from(["keys", "kty", "crv", "kid", "n", "e", "x", "y", "use", "alg", "key_ops"]), each,
                      max_size=6),
    max_leaves=12,
)  # fmt: skip


MEMBERS = st.sampled_from(["kid", "n", "e", "use", "alg", "key_ops", "kty", "crv"])


@given(st.binary(max_size=200) | JSON.map(lambda each: json.dumps({"keys": each}).encode())
       | st.lists(JSON, max_size=3).map(lambda each: json.dumps({"keys": each}).encode())
       | st.dictionaries(MEMBERS, JSON, max_size=3).map(
           lambda each: key_set({**public_jwk(private_key("RS256"), "a"), **each})))  # fmt: skip
def test_no_set_makes_the_daemon_fail(made: bytes) -> None:
    """Whatever an issuer answers is a set of keys or KeysWrong."""
    with suppress(KeysWrong):
        assert parse_keys(made)


@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_a_stream_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    """Though no call comes. That of a longer token goes on."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    (tmp_path / "jwks.json").write_bytes(BOTH)
    path = write(tmp_path / "access.toml", access_text(tmp_path / "jwks.json"))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=token(), namespace="team") as longer,
    ):
        longer.thread("agent-1").append("m", 1)
        with longer.thread("agent-1").watch() as goes_on:
            ends_s = time.time() + 4
            with Client(daemon.target, token=token(exp=ends_s), namespace="team") as client:
                with client.thread("agent-1").watch() as watched, pytest.raises(Unauthenticated, match="expired"):
                    next(watched)
                assert -0.1 < time.time() - ends_s < 60
                with pytest.raises(Unauthenticated, match="expired"):
                    client.thread("agent-1").info()
            longer.thread("agent-1").append("m", 2)
            assert next(goes_on)


def test_a_stream_ends_with_its_rule_and_with_its_key(tmp_path: Path) -> None:
    """When the file of principals, or the issuer, takes away what allowed it."""
    keys = tmp_path / "jwks.json"
    keys.write_bytes(BOTH)
    path = write(tmp_path / "access.toml", access_text(keys))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=token("ES256", sub="x", **GROUPS), namespace="team") as operator,
        Client(daemon.target, token=token(), namespace="team") as client,
    ):
        operator.thread("agent-1").append("m", 1)
        with operator.thread("agent-1").watch() as goes_on:
            with client.thread("agent-1").watch() as watched:
                path.write_text(access_text(keys, rules=RULES.replace(SUB, SUB + "2")))
                with pytest.raises(Unauthenticated):
                    next(watched)
            path.write_text(access_text(keys))
            when(lambda: _may(client))
            with client.thread("agent-1").watch() as watched:
                keys.write_bytes(key_set(public_jwk(private_key("ES256"), "ES256")))
                with pytest.raises(Unauthenticated):
                    next(watched)
            assert not _may(client)
            operator.thread("agent-1").append("m", 2)
            assert next(goes_on)


def _may(client: Client) -> bool:
    try:
        client.thread("agent-1").info()
    except Unauthenticated:
        return False
    return True


def test_what_is_remembered_is_bounded_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is looked at once, until it ends; the oldest give way."""
    monkeypatch.setattr(bearers, "PROOFS_MAX", 10)
    callers, now_s = callers_of(tmp_path), [time.time()]
    monkeypatch.setattr(bearers, "time", lambda: now_s[0])
    checked = list[str]()
    check = bearers.Bearers._check
    monkeypatch.setattr(bearers.Bearers, "_check", lambda *given: (checked.append(given[-1]), check(*given))[1])
    made = [token("ES256", jti=str(number), for_s=60) for number in range(30)]
    for each in (*made, made[-1], made[-1]):
        assert who(callers, each) == "agent"
    assert checked == made
    assert len(callers._bearers._proofs) == 10  # type: ignore[union-attr]
    now_s[0] += 61
    for each in (made[-1], made[-1], made[0]):
        with pytest.raises(errors.Unauthenticated, match="has expired"):
            who(callers, each)
    assert len(callers._bearers._proofs) == 9  # type: ignore[union-attr]


def test_a_waiting_answer_ends_with_its_token(tmp_path: Path) -> None:
    """A call that began in time, and whose answer comes too late."""
    (tmp_path / "jwks.json").write_bytes(BOTH)
    path = write(tmp_path / "access.toml", access_text(tmp_path / "jwks.json"))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=token(), namespace="team") as longer,
        grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel,
    ):
        longer.thread("agent-1").append("m", 1)
        asked = checkpoint_service_pb2.ReadLogRequest(namespace="team", thread="agent-1", log="m", from_index=1)
        asked.wait.seconds = 30
        read = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel).ReadLog
        ends_s = time.time() + 4
        waiting = read.future(asked, timeout=60, metadata=bearing(token(exp=ends_s)))
        time.sleep(ends_s + 0.2 - time.time())
        longer.thread("agent-1").append("m", 2)
        assert waiting.exception().code() is grpc.StatusCode.UNAUTHENTICATED


def test_claims_are_compared_as_the_file_says(tmp_path: Path) -> None:
    """Exactly or with stars, at any depth, with keys that have dots, in lists; numbers and truths are none of texts."""
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ('sub = "a*c"', {"sub": "abc"}, True),
        ('sub = "a*c"', {"sub": "ac"}, True),
        ('sub = "a*c"', {"sub": "abcd"}, False),
        ('sub = "a.c"', {"sub": "abc"}, False),
        ('sub = "a"', {"sub": "a\n"}, False),
        ('sub = "*"', {"sub": "a\nb"}, True),
        ('sub = ["a", "b"]', {"sub": "b"}, True),
        ('sub = ["a", "b"]', {"sub": "ab"}, False),
        ("x = 1", {"x": 1}, True),
        ("x = 1", {"x": True}, False),
        ("x = 1", {"x": "1"}, False),
        ("x = true", {"x": True}, True),
        ("x = true", {"x": 1}, False),
        ('x = "1"', {"x": 1}, False),
        ('x = "None"', {}, False),
        ('groups = "a"', {"groups": ["b", "a"]}, True),
        ('groups = "a"', {"groups": [["a"]]}, False),
        ('"kubernetes.io" = { namespace = "t", pod = { name = "p-*" } }',
         {"kubernetes.io": {"namespace": "t", "pod": {"name": "p-0"}}}, True),
        ('"kubernetes.io" = { namespace = "t", pod = { name = "p-*" } }',
         {"kubernetes.io": {"namespace": "t", "pod": {"name": "q-0"}}}, False),
        ('"kubernetes.io".pod.name = "p"', {"kubernetes.io": {"pod": "p"}}, False),
        ('"kubernetes.io".namespace = "t"', {"kubernetes": {"io": {"namespace": "t"}}}, False),
        ('"kubernetes.io".namespace = "t"', {"kubernetes.io": [{"namespace": "t"}]}, False),
        ('sub = "a", x = 1', {"sub": "a"}, False),
    ]  # fmt: skip
    for number, (wanted, said, fits) in enumerate(cases):
        rules = f'{ONE}jwt = {{ issuer = "{NAME}", claims = {{ {wanted} }} }}'
        (tmp_path / str(number)).mkdir()
        callers = callers_of(tmp_path / str(number), rules=rules)
        given = token("ES256", **{"kubernetes.io": None, "sub": None, **said})
        if fits:
            assert who(callers, given) == "p", wanted
        else:
            with pytest.raises(errors.Unauthenticated, match="no principal"):
                who(callers, given)


def test_the_file_of_the_page_admits_the_pods_that_it_names(tmp_path: Path, repository: Path) -> None:
    """With keys from a file, and tokens as kubelet brings them."""
    text = (repository / "docs/operations.md").read_text().partition("```toml\n[[issuer]]")[2].partition("```")[0]
    path = write(tmp_path / "access.toml", f"[[issuer]]{text}")
    (issuer,) = read_access_file(path).issuers.values()
    assert (issuer.source.is_url, str(issuer.source.token_file)) == (True, "/run/secrets/stateward-issuer/token")
    (tmp_path / "jwks.json").write_bytes(BOTH)
    lines = [line for line in path.read_text().split("\n") if not line.startswith(("ca =", "token_file ="))]
    text = re.sub("jwks = .*", f'jwks = "{tmp_path / "jwks.json"}"', "\n".join(lines))
    callers = Callers(None, write(tmp_path / "access.toml", text))
    assert who(callers, token(iss=issuer.url, sub="system:serviceaccount:team:booking")) == "booking"
    assert who(callers, token(iss=issuer.url)) == "team"
    elsewhere = {"kubernetes.io": {"namespace": "team", "pod": {"name": "other-0"}}}
    assert "no principal" in str(fault_of(who, callers, token(iss=issuer.url, **elsewhere)))


OTHER_ISSUER = access_text("/jwks")
WRONG_FILES = {
    "http": (access_text("http://127.0.0.1/jwks"), "jwks is neither an https"),
    "a relative path": (access_text("jwks.json"), "jwks is neither an https"),
    "a user in the URL": (access_text("https://a:b@host/jwks"), "is no URL"),
    "a port that is none": (access_text("https://host:99999/jwks"), "is no URL"),
    "a line end in the URL": (access_text("https://host/\\r\\nX: y"), "is no URL"),
    "no host": (access_text("https:///jwks"), "is no URL"),
    "a ca of a file": (access_text("/jwks", more='ca = "/ca"'), "ca is for an https"),
    "a relative ca": (access_text("https://host/", more='ca = "ca"'), "ca is no absolute path"),
    "an unknown key": (access_text("/jwks", more='algorithms = ["none"]'), "'algorithms' is not known"),
    "no audience": (access_text("/jwks").replace('audience = "stateward"', ""), "audience is required"),
    "an empty audience": (access_text("/jwks").replace('"stateward"', '""'), "audience is required"),
    "no audiences": (access_text("/jwks").replace('"stateward"', "[]"), "audience is required"),
    "no issuer": (access_text("/jwks").replace(f'issuer = "{NAME}"\naud', "aud"), "issuer 1: issuer is required"),
    "two issuers": (access_text("/jwks", rules=OTHER_ISSUER), "issuer 2: there is another issuer"),
    "a list": ("issuer = [1]\n" + RULES, "issuer 1: is no table"),
    "a table": ("[issuer]\nissuer = 'x'\n" + RULES, "give [[issuer]] tables"),
    "an unknown issuer": (RULES, "jwt: issuer: there is no [[issuer]]"),
    **{f"claims: {text}": (access_text("/jwks", rules=f"{ONE}[principal.jwt]\nissuer = '{NAME}'\n{text}\n"), said)
       for text, said in (
           ("", "jwt: claims is required"),
           ("claims = {}", "jwt: claims is required"),
           ("claims = 'x'", "jwt: claims is required"),
           ("claims = { a = {} }", "claims.a is an empty table"),
           ("claims = { a = { b = '' } }", "claims.a.b is no text"),
           ("claims = { a = [1] }", "claims.a is no text"),
           ("claims = { a = [] }", "claims.a is no text"),
           ("claims = { a = 1.5 }", "claims.a is no text"),
           ("claims = { a = 2020-01-01 }", "claims.a is no text"),
           ("claims.a = 1\naudience = 'x'", "'audience' is not known"),
           ("".join(f"claims.c{number} = 1\n" for number in range(21)), "more than 20"),
       )},
    "a text": (access_text("/jwks", rules=f'{ONE}jwt = "x"'), "jwt: is no table"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_names_the_place(tmp_path: Path, name: str) -> None:
    text, said = WRONG_FILES[name]
    with pytest.raises(StartError) as failed:
        read_access_file(write(tmp_path / "access.toml", text))
    assert said in failed.value.message


def test_a_file_of_keys_that_is_wrong_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the file has a private"):
        callers_of(tmp_path, key_set({"kty": "oct", "k": "AAAA", "kid": "b"}))


def test_keys_of_a_file_are_read_when_it_changes(tmp_path: Path) -> None:
    """Also through a link, as a ConfigMap is mounted. One that is wrong changes nothing."""
    first, second = tmp_path / "1", tmp_path / "2"
    for place, keys in ((first, BOTH), (second, key_set(public_jwk(private_key("RS256", 1), "next")))):
        place.mkdir()
        (place / "jwks.json").write_bytes(keys)
    (tmp_path / "now").symlink_to(first)
    callers = Callers(None, write(tmp_path / "access.toml", access_text(tmp_path / "now" / "jwks.json")))
    old, fresh = token(), token(kid="next", key=private_key("RS256", 1))
    assert who(callers, old) == "agent"
    (first / "jwks.json").write_text("{")
    time.sleep(LOOK_S + 0.1)
    assert who(callers, old) == "agent"
    (tmp_path / "then").symlink_to(second)
    (tmp_path / "then").replace(tmp_path / "now")

    when(lambda: is_agent(callers, fresh))
    when(lambda: isinstance(fault_of(who, callers, old), errors.Unauthenticated))


def test_without_the_extra_the_daemon_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accessfile, "find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"which needs PyJWT: pip install '.*\[jwt\]'"):
        read_access_file(write(tmp_path / "access.toml", access_text("/jwks")))
    read_access_file(
        write(tmp_path / "access.toml", ONE_TOKEN)
    )


def test_a_port_with_principals_asks_for_a_token(tmp_path: Path) -> None:
    """The warnings of the start know it."""
    given = ["--data-dir", str(tmp_path), "--listen", "127.0.0.1:7700"]
    for more, is_said in ((), True), (("--access", "/access.toml"), False), (("--token-file", "/tokens"), False):
        settings, _ = load_settings([*given, *more], {})
        assert any("asks for no token" in each for each in warnings_of(settings)) is is_said


def test_the_file_goes_on_when_the_first_issuer_comes_later(tmp_path: Path) -> None:
    """And its keys are wrong: who was known before still is."""
    path = write(tmp_path / "access.toml", ONE_TOKEN)
    callers = Callers(None, path)
    keys = tmp_path / "jwks.json"
    keys.write_text("{}")
    path.write_text(access_text(keys))
    end = time.monotonic() + 30
    given = token()
    while callers.changes == 0:
        assert time.monotonic() < end
        callers._look()
        time.sleep(0.05)
    with pytest.raises((errors.Unauthenticated, IssuerUnavailable)):
        who(callers, given)
    shutil.copy(write(tmp_path / "good", BOTH.decode()), keys)
    when(lambda: is_agent(callers, given))
