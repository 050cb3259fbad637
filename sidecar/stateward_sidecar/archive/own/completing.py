"""Fetches older history, also while the owner of the thread writes HEAD and removes objects."""

from __future__ import annotations

from stateward_sidecar.archive.objects.fetch import Missing
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.own.history import History, HistoryChanged
from stateward_sidecar.archive.own.reconcile import set_back
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.errors import ArchiveUnavailable
from stateward_sidecar.store.thread.threads import is_orphans

# How often a fetch of history begins in one call, because objects went while it read them, or versions were pruned.
ROUNDS = 3


class Completer:
    """Runs on the archive's workers."""

    def __init__(self, state: ArchiveState, history: History, attacher: Attacher) -> None:
        self._state = state
        self._history = history
        self._attacher = attacher

    def complete(self, place: Name, *, for_retry: bool = False) -> int:
        """Fetches all older history, or with ``for_retry`` only the entries that a retry may ask for. Returns how many
        entries of all history were fetched.

        See ``History.complete`` and ``Window.complete``. If an object is missing, its owner may have pruned it, or put
        another one in its place, since HEAD was read: a slow wire may need longer for a history than garbage stays. So
        HEAD is asked again, and the fetch begins again as often as HEAD is another one.
        """
        for round_number in range(ROUNDS):
            try:
                return self._complete(place, for_retry=for_retry)
            except (Missing, HistoryChanged) as error:
                before = self._known(place)
                self._attacher.renew(place)
                if isinstance(error, HistoryChanged) and self._is_rolled_back(place):
                    raise set_back(place[1]) from None  # another sidecar went on from an older HEAD, and pruned
                # An orphan has no HEAD of its own: the next round looks at the one of the thread that it comes from.
                if self._known(place) == before and (round_number or not is_orphans(place[1])):
                    raise
        name = place[1]
        raise ArchiveUnavailable(f"the history of thread {name!r} changes faster than it can be fetched; try again")

    def _complete(self, place: Name, *, for_retry: bool) -> int:
        if not for_retry:
            return self._history.complete(place)
        self._attacher.window.complete(place)
        return 0

    def _is_rolled_back(self, place: Name) -> bool:
        with self._state.context.engine.read() as txn:
            hold = self._state.holds.get(self._state.store.threads.get(txn, *place).number)
        return hold is not None and hold.is_rolled_back

    def _known(self, place: Name) -> bytes:
        """Returns the write id of the HEAD that this disk's copy of a thread is from."""
        with self._state.context.engine.read() as txn:
            row = self._state.store.threads.get(txn, *place).archive
        return row.head.write_id if row is not None else b""
