"""A LangGraph store: the long-term memory of graphs as records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig
from langgraph.store.base.embed import ensure_embeddings, get_text_at_path

from stateward._async.client import AsyncClient
from stateward._connected import both_clients
from stateward._operations.steps import ThreadRef
from stateward._settling import settle
from stateward._sync.client import Client
from stateward.langgraph import _store as operations
from stateward.langgraph._checks import check_settings
from stateward.langgraph._items import pack_vectors
from stateward.langgraph._store import Batch, Vectors
from stateward.options import ThreadOptions

SCOPE = "langgraph-store"


class StatewardStore(BaseStore):
    """Keeps the items of a LangGraph store as records of one thread, `scope`.

    Both kinds of methods work, from any number of threads and event loops. Use it as `with` or `async with`, or call
    `close` or `aclose` at the end. The puts of one `batch` are written together, all or none, up to 500 of them and
    16 MiB; more of them take several calls. A cancelled `abatch` with puts ends them first: when CancelledError comes,
    they are written, or never will be.

    A wrong argument raises TypeError or ValueError before anything is sent.

    `target` and the further options are those of `stateward.Client`. Without a target the store looks for the daemon
    where the commands do. `target` may also be a client, such as that of `stateward.open()`, which you keep open.

    `ttl` sets the default TTL and if reads begin it anew, as LangGraph defines it; an expired item is never returned.
    `index` makes `search(query=…)` work. The client calls its embedding function, and stores the vectors beside the
    items. A search compares the query with every vector below the namespace, which suits some thousands of items.

    A store has at most 100,000 records, and an item with vectors is two. An item may have 1,000,000 bytes of JSON.
    """

    supports_ttl = True

    def __init__(
        self,
        target: str | Client | AsyncClient | None = None,
        *,
        namespace: str = "default",
        scope: str = SCOPE,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        create: ThreadOptions | None = None,
        **options: Any,
    ) -> None:
        check_settings(index, ttl)
        self._blocking, self._aio = both_clients(target, namespace, options)
        self._scope, self._create = scope, create
        self.ttl_config = ttl
        self._index = index
        self._embeddings = ensure_embeddings(index["embed"]) if index is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes the connection of the blocking methods. Closing again does nothing."""
        self._blocking.close()

    async def aclose(self) -> None:
        """Closes both connections. Closing again does nothing."""
        self._blocking.close()
        await self._aio.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations: first all reads, then all writes."""
        batch = Batch.of(ops)
        texts, queries = self._texts(batch), self._queries(batch)
        vectors = Vectors()
        if self._embeddings is not None and texts:
            flat = [text for each in texts.values() for text in each]
            vectors.of_items = self._pack(texts, self._embeddings.embed_documents(flat))
        for query in queries:
            assert self._embeddings is not None
            vectors.of_queries[query] = self._pack_one(self._embeddings.embed_query(query))
        return self._blocking._session.run(operations.run(self._ref, batch, vectors, self._create))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        batch = Batch.of(ops)
        texts, queries = self._texts(batch), self._queries(batch)
        vectors = Vectors()
        if self._embeddings is not None and texts:
            flat = [text for each in texts.values() for text in each]
            vectors.of_items = self._pack(texts, await self._embeddings.aembed_documents(flat))
        if self._embeddings is not None and queries:
            embedded = await asyncio.gather(*map(self._embeddings.aembed_query, queries))
            vectors.of_queries = dict(zip(queries, map(self._pack_one, embedded), strict=True))
        run = self._aio._session.run(operations.run(self._ref, batch, vectors, self._create))
        return await (settle(run) if batch.puts else run)

    @property
    def _ref(self) -> ThreadRef:
        return self._blocking._session.refer(self._scope)

    # -- vectors ------------------------------------------------------------------------------------------------------

    def _texts(self, batch: Batch) -> dict[str, list[str]]:
        """The texts to embed, by key of the item's record."""
        if self._index is None:
            return {}
        fields = self._index.get("fields") or ["$"]
        found = {}
        for key, op in batch.puts.items():
            if op.value is not None and op.index is not False:
                paths = fields if op.index is None else op.index
                found[key] = [text for path in paths for text in get_text_at_path(dict(op.value), path)]
        return {key: texts for key, texts in found.items() if texts}

    def _queries(self, batch: Batch) -> list[str]:
        if self._index is None:
            return []
        return list(dict.fromkeys(op.query for op in batch.searches.values() if op.query))

    def _pack(self, texts: dict[str, list[str]], embedded: list[list[float]]) -> dict[str, bytes]:
        count = sum(map(len, texts.values()))
        if len(embedded) != count:
            raise ValueError(f"the index's embed returned {len(embedded)} vectors for {count} texts")
        made, at = {}, iter(embedded)
        for key, each in texts.items():
            made[key] = pack_vectors([next(at) for _ in each], self._dims)
        return made

    def _pack_one(self, vector: list[float]) -> bytes:
        return pack_vectors([vector], self._dims)

    @property
    def _dims(self) -> int:
        assert self._index is not None
        return self._index["dims"]
