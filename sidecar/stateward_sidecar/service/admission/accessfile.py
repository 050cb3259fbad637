"""The file of principals (`--access`): TOML, checked whole before any of it counts.

    [[principal]]
    name = "booking-agents"
    token_sha256 = "…"        # of its token; several in a list, so that a client can change from one to the next
    jwt = { issuer = "…", claims = { sub = "…" } }  # which tokens of an `[[issuer]]`: see `issuers.py`
    tls = "spiffe://…"        # a name in its certificate: a SPIFFE id, or a DNS name; several in a list
    socket = "unix:///path"   # a socket of its own: whoever comes through it without a token; several in a list
    uid = 1000                # of its processes; gid likewise. Only callers on the local wire are known by them
    grants = ["read,write default/booking-*", "signal */*"]
    limits = { calls = 100 }  # and [[namespace]] tables: see limits.py

The file holds digests of tokens, so who reads it can call nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from stateward._version import install_command
from stateward_sidecar.addresses import beside, parse_own_socket
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.admission.grants import Principal, parse_grant
from stateward_sidecar.service.admission.issuers import Issuer, add_rule, parse_issuers
from stateward_sidecar.service.admission.limits import parse_limits, parse_namespaces
from stateward_sidecar.storage.secretfiles import NoTokens
from stateward_sidecar.store.thread.usage import NamespaceLimit

T = TypeVar("T")
PRINCIPALS_MAX, GRANTS_MAX, FILE_BYTES_MAX = 1000, 100, 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
SOCKETS_MAX = 32
"""The most sockets of principals: each has a server, and connections that are its own."""
_KEYS = {"name", "token_sha256", "tls", "socket", "uid", "gid", "jwt", "grants", "limits"}
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/[A-Za-z0-9._-]+)*")
_DNS = re.compile(r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9])?)*")
TLS_CHARS_MAX = 2048


@dataclass(slots=True)
class Identities:
    """Which principal a caller is."""

    tokens: dict[bytes, Principal] = field(default_factory=dict)
    """By the digest of a token."""
    certificates: dict[str, Principal] = field(default_factory=dict)
    """By a name in the certificate of a client."""
    sockets: dict[Path, Principal] = field(default_factory=dict)
    """By the socket on which the daemon hears a caller."""
    uids: dict[int, Principal] = field(default_factory=dict)
    gids: dict[int, Principal] = field(default_factory=dict)
    issuers: dict[str, Issuer] = field(default_factory=dict)
    """By the name that tokens give."""
    namespaces: tuple[NamespaceLimit, ...] = ()
    """What namespaces may take."""

    principals: list[Principal] = field(default_factory=list)
    """Of any identity."""

    def __len__(self) -> int:
        rules = sum(len(issuer.rules) for issuer in self.issuers.values())
        named = len(self.tokens) + len(self.certificates) + len(self.sockets)
        return named + len(self.uids) + len(self.gids) + rules


def read_access_file(path: Path, taken: frozenset[Path] = frozenset()) -> Identities:
    """Returns the principals by their identities. ``taken``: the sockets that are everybody's. Raises StartError, which
    names the place; NoTokens if the file is gone or names nobody."""
    told = _read(path)
    principals, issuers, namespaces = (told.pop(key, []) for key in ("principal", "issuer", "namespace"))
    if told or not isinstance(principals, list):
        what = ", ".join(told) or "principal = …"
        raise StartError(f"the access file {path} has {what}; give [[principal]], [[issuer]] and [[namespace]] tables")
    if not principals:
        raise NoTokens(f"the access file {path} has no [[principal]]")
    if len(principals) > PRINCIPALS_MAX:
        raise StartError(f"the access file {path} has {len(principals)} principals; {PRINCIPALS_MAX} are allowed")
    try:
        found, names = Identities(issuers=parse_issuers(issuers)), set[str]()
    except ValueError as error:
        raise StartError(f"the access file {path}, {error}") from None
    if issuers and find_spec("jwt") is None:
        raise StartError(f"the access file {path} has [[issuer]], which needs PyJWT: {install_command('jwt')}")
    for number, each in enumerate(principals, 1):
        try:
            name = _add(each, found)
            if name in names:
                raise ValueError(f"there is another principal {name!r}")
            names.add(name)
            _check_sockets(found.sockets, taken)
        except ValueError as error:
            raise StartError(f"the access file {path}, principal {number}: {error}") from None
    try:
        found.namespaces = parse_namespaces(namespaces)
    except ValueError as error:
        raise StartError(f"the access file {path}, {error}") from None
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
            path.stat()  # FileNotFoundError
            raise StartError(f"the access file {path} is no file of at most {FILE_BYTES_MAX >> 20} MiB")
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise NoTokens(f"cannot read the access file {path}: {error.strerror}") from None
    except OSError as error:
        raise StartError(f"cannot read the access file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also of a number of 5,000 digits, and of nested lists
        raise StartError(f"the access file {path} is not TOML: {error}") from None


def _add(told: Any, found: Identities) -> str:
    """Adds a principal. Returns its name. Raises ValueError."""
    if not isinstance(told, dict):
        raise ValueError("is no table")
    if unknown := told.keys() - _KEYS:
        raise ValueError(f"{min(unknown)!r} is not known; give {', '.join(sorted(_KEYS))}")
    name = told.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("name is required: letters, digits and . _ @ : -, at most 128 of them")
    principal = Principal(name, (parse_grant(each, name) for each in _texts(told, "grants", GRANTS_MAX)))
    if not principal.grants:
        raise ValueError(f"{name!r} has no grants")
    principal.limits = parse_limits(told.get("limits", {}))
    before = len(found)
    _add_identities(told, principal, found)
    if len(found) == before:
        raise ValueError(f"{name!r} has no identity; give token_sha256, tls, socket, jwt, uid or gid")
    found.principals.append(principal)
    return name


def _add_identities(told: dict[str, Any], principal: Principal, found: Identities) -> None:
    for text in _texts(told, "token_sha256", GRANTS_MAX):
        if not re.fullmatch("[0-9a-f]{64}", text):
            raise ValueError("token_sha256 is not the digest of a token: 64 hex digits; stateward token new writes it")
        _put(found.tokens, bytes.fromhex(text), principal, "token_sha256")
    for text in _texts(told, "tls", GRANTS_MAX):
        _put(found.certificates, _certificate_name(text), principal, "tls")
    for text in _texts(told, "socket", SOCKETS_MAX):
        _put(found.sockets, parse_own_socket(text), principal, "socket")
    for key, numbers in (("uid", found.uids), ("gid", found.gids)):
        if key in told:
            if not isinstance(told[key], int) or isinstance(told[key], bool) or told[key] < 0:
                raise ValueError(f"{key} is no number of a user or group")
            _put(numbers, told[key], principal, key)
    if "jwt" in told:
        add_rule(told["jwt"], principal, found.issuers)


def _check_sockets(sockets: Iterable[Path], taken: frozenset[Path]) -> None:
    own = set(sockets)
    if len(own) > SOCKETS_MAX:
        raise ValueError(f"its socket is one too many; {SOCKETS_MAX} are allowed in a file")
    for path in own:
        if path in taken or beside(path) in taken:
            raise ValueError(f"its socket unix://{path} is one of --listen, at which everybody calls")
        if beside(path) in own:
            raise ValueError(f"its socket unix://{path} has its frames at {beside(path)}, which is another's socket")


def _certificate_name(text: str) -> str:
    if len(text) <= TLS_CHARS_MAX and _SPIFFE.fullmatch(text):
        return text
    if _DNS.fullmatch(text.lower()):
        return text.lower()
    raise ValueError(f"tls = {text!r} is neither a SPIFFE id (spiffe://domain/path) nor a DNS name")


def _put(where: dict[T, Principal], key: T, principal: Principal, what: str) -> None:
    if key in where:
        raise ValueError(f"its {what} is that of {where[key].name!r}, too")
    where[key] = principal


def _texts(told: dict[str, Any], key: str, count_max: int) -> list[str]:
    given = told.get(key, [])
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or len(found) > count_max or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{key} is no text and no list of at most {count_max} texts")
    return found
