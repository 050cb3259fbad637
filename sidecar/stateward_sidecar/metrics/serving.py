"""Puts collector, census and listener together."""

from __future__ import annotations

from stateward_sidecar.metrics.collector import DaemonCollector
from stateward_sidecar.metrics.listener import Listener
from stateward_sidecar.metrics.sources import LatestCensus, Sources
from stateward_sidecar.store.clean.census import Census


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, address: tuple[str, int], sources: Sources) -> None:
        """Listens. Raises StartError."""
        host, port = address
        self._census = LatestCensus(Census(sources.store.context, sources.store.threads))
        self._listener = Listener(host, port, DaemonCollector(sources, self._census))
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._listener.port}/metrics"

    def start(self) -> None:
        """Answers scrapes."""
        self._census.start()
        self._listener.start()

    def close(self) -> None:
        """Ends the threads. Call it before the store is closed: they read from it."""
        self._listener.close()
        self._census.close()
