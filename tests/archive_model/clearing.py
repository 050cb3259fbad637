"""Rules in which a daemon prunes by itself, as a retention rule does, while it is at something else."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, SIZES, WHO
from tests.archive_model.meetings import Meetings
from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.errors import HistoryElsewhere


class Clearing(Meetings):
    """What was pruned is cleared at once, whatever reads it at that moment."""

    @rule(who=WHO, name=NAMES, count=st.integers(1, 4), size=SIZES, keep=st.integers(1, 3), cold=st.booleans())
    def prune_while_shipping(self, who: int, name: str, count: int, size: int, keep: int, cold: bool) -> None:
        """After a ship has looked at the thread. ``cold``: the process has not kept what the last HEAD carries."""
        self.take_over(who, name)
        self.work(who, name, count, size, archived=True)
        request = self.request(name, "main", conditional=False, size=size, status=WORK_STATUS_RUNNING)
        self.act(who, f"save {name}", lambda it: self.save(it, request))
        sidecar = self.sidecars[who]
        hold = sidecar.hold_of(name)
        if hold is not None and cold:
            hold.tail = hold.pieces = None
        asked = PruneThreadRequest(namespace=NAMESPACE, thread=name, keep_latest_per_branch=keep)

        def prune(it: Sidecar) -> None:
            with suppress(HistoryElsewhere):  # then no rule is applied
                it.store.pruner.prune(asked)

        sidecar.after_moment = lambda: self.act(who, f"prune {name} by rule", prune)
        self.ship(who, ())
        sidecar.after_moment = lambda: None
