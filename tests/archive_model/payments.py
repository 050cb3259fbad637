"""Tool calls on two sidecars: who is told NEW, archived, is the only one ever, as long as the thread lives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_NEW, EFFECT_STATE_UNCERTAIN
from stateward.v1.effect_service_pb2 import BeginEffectRequest, CompleteEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions

Key = tuple[bytes, str]


@dataclass
class Payments:
    """What was paid, by uid and key."""

    paid: set[Key] = field(default_factory=set)
    done: set[Key] = field(default_factory=set)  # somebody was answered that it is over
    claims: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # by uid the newest: key and token
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def keys_of(self, uid: bytes) -> set[str]:
        """What was paid in a thread."""
        return {key for owner, key in self.paid if owner == uid}

    def newest_claim(self, uid: bytes) -> tuple[str, int]:
        """Key and token of a claim in a thread; of one that nobody made if there is none."""
        return self.claims.get(uid, ("fare", (1 << 32) + 3))

    def pay(
        self, sidecar: Sidecar, name: str, key: str, *, restarted: bool, finishes: bool, is_still: Callable[[], bool]
    ) -> None:
        """An agent's step: claims, pays if nobody did, says so. ``is_still``: the bucket was not set back meanwhile."""
        holder = f"agent {sidecar.number}" if restarted else f"agent {next(self._numbers)}"
        request = BeginEffectRequest(
            namespace=NAMESPACE, thread=name, key=key, options=WriteOptions(request_id=f"begin {next(self._numbers)}"),
            holder=Holder(name=holder, incarnation=str(next(self._numbers))),
        )  # fmt: skip
        answer = sidecar.begin(request)
        if not is_still():
            return
        uid = bytes.fromhex(answer.receipt.uid)
        if answer.state == EFFECT_STATE_DONE:
            assert (uid, key) in self.done, "a result was handed out that nobody ever recorded"
        if answer.claim_token:
            self.claims[uid] = key, answer.claim_token
        if not answer.claim_token or answer.receipt.durability != DURABILITY_ARCHIVED:
            return
        if answer.state == EFFECT_STATE_NEW:
            assert (uid, key) not in self.paid, "a tool was called twice, and nobody was told"
            self.paid.add((uid, key))
        else:
            assert answer.state == EFFECT_STATE_UNCERTAIN
        if finishes:
            self.done.add((uid, key))
            sidecar.complete(
                CompleteEffectRequest(
                    namespace=NAMESPACE, thread=name, key=key, claim_token=answer.claim_token,
                    state=EFFECT_STATE_DONE, value=Value(data=b"receipt"),
                )
            )  # fmt: skip
