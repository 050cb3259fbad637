"""What is in the bucket when all is over: everything is reachable or named as garbage, no dead thread has a key, and
nothing of what was pruned is left."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET

from tests.archive_model.litter import joined, litter, spent

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef
from stateward_sidecar.archive.objects import heads
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.requests.places import THREAD_KEYS, THREADS, Place, place_of
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.store import KEYS_FILE
from stateward_sidecar.store.thread.ranges import Pruned


class Objects(Mapping[str, bytes]):
    """The objects of an archive. What is asked for is read; all names are known at once."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return self.read(name)

    def read(self, name: str) -> bytes:
        raise NotImplementedError


class Directory(Objects):
    """The bucket is a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        super().__init__({str(path) for path in files if not path.name.startswith(".")})

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()


class Server(Objects):
    """The bucket is on an S3 server that asks for no signature. ``url``: the archive's, after ``s3://``."""

    def __init__(self, server: str, url: str) -> None:
        self._bucket, _, prefix = url.partition("/")
        self._server, self._prefix = server, prefix.rstrip("/") + "/"
        super().__init__({name.removeprefix(self._prefix) for name in self._list()})

    def _list(self) -> Iterator[str]:
        query, after = f"list-type=2&prefix={quote(self._prefix, '')}", ""
        while True:
            with urllib.request.urlopen(f"{self._server}/{self._bucket}?{query}{after}", timeout=30) as answer:
                page = ET.fromstring(answer.read())
            names = [item.text or "" for item in page.iterfind(".//{*}Contents/{*}Key")]
            yield from names
            if not names or page.findtext("{*}IsTruncated") != "true":
                return
            after = f"&start-after={quote(names[-1], '')}"

    def read(self, name: str) -> bytes:
        with urllib.request.urlopen(f"{self._server}/{self._bucket}/{self._prefix}{name}", timeout=30) as answer:
            return bytes(answer.read())


def look(objects: Objects, data_dir: Path, key: bytes) -> list[str]:
    """What is wrong with a bucket after all machines gave their threads up and one of them collected garbage.
    ``data_dir``: of a machine that read all threads and is stopped."""
    heads.FORMAT += 1  # of a bucket that was upgraded, too
    keystore = KeyStore(data_dir / KEYS_FILE, key)
    try:
        namespace = keystore.namespace("default")
        return [] if namespace is None else [*_litter(objects, keystore, namespace), *_lonely(objects)]
    finally:
        keystore.close()
        heads.FORMAT -= 1


def _litter(objects: Objects, keystore: KeyStore, namespace: NamespaceKeys) -> Iterator[str]:
    needed = set()
    for name in sorted(objects):
        place = place_of(name)
        if place is None:
            continue
        head = open_head(namespace, place, objects[name])
        if not head.deleted:
            needed.add(place.key(head.created_epoch))
        left = litter(objects, place, head, keystore.thread_key(bytes(head.uid), namespace) or b"")
        for each in left:
            yield f"nothing leads to {each}, and nobody will remove it"
        for ref in _spent(objects, keystore, namespace, place, head):
            yield f"all versions of {place.object(ref)} were pruned, and their edits are in it"
    for name in sorted(objects):
        if name.startswith(THREAD_KEYS) and name not in needed:
            yield f"{name} is the key of no thread"


def _spent(
    objects: Objects, keystore: KeyStore, namespace: NamespaceKeys, place: Place, head: ArchiveHead
) -> list[ObjectRef]:
    """Packs of pruned versions, after their owner has cleared them and given the thread up."""
    key = keystore.thread_key(bytes(head.uid), namespace)
    if head.deleted or not head.image or key is None:
        return []
    image = open_image(Cipher(key), head, [joined(objects, place.object(ref)) for ref in part_refs(head)])
    return spent(objects, place, head, Pruned.from_message(image.pruned))


def _lonely(objects: Objects) -> Iterator[str]:
    """Objects of places that have no HEAD."""
    for name in sorted(objects):
        if name.startswith(THREADS) and f"{name.rpartition('/')[0]}/HEAD" not in objects:
            yield f"{name} is in a place without HEAD"
