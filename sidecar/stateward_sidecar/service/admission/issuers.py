"""Issuers of tokens, and which claims make a caller a principal, as the file of principals says them. No key, no file.

    [[issuer]]
    issuer = "https://kubernetes.default.svc.cluster.local"
    audience = "stateward"                                          # one that tokens must be for; several in a list
    jwks = "https://kubernetes.default.svc/openid/v1/jwks"          # or the path of a file
    ca = "/run/secrets/stateward-issuer/ca.crt"                     # who signs that server's certificate
    token_file = "/run/secrets/stateward-issuer/token"              # what the daemon shows to that server

    [[principal]]
    name = "booking"
    jwt = { issuer = "https://kubernetes.default.svc.cluster.local", claims = { sub = "system:serviceaccount:team:*" } }

The table of claims has the form of the token: a claim inside of another one is a table inside of a table, so a key may
have dots. A text may have stars, and a list means any of its texts. A claim that is a list in the token, such as
groups, has the value if one of its items does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stateward_sidecar.service.admission.grants import Principal, any_text

ISSUERS_MAX, AUDIENCES_MAX, CLAIMS_MAX, VALUES_MAX, TEXT_CHARS_MAX = 20, 20, 20, 100, 1000
_ISSUER_KEYS = {"issuer", "audience", "jwks", "ca", "token_file"}
_JWT_KEYS = {"issuer", "claims"}


class Source(NamedTuple):
    """Where the keys of an issuer are."""

    jwks: str
    """An https URL, or a path."""
    ca: Path | None = None
    token_file: Path | None = None

    @property
    def is_url(self) -> bool:
        """Whether the keys come over the network."""
        return self.jwks.startswith("https://")


class Claim(NamedTuple):
    """What one claim of a token must be."""

    path: tuple[str, ...]
    pattern: re.Pattern[str] | None
    """Of a text; None = it is no text."""
    exact: int | bool | None

    def fits(self, claims: Mapping[str, Any]) -> bool:
        """Whether the claims of a token have it."""
        found: Any = claims
        for key in self.path:
            if not isinstance(found, dict) or key not in found:
                return False
            found = found[key]
        return any(map(self._is, found if isinstance(found, list) else [found]))

    def _is(self, value: Any) -> bool:
        if self.pattern is not None:
            return isinstance(value, str) and self.pattern.fullmatch(value) is not None
        return type(value) is type(self.exact) and bool(value == self.exact)


@dataclass(slots=True)
class Issuer:
    """Somebody whose tokens count."""

    url: str
    audiences: tuple[str, ...]
    source: Source
    rules: list[tuple[tuple[Claim, ...], Principal]] = field(default_factory=list)
    """In the order of the file."""

    def find(self, claims: Mapping[str, Any]) -> Principal | None:
        """Returns the first principal whose claims a token has."""
        return next((who for wanted, who in self.rules if all(each.fits(claims) for each in wanted)), None)


def parse_issuers(told: Any) -> dict[str, Issuer]:
    """Returns the `[[issuer]]` tables by their names. Raises ValueError, which names the place."""
    if not isinstance(told, list) or len(told) > ISSUERS_MAX:
        raise ValueError(f"issuer is no list of at most {ISSUERS_MAX} tables; give [[issuer]] tables")
    found = dict[str, Issuer]()
    for number, each in enumerate(told, 1):
        try:
            made = _parse_issuer(each)
            if made.url in found:
                raise ValueError(f"there is another issuer {made.url!r}")
        except ValueError as error:
            raise ValueError(f"issuer {number}: {error}") from None
        found[made.url] = made
    return found


def _parse_issuer(told: Any) -> Issuer:
    _check_keys(told, _ISSUER_KEYS)
    jwks = _text(told, "jwks")
    if jwks.startswith("https://"):
        try:
            address = urlsplit(jwks)
            is_fine = bool(address.hostname) and address.port != 0 and not (address.username or address.fragment)
        except ValueError:
            is_fine = False
        if not is_fine or not jwks.isascii() or not jwks.isprintable() or " " in jwks:
            raise ValueError(f"jwks: {jwks!r} is no URL")
        source = Source(jwks, _path(told, "ca"), _path(told, "token_file"))
    else:
        if not jwks.startswith("/"):
            raise ValueError("jwks is neither an https:// URL nor the absolute path of a file")
        if given := sorted({"ca", "token_file"} & told.keys()):
            raise ValueError(f"{given[0]} is for an https:// URL, and jwks is a file")
        source = Source(jwks)
    audiences = told.get("audience")
    audiences = [audiences] if isinstance(audiences, str) else audiences
    if not isinstance(audiences, list) or not 0 < len(audiences) <= AUDIENCES_MAX or not all(map(_is_text, audiences)):
        raise ValueError(f"audience is required: whom tokens must be for, 1 to {AUDIENCES_MAX} texts")
    return Issuer(_text(told, "issuer"), tuple(audiences), source)


def add_rule(told: Any, principal: Principal, issuers: Mapping[str, Issuer]) -> None:
    """Tells the issuer that a principal's `jwt` names which tokens are the principal's. Raises ValueError."""
    try:
        issuer, claims = _parse_jwt(told, issuers)
    except ValueError as error:
        raise ValueError(f"jwt: {error}") from None
    issuer.rules.append((claims, principal))


def _parse_jwt(told: Any, issuers: Mapping[str, Issuer]) -> tuple[Issuer, tuple[Claim, ...]]:
    _check_keys(told, _JWT_KEYS)
    name = _text(told, "issuer")
    if name not in issuers:
        raise ValueError(f"issuer: there is no [[issuer]] with issuer = {name!r}")
    claims = told.get("claims")
    if not isinstance(claims, dict) or not claims:
        raise ValueError('claims is required: what a token must say, such as { sub = "…" }')
    return issuers[name], tuple(_parse_claims(claims))


def _parse_claims(told: dict[str, Any]) -> Iterator[Claim]:
    waiting: list[tuple[tuple[str, ...], Any]] = [((key,), value) for key, value in told.items()]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        if count > CLAIMS_MAX:
            raise ValueError(f"claims has more than {CLAIMS_MAX} entries")
        where = f"claims.{'.'.join(path)}"
        if isinstance(value, dict):
            if not value:
                raise ValueError(f"{where} is an empty table")
            waiting += [((*path, key), each) for key, each in value.items()]
        elif isinstance(value, bool | int):
            yield Claim(path, None, value)
        else:
            texts = value if isinstance(value, list) else [value]
            if not 0 < len(texts) <= VALUES_MAX or not all(map(_is_text, texts)):
                raise ValueError(f"{where} is no text, number or table, and no list of 1 to {VALUES_MAX} texts")
            yield Claim(path, re.compile("|".join(f"(?:{any_text(each)})" for each in texts), re.DOTALL), None)


def _check_keys(told: Any, known: set[str]) -> None:
    if not isinstance(told, dict):
        raise ValueError("is no table")
    if unknown := told.keys() - known:
        raise ValueError(f"{min(unknown)!r} is not known; give {', '.join(sorted(known))}")


def _text(told: dict[str, Any], key: str) -> str:
    value = told.get(key)
    if not _is_text(value):
        raise ValueError(f"{key} is required: a text of at most {TEXT_CHARS_MAX} characters")
    return str(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX


def _path(told: dict[str, Any], key: str) -> Path | None:
    if key not in told:
        return None
    found = _text(told, key)
    if not found.startswith("/"):
        raise ValueError(f"{key} is no absolute path of a file")
    return Path(found)
