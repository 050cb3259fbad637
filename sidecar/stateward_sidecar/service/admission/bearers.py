"""Who a JSON Web Token says that its bearer is. Used on the event loop only. Loaded if the access file
has issuers.

A token must be signed by a key that its issuer publishes (RS256 or ES256, whichever the key is for), be for an audience
of ours, and say when it ends. A token that was found good is remembered until it ends, by its digest. It is forgotten
when its key is, and when the file of principals changes.

A token whose key is not known is refused for good only by keys that were asked for after it came: its issuer may have
begun to sign with a new key. Until then its calls are to be repeated. Of such tokens the daemon remembers when they
came, and of other wrong ones nothing.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

import jwt

from stateward_sidecar.errors import IssuerUnavailable, StartError, Unauthenticated
from stateward_sidecar.service.admission.grants import Principal
from stateward_sidecar.service.admission.issuers import Issuer, Source
from stateward_sidecar.service.admission.jwks import Key, KeysWrong
from stateward_sidecar.service.admission.keysets import KeySet

TOKEN_CHARS_MAX = 8 << 10
"""Longer tokens are refused before anything is made of them."""
PROOFS_MAX = 1024
"""The most good tokens that are remembered."""
WAITING_MAX = 1024
"""The most tokens with unknown keys that are remembered. One that is forgotten counts as new."""
READ_MS = 200
"""How long a read of keys may take, for the pause of callers. If it takes longer, they ask again."""
SKEW_S = 60
"""How far the clock of an issuer may be ahead. A token ends by our clock."""
_WRONG: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.MissingRequiredClaimError, "says no audience, or not when it ends"),
    (jwt.InvalidSignatureError, "is not signed by the key that it names"),
)
Issuers = Mapping[str, Issuer]


class Proof(NamedTuple):
    """A token that was found good. The token itself is not kept."""

    principal: Principal
    ends_s: float
    """The time at which it ends."""
    issuer: str
    kid: str
    key: Key
    claims: dict[str, Any]


class Bearers:
    """Which principals the bearers of tokens are."""

    def __init__(self, issuers: Issuers) -> None:
        self._sets = dict[Source, KeySet]()
        self._moved = dict[str, KeySet]()  # by issuer: the former keys of one whose new ones were not read yet
        self._proofs = dict[bytes, Proof]()
        self._waiting = dict[bytes, float]()  # when tokens with unknown keys came first
        self._issuers: Issuers = {}
        self.use(issuers)

    def read_files(self) -> None:
        """Reads files of keys at once, and begins to read the others. Raises StartError if a file is wrong."""
        for source, keys in self._sets.items():
            if not source.is_url:
                try:
                    keys.read_now()
                except KeysWrong as error:
                    raise StartError(f"the keys of an issuer of tokens, {source.jwks}: the file {error}") from None
        self.look()

    def use(self, issuers: Issuers) -> None:
        """Takes what the file of principals says now. If it names another place for the keys of an issuer, the issuer's
        former keys count until those are read."""
        former = {name: self._keys_now(each) for name, each in self._issuers.items() if name in issuers}
        known = {keys.source: keys for keys in (*former.values(), *self._sets.values())}
        sources = dict.fromkeys(each.source for each in issuers.values())
        self._sets = {source: known.get(source) or KeySet(source) for source in sources}
        self._issuers = issuers
        self._moved = {name: keys for name, keys in former.items() if keys is not self._sets[issuers[name].source]}
        self._forget_moved()
        self._proofs.clear()

    def look(self) -> bool:
        """Reads keys again if it is time. Returns whether some are others now."""
        has_changed = any([keys.look() for keys in self._sets.values()])  # noqa: C419  all of them
        has_changed |= any([keys.look_at_age() for keys in self._moved.values()])  # noqa: C419
        if has_changed:
            self._forget_moved()
            self._proofs = {digest: proof for digest, proof in self._proofs.items() if self._is_good(proof)}
        return has_changed

    def _forget_moved(self) -> None:
        self._moved = {name: keys for name, keys in self._moved.items() if keys is self._keys_now(self._issuers[name])}

    def _keys_now(self, issuer: Issuer) -> KeySet:
        """The keys that count for an issuer."""
        keys = self._sets[issuer.source]
        moved = None if keys.keys else self._moved.get(issuer.url)
        return moved if moved is not None and moved.keys else keys

    def find(self, digest: bytes, token: str) -> Proof:
        """Returns who bears a token. Raises Unauthenticated; IssuerUnavailable if that cannot be said at present."""
        proof = self._proofs.get(digest)
        if proof is None:
            proof = self._check(digest, token)
            self._waiting.pop(digest, None)
            if len(self._proofs) >= PROOFS_MAX:
                self._proofs.pop(next(iter(self._proofs)))
            self._proofs[digest] = proof
        elif proof.ends_s <= time():
            del self._proofs[digest]
            raise _wrong("has expired")
        return proof

    def again(self, proof: Proof) -> Principal | None:
        """Returns whose token it is by keys and file as they are now; None = nobody's any more."""
        return self._issuers[proof.issuer].find(proof.claims) if self._is_good(proof) else None

    def _is_good(self, proof: Proof) -> bool:
        issuer = self._issuers.get(proof.issuer)
        return (
            issuer is not None
            and _is_for(proof.claims, issuer)
            and self._keys_now(issuer).keys.get(proof.kid) == proof.key
        )

    def _check(self, digest: bytes, token: str) -> Proof:
        if len(token) > TOKEN_CHARS_MAX:
            raise _wrong(f"has {len(token)} characters, more than {TOKEN_CHARS_MAX}")
        header, said = _peek(token)
        kid, named = header.get("kid"), said.get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise _wrong("is of an issuer that the file of principals does not name")
        if not isinstance(kid, str) or not kid or "crit" in header:
            raise _wrong("does not name its key")
        key = self._key_of(issuer, kid, digest)
        if header.get("alg") != key.algorithm:
            raise _wrong(f"is not signed with {key.algorithm}, as its key is")
        claims = _verified(token, key, issuer)
        ends_s = _ends_s(claims["exp"])
        if ends_s <= time():
            raise _wrong("has expired")
        principal = issuer.find(claims)
        if principal is None:
            raise _wrong(f"is good, but no principal has its claims (sub {str(claims.get('sub'))[:200]!a})")
        return Proof(principal, ends_s, issuer.url, kid, key, claims)

    def _key_of(self, issuer: Issuer, kid: str, digest: bytes) -> Key:
        came_s = self._waiting.get(digest, monotonic())
        keys = self._sets[issuer.source]
        found = keys.find(kid) or self._keys_now(issuer).keys.get(kid)
        if found is not None:
            return found
        if digest not in self._waiting:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.pop(next(iter(self._waiting)))
            self._waiting[digest] = came_s
        if keys.is_reading or keys.asked_s < came_s:
            # Why, with the path of a file, is for the log and the doctor: whoever has made a token gets here.
            message = f"the keys of {issuer.url} are not here at present; try again"
            raise IssuerUnavailable(message, retry_after_ms=math.ceil(keys.pause_s * 1e3) + READ_MS)
        raise _wrong("names a key that its issuer does not publish")


def _verified(token: str, key: Key, issuer: Issuer) -> dict[str, Any]:
    """Returns the claims. The algorithm is that of the key, whatever the token says."""
    try:
        found: dict[str, Any] = jwt.decode(
            token, key.public, algorithms=[key.algorithm], audience=issuer.audiences, issuer=issuer.url,
            leeway=SKEW_S, options={"require": ["exp", "iss", "aud"]},
        )  # fmt: skip
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _wrong(next((said for kind, said in _WRONG if isinstance(error, kind)), "is malformed")) from None
    return found


def _ends_s(told: Any) -> float:
    """Returns the time at which a token ends."""
    try:
        if isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told):
            return float(told)
    except OverflowError:  # JSON has whole numbers of any length
        pass
    raise _wrong("does not say when it ends")


def _is_for(claims: Mapping[str, Any], issuer: Issuer) -> bool:
    given = claims["aud"]
    audiences: Iterable[Any] = given if isinstance(given, list) else [given]
    return any(each in issuer.audiences for each in audiences)


def _peek(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns header and claims of a token that may be anybody's. Raises Unauthenticated."""
    try:
        header, claims = (
            json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in token.split(".")[:2]
        )
    except (ValueError, RecursionError):
        raise _wrong("is malformed") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise _wrong("is malformed")
    return header, claims


def _wrong(what: str) -> Unauthenticated:
    return Unauthenticated(f"the call carries a token that {what}")
