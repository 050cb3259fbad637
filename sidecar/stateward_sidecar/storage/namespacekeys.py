"""The keys of a namespace: the name key, which never changes, and the namespace's key in one or several generations.

The newest generation seals and wraps. The older ones only open what they sealed or wrapped, until that was done again
with the newest. One object is shared by everything that works in the namespace, so a new generation is known
everywhere at once.

With an archive, other sidecars may add a generation at any time. So whoever seals something for the archive calls
``freshen`` first, and whoever cannot open something calls ``ask``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stateward_sidecar.codec.seal import KEY_BYTES, Bytes, Cipher, NameKey, open_record, seal_record
from stateward_sidecar.errors import Corrupt

Asking = Callable[["NamespaceKeys"], bool]
"""Asks the archive about the keys of a namespace. Returns whether there is a new one."""


def _never(keys: NamespaceKeys) -> bool:
    del keys
    return False


class Sources:
    """How the generations of all namespaces are asked for. Without an archive, nothing is."""

    def __init__(self) -> None:
        self.freshen: Asking = _never
        self.ask: Asking = _never


class NamespaceKeys:
    """The keys of a namespace. ``tag`` (8 bytes) stands for its name in index rows."""

    __slots__ = ("_keys", "_sources", "generation", "id", "name_key", "names", "tag", "wrapping_key")

    def __init__(self, identity: bytes, keys: Mapping[int, bytes], sources: Sources | None = None) -> None:
        """``keys``: name key ‖ namespace key of each generation."""
        self.id, self.tag = identity, identity[:8]
        self._sources = sources or Sources()
        self._keys: dict[int, bytes] = {}
        self.name_key = next(iter(keys.values()))[:KEY_BYTES]
        self.names = NameKey(self.name_key)
        self.generation, self.wrapping_key = -1, b""
        self.learn(keys)

    def __repr__(self) -> str:
        """Says nothing of the keys."""
        return f"NamespaceKeys({self.id.hex()}, generation {self.generation})"

    @property
    def generations(self) -> frozenset[int]:
        """Those that are known."""
        return frozenset(self._keys)

    @property
    def has_several(self) -> bool:
        """Whether several generations are known."""
        return len(self._keys) > 1

    def key_of(self, generation: int) -> bytes | None:
        """The namespace's key of a generation; None if it is not known."""
        return self._keys.get(generation)

    def newest_first(self) -> Iterator[bytes]:
        """Yields the namespace's key of each generation."""
        known = self._keys
        return (known[generation] for generation in sorted(known, reverse=True))

    def pairs(self) -> dict[int, bytes]:
        """Name key ‖ namespace key of each generation."""
        return {generation: self.name_key + key for generation, key in sorted(self._keys.items())}

    def learn(self, keys: Mapping[int, bytes]) -> None:
        """Adds generations, given as at the start. Readers on other threads see all or none of them."""
        known = {**self._keys, **{generation: pair[KEY_BYTES:] for generation, pair in keys.items()}}
        newest = max(known)
        self._keys = known
        self.generation, self.wrapping_key = newest, known[newest]

    def forget(self, generation: int) -> None:
        """Drops an older generation."""
        assert generation != self.generation
        self._keys = {each: key for each, key in self._keys.items() if each != generation}

    def seal(self, magic: bytes, plaintext: Bytes, *place: Bytes) -> bytes:
        """Seals a record with the newest generation."""
        return seal_record(Cipher(self.wrapping_key), magic, plaintext, *place)

    def open(self, magic: bytes, record: Bytes, *place: Bytes) -> bytes:
        """The reverse of ``seal``, of any generation that is known. Raises Corrupt."""
        failed: Corrupt | None = None
        for key in self.newest_first():
            try:
                return open_record(Cipher(key), magic, record, *place)
            except Corrupt as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def freshen(self) -> None:
        """Makes sure that the archive was asked not long ago. Raises ArchiveUnavailable, KeyUnavailable."""
        self._sources.freshen(self)

    def ask(self) -> bool:
        """Asks for newer generations, because something does not open. Returns whether there are any."""
        return self._sources.ask(self)
