# Generated from stateward/_async/records.py by client/generate.py. Do not edit.
"""`client.records` and `thread.records`: small values with keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._operations import records
from stateward._operations.steps import ThreadRef
from stateward.attributes import Attribute
from stateward.durations import Duration
from stateward.models import Durability
from stateward.options import ThreadOptions
from stateward.records import Delete, Put, Record, RecordPrefix, RecordsWritten, RecordWrite, Where


@ends_at_the_caller
class Records:
    """The records of a thread: a scope of keys, each with a small value that is replaced and not versioned.

    Keys have 1 to 1,024 bytes of UTF-8. The caller chooses what separates their parts, such as "/". A value may have
    1,000,000 bytes. A scope has at most 100,000 records and 1 GiB of values. Values are encoded as those of slots are.
    """

    def __init__(self, session: Session, ref: ThreadRef, create: ThreadOptions | None = None) -> None:
        self._session = session
        self._ref = ref
        self._create = create

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the thread that holds the records."""
        return self._ref.thread

    def put(
        self,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        ttl: Duration | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Writes a record, in place of the one that has this key, and returns its revision.

        With `expected` the record must have this revision (0 = it must not exist), else RecordConflict is raised and
        nothing is written. `ttl` is the time after which it expires; None = never. `attributes` are facts that `list`
        selects by. Attributes and TTL of the record that is replaced do not stay.
        """
        written = self.write([Put(key, value, expected, ttl, attributes or {})], durability=durability)
        return written.revision

    def write(
        self, writes: Iterable[RecordWrite], *, expected_uid: str = "", durability: Durability | str | None = None
    ) -> RecordsWritten:
        """Writes and deletes up to 1,000 records, all or none: a list of `Put`, `Delete` and `Check`.

        `expected_uid`, from `ThreadInfo.uid`, is the uid that the thread must have: a thread that was made anew may
        have the same revisions. Raises RecordConflict if a record has another revision than expected, UidMismatch if
        the thread has another uid, and QuotaExceeded if the scope would be too large.
        """
        return self._session.run(records.write(self._ref, writes, durability, self._create, expected_uid))

    def get(self, key: str, *, refresh: bool = False) -> Record | None:
        """Returns a record; None if there is none, or if it has expired.

        `refresh` begins its time to live anew. To save writes, the daemon does so only if a tenth of it has passed. So
        the record lives for at least nine tenths of its TTL after such a read.
        """
        return (self.get_many([key], refresh=refresh)).get(key)

    def get_many(self, keys: Iterable[str], *, refresh: bool = False, values: bool = True) -> dict[str, Record]:
        """Returns the records with these keys that exist, by key. `values=False` leaves the values out."""
        return self._session.run(records.get(self._ref, keys, refresh, values))

    def list(
        self,
        prefix: str = "",
        *,
        where: Where | None = None,
        newest_first: bool = False,
        skip: int = 0,
        page_size: int = 100,
        refresh: bool = False,
        values: bool = True,
    ) -> Iterator[Record]:
        """Lists the records whose keys begin with `prefix`, in the order of their keys, page by page.

        `where` selects by attributes. `newest_first` lists the last written ones first. `skip` passes over the first
        records that match. `values=False` leaves the values out. `refresh` is that of `get`.

        A page shows one moment. A record that is there all the time is listed once. With `newest_first` it may be
        missing if it is written meanwhile.
        """
        request = records.list_records(self._ref, prefix, where, newest_first, skip, page_size, refresh, values)
        return self._session.read_list(records.read_records, request)

    def prefixes(self, delimiter: str = "/", *, prefix: str = "", max_depth: int = 0) -> Iterator[RecordPrefix]:
        """Lists the beginnings of keys up to their last delimiter, each with the number of its records.

        `max_depth` cuts them at so many delimiters behind `prefix`; 0 = they are not cut.
        """
        request = records.list_prefixes(self._ref, delimiter, prefix, max_depth)
        return self._session.read_list(records.read_prefixes, request)

    def delete(
        self,
        key: str,
        *,
        expected: int | None = None,
        expected_uid: str = "",
        durability: Durability | str | None = None,
    ) -> bool:
        """Deletes a record and returns whether there was one. Raises RecordConflict as `put` does. `expected_uid` is
        that of `write`."""
        deletion = [Delete(key, expected)]
        return bool((self.write(deletion, expected_uid=expected_uid, durability=durability)).deleted)

    def delete_prefix(
        self,
        prefix: str,
        *,
        max_revision: int | None = None,
        expected_uid: str = "",
        durability: Durability | str | None = None,
    ) -> int:
        """Deletes the records whose keys begin with `prefix` ("" = all of them), and returns how many there were.

        With `max_revision`, records with a higher revision stay: those that were written since you looked.
        `expected_uid`, from `ThreadInfo.uid`, is the uid that the thread must have. A thousand records go with each
        call, all or none of them. Raises ThreadNotFound if there is no such scope, and UidMismatch if it has
        another uid.
        """
        return self._session.run(records.delete_prefix(self._ref, prefix, durability, max_revision, expected_uid))
