"""Who calls: the tokens of `--token-file`, and the principals of `--access`. Without either, anybody may call.

The token file has one token a line, and each of them may do everything. The access file says who may do what
(`accessfile.py`). A client sends its token with each call. It may also be a JSON Web Token of an issuer that the file
names (`bearers.py`), and then ends at its time. A program of the same host is also known by its user, if the
kernel names it (the local wire), a program with a certificate by a name in that (mutual TLS), and whoever comes through
the socket of a principal as that principal. A token counts first.

Both files are looked at twice a second, and read again when they change, as a mounted Secret does. A change
counts when it is half a second old: some programs empty a file before they write it, or write it in parts. Who is taken
out of a file may call nothing any more, and streams that may no longer be end. A file that is gone or names nobody
admits nobody. If a file cannot be read, or is wrong, what it said before goes on, and the log says why.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

from stateward_sidecar import security
from stateward_sidecar.errors import PermissionDenied, StartError, StatewardError, Unauthenticated
from stateward_sidecar.security import CHANGED
from stateward_sidecar.service.admission.accessfile import Identities, read_access_file
from stateward_sidecar.service.admission.grants import ANYBODY, Caller, Principal
from stateward_sidecar.service.admission.limits import NO_LIMITS, Allowance
from stateward_sidecar.storage.files import stamp_of
from stateward_sidecar.storage.secretfiles import NoTokens, read_token_file, token_digest
from stateward_sidecar.store.thread.usage import NamespaceLimit
from stateward_sidecar.telemetry import log

if TYPE_CHECKING:
    from stateward_sidecar.service.admission.bearers import Bearers, Proof

LOOK_S = 0.5
_PLACE = re.compile(r", (principal|namespace|issuer) [0-9]+$")
"""How often a file is looked at, and how old a change is when it counts."""
ASIDE_BYTES = 16 << 10
"""Larger files are read in a thread."""
HEADER, SCHEME = "authorization", "bearer"
Metadata = Iterable[tuple[str, str | bytes]]
User = tuple[int, int]
"""User and group of the calling process, as the kernel names them."""
_NAMES = ("peer_spiffe_id", "peer_dns")
"""What gRPC calls the names in a certificate. It has no SPIFFE id for one with two, which SPIFFE forbids."""


class Peer(NamedTuple):
    """What is known of a client beside its token."""

    user: User | None = None
    names: tuple[str, ...] = ()
    """Of its certificate, which a CA of `--tls-client-ca` has signed: the SPIFFE id, and the DNS names."""
    socket: Path | None = None
    """That of a principal, through which it has come; then nothing else counts but a token."""


def peer_of_certificate(told: Mapping[str, Iterable[bytes]]) -> Peer:
    """Returns the client of a connection by what gRPC's TLS tells of it."""
    names = [name.decode("ascii", "replace") for key in _NAMES for name in told.get(key, ())]
    return Peer(None, tuple(name if name.startswith("spiffe:") else name.lower() for name in names))


_NOBODY = Peer()


class _File:
    """A file of identities, as it is now."""

    def __init__(self, path: Path, what: str, read: Callable[[Path], Identities]) -> None:
        """Raises StartError."""
        self._path, self._what, self._read = path, what, read
        self._stamp = stamp_of(path)
        self.found = read(path)
        # A change that was seen, and since when it is as it is.
        self._changing: tuple[tuple[int, ...], float] | None = None
        # What a thread reads, and what it has read.
        self._begun: tuple[int, ...] | None = None
        self._outcome: Identities | StartError | None = None
        # Whether the log says already that it cannot be read.
        self._is_told = False

    def look(self) -> bool:
        """Reads the file again if it has changed, and is the same as ``LOOK_S`` ago. Returns whether it says something
        else now. A large file is read in a thread, for the next look: a thousand principals take 80 ms."""
        if self._begun is not None:
            return self._outcome is not None and self._take(self._begun, self._outcome)
        stamp, now_s = stamp_of(self._path), monotonic()
        if stamp == self._stamp:
            self._changing = None
            return False
        if self._changing is None or self._changing[0] != stamp:
            self._changing = stamp, now_s
            return False
        if now_s - self._changing[1] < LOOK_S:
            return False
        if stamp and stamp[2] > ASIDE_BYTES:
            self._begun = stamp
            threading.Thread(target=self._read_aside, name="stateward-access", daemon=True).start()
            return False
        return self._take(stamp, self._try())

    def _try(self) -> Identities | StartError:
        try:
            return self._read(self._path)
        except StartError as error:
            return error

    def _read_aside(self) -> None:
        try:
            self._outcome = self._try()
        except Exception as error:  # noqa: BLE001  (else the file would never be read again)
            self._outcome = StartError(f"cannot read {self._path}: {type(error).__name__}")

    def _take(self, stamp: tuple[int, ...], outcome: Identities | StartError) -> bool:
        self._begun = self._outcome = None
        if isinstance(outcome, NoTokens):
            said = f"the {self._what} admits nobody any more"
            security.note(CHANGED, said, tell=log.error, error=outcome.message)
            self.found = Identities(namespaces=self.found.namespaces)  # of these others are no reason to be free
        elif isinstance(outcome, StartError):
            if not self._is_told:
                error = _without_quotes(outcome.message)
                log.error(f"the {self._what} cannot be used; what it said before goes on", error=error)
            self._is_told = isinstance(outcome.__context__, OSError)  # then it is tried again
            if not self._is_told:
                self._changing, self._stamp = None, stamp
            return False
        else:
            self.found = outcome
            security.note(CHANGED, f"read the {self._what} again", identities=len(self.found))
        self._changing, self._stamp, self._is_told = None, stamp, False
        return True


class _Stream:
    """A call that may stay open for days."""

    __slots__ = ("caller", "error", "peer", "proof", "task", "token")

    def __init__(self, caller: Caller, token: bytes | None, proof: Proof | None, peer: Peer, task: Any) -> None:
        self.caller, self.token, self.proof, self.peer, self.task = caller, token, proof, peer, task
        self.error: StatewardError | None = None
        """Why it was ended."""

    def revoke(self, error: StatewardError) -> None:
        """Ends the call."""
        if self.error is None:
            self.error = error
            self.task.cancel()


class Callers:
    """Everybody who may call. Used on the event loop only."""

    def __init__(
        self, token_file: Path | None, access_file: Path | None = None, taken: frozenset[Path] = frozenset()
    ) -> None:
        """``taken``: the sockets that are everybody's, and no principal's. Raises StartError."""
        self._files = list[_File]()
        if access_file is not None:
            self._files.append(_File(access_file, "access file", partial(read_access_file, taken=taken)))
        if token_file is not None:
            self._files.append(_File(token_file, "token file", _read_tokens))
        self._bearers: Bearers | None = None
        self._use_issuers()
        if self._bearers is not None:
            self._bearers.read_files()
        self._looked_s = monotonic()
        self._streams = set[_Stream]()
        self.changes = 0
        """How often the files have changed."""
        self._allowances: dict[str, Allowance] = {}
        self.on_namespaces: Callable[[Sequence[NamespaceLimit]], None] = lambda _: None
        """Called with the limits of namespaces when the files have changed."""
        self.on_sockets: Callable[[frozenset[Path]], None] = lambda _: None
        """Called with the sockets of principals when the files have changed."""
        self._give_allowances()

    def identify(self, metadata: Metadata | None, peer: Peer = _NOBODY) -> Caller:
        """Returns who calls, by the token in a call's metadata, else by its process. Raises Unauthenticated."""
        return self._identify(_token_of(metadata), peer)[0]

    @contextmanager
    def holding(self, metadata: Metadata | None, peer: Peer = _NOBODY) -> Iterator[Caller]:
        """Surrounds a stream, within its task. Raises Unauthenticated at once; that or PermissionDenied when the stream
        may no longer be."""
        token = _token_of(metadata)
        caller, proof = self._identify(token, peer)
        stream = _Stream(caller, token.digest if token else None, proof, peer, asyncio.current_task())
        self._streams.add(stream)
        try:
            yield stream.caller
        except asyncio.CancelledError:
            if stream.error is None or stream.task.uncancel():
                raise
            raise stream.error from None
        finally:
            self._streams.discard(stream)

    def _identify(self, token: _Token | None, peer: Peer) -> tuple[Caller, Proof | None]:
        if monotonic() - self._looked_s >= LOOK_S:
            self._look()
        principal = self._find(token.digest if token else None, peer)
        if principal is None and self._bearers is not None and token is not None and token.text.count(".") == 2:
            proof = self._bearers.find(token.digest, token.text)
            return Caller(proof.principal, self.changes, proof.ends_s), proof
        if principal is None:
            what = "carries no token" if token is None else "carries a token that is not valid"
            if token is None and peer.names:
                what += f", and the access file does not name its certificate ({', '.join(peer.names)})"
            elif token is None and peer.socket is not None:
                what += ", and its socket is no principal's any more"
            raise Unauthenticated(
                f"the call {what}; this daemon asks for one: set STATEWARD_TOKEN_FILE, or send the metadata "
                "'authorization: Bearer TOKEN'"
            )
        return Caller(principal, self.changes), None

    def _find(self, token: bytes | None, peer: Peer) -> Principal | None:
        for file in self._files:
            found = file.found
            if token is not None:
                if token in found.tokens:
                    return found.tokens[token]
                continue
            if peer.socket is not None:
                if peer.socket in found.sockets:
                    return found.sockets[peer.socket]
                continue
            for name in peer.names:
                if name in found.certificates:
                    return found.certificates[name]
            if (user := peer.user) is not None and (user[0] in found.uids or user[1] in found.gids):
                return found.uids.get(user[0]) or found.gids[user[1]]
        return None

    def watch(self) -> None:
        """Looks at the files from now on, also if no call comes: a call after a long pause finds them as they are."""
        try:
            self._look()
            security.denials.settle()
        finally:
            asyncio.get_running_loop().call_later(LOOK_S, self.watch)

    @property
    def namespaces(self) -> Sequence[NamespaceLimit]:
        """What namespaces may take."""
        return [limit for file in self._files for limit in file.found.namespaces]

    @property
    def sockets(self) -> frozenset[Path]:
        """Those of principals."""
        return frozenset(path for file in self._files for path in file.found.sockets)

    def _give_allowances(self) -> None:
        """Gives each principal with limits what is left of them: what is under way belongs to its name."""
        before, self._allowances = self._allowances, {}
        for file in self._files:
            for principal in file.found.principals:
                name, known = principal.name, before.get(principal.name)
                if principal.limits == NO_LIMITS:
                    continue
                allowance = self._allowances.get(name) or known or Allowance(name)
                allowance.limit(principal.limits)
                principal.allowance = self._allowances[name] = allowance
        for name, known in before.items():
            if name not in self._allowances and not known.is_idle:  # it may come back
                known.limit(NO_LIMITS)
                self._allowances[name] = known

    def _look(self) -> None:
        self._looked_s = monotonic()
        has_changed = any([file.look() for file in self._files])  # noqa: C419  all of them
        if has_changed:
            self._use_issuers()
        if self._bearers is not None:
            has_changed |= self._bearers.look()
            now_s = time()
            for stream in [each for each in self._streams if each.caller.ends_s <= now_s]:
                stream.revoke(Unauthenticated("the token of this stream has expired; open it with a fresh one"))
        if has_changed:
            self.changes += 1
            self._give_allowances()
            self.on_namespaces(self.namespaces)
            self.on_sockets(self.sockets)
            for stream in list(self._streams):
                principal = self._find(stream.token, stream.peer)
                if principal is None and stream.proof is not None and self._bearers is not None:
                    principal = self._bearers.again(stream.proof)
                if principal is not None:
                    stream.caller.principal = principal
                if principal is None:
                    what = "token" if stream.token is not None else _named_by(stream.peer)
                    what = f"the {what} of this stream was taken away"
                    stream.revoke(Unauthenticated(f"{what}; open it with a valid one"))
                elif not stream.caller.still_may():
                    stream.revoke(PermissionDenied(f"{principal.name} has lost the grant of this stream"))


    def _use_issuers(self) -> None:
        issuers = {name: issuer for file in self._files for name, issuer in file.found.issuers.items()}
        if self._bearers is not None:
            self._bearers.use(issuers)
        elif issuers:
            from stateward_sidecar.service.admission.bearers import Bearers  # its package may be missing

            self._bearers = Bearers(issuers)


class _Token(NamedTuple):
    """What a call carries."""

    digest: bytes
    text: str


def _named_by(peer: Peer) -> str:
    if peer.socket is not None:
        return "socket"
    return "name in the certificate" if peer.names else "user"


def _read_tokens(path: Path) -> Identities:
    return Identities(dict.fromkeys(read_token_file(path), ANYBODY))


def _token_of(metadata: Metadata | None) -> _Token | None:
    """Returns a call's token; None = it has none."""
    given = next((value for key, value in metadata or () if key == HEADER), "")
    scheme, _, token = (given if isinstance(given, str) else "").partition(" ")
    if not given:
        return None
    if scheme.lower() != SCHEME:
        return _Token(b"", "")
    token = token.strip()
    return _Token(token_digest(token), token)


def _without_quotes(message: str) -> str:
    """Returns a message about a file for the log. What a principal's entry says may have names of threads, which no log
    tells: the doctor, which is asked by whoever may read the file, says it all."""
    where, _, _ = message.partition(": ")
    return f"{where} is wrong: stateward doctor says how" if _PLACE.search(where) else message
