"""The danger: Verify of a large store needs memory for each of its entries, whatever the memory limit says."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from tests.daemon.inside import daemon_inside

from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.check.storeverify import StoreVerifier

CALLS, ENTRIES = 10, 10_000
# With an object for each entry it is about 2 MB.
PEAK_BYTES_MAX = 600_000


def test_entries_cost_a_bit_each(tmp_path: Path) -> None:
    """The check of the whole feed keeps no object for an entry."""
    with daemon_inside(tmp_path) as daemon:
        for first in range(0, ENTRIES, ENTRIES // CALLS):
            keys = [f"k{number}" for number in range(first, first + ENTRIES // CALLS)]
            effects = [Effect(key=key, name="tool", value=Value(media_type="text/plain", data=b"x")) for key in keys]
            request = PutEffectsRequest(
                thread="t", options=WriteOptions(request_id=f"{first}", create=ThreadOptions()), effects=effects
            )
            daemon.wire.effects.PutEffects(request, timeout=60)
        assert daemon.wire.entries_written() >= ENTRIES
        context = daemon.parts.store.context
        tracemalloc.start()
        try:
            assert list(StoreVerifier(context).verify()) == []
            assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
        finally:
            tracemalloc.stop()
