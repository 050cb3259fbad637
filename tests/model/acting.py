"""The rules of the machine that record effects and delete them; prunes take those of their versions along."""

from __future__ import annotations

import uuid

import pytest
from google.protobuf.empty_pb2 import Empty
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.model.guarding import Guarding
from tests.model.plain import PlainEffect
from tests.model.strategies import PICK, SHORT, value

from stateward.errors import ThreadNotFound
from stateward.v1 import effect_pb2
from stateward.v1 import effect_service_pb2 as effects
from stateward.v1.effect_service_pb2 import EffectKeys
from stateward.v1.write_pb2 import WriteOptions

ANCHORS = st.sampled_from(("x", "y", "x", "y", "free"))
KEYS = st.sets(st.sampled_from("abc"), min_size=1)


class Acting(Guarding):
    """Effects that belong to a version by its checkpoint id, and free ones."""

    @precondition(lambda self: self.model)
    @rule(pick=PICK, anchor=ANCHORS, keys=KEYS, data=SHORT, stays=st.booleans(), replaces=st.booleans())
    def put_effects(self, pick: int, anchor: str, keys: set[str], data: bytes, stays: bool, replaces: bool) -> None:
        """Also before their version, and after it was pruned."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        conflict = effect_pb2.Effect.CONFLICT_RULE_REPLACE if replaces else effect_pb2.Effect.CONFLICT_RULE_KEEP
        request = effects.PutEffectsRequest(
            namespace=self.namespace, thread=name, options=WriteOptions(request_id=str(uuid.uuid4())),
            effects=[
                effect_pb2.Effect(
                    anchor=anchor, key=key, value=value(data), keep_when_pruned=stays, on_conflict=conflict
                )
                for key in sorted(keys)
            ],
        )  # fmt: skip
        written = {(anchor, key) for key in keys if replaces or (anchor, key) not in thread.effects}
        answer = self.call("PutEffects", request)
        thread.sequence += len(written)
        thread.effects.update(dict.fromkeys(written, PlainEffect(data, stays)))
        assert answer.written == len(written)
        assert (answer.receipt.sequence, answer.receipt.uid) == (thread.sequence, thread.uid)
        if written:
            again = self.call("PutEffects", self.restarted(request))
            assert again.written == answer.written
            self.compare_receipts(again, answer)
        self.compare_effects(name)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, anchor=ANCHORS, keys=KEYS, is_all=st.booleans())
    def delete_effects(self, pick: int, anchor: str, keys: set[str], is_all: bool) -> None:
        """Some of an anchor, or all; whether they stay or not."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        request = effects.DeleteEffectsRequest(
            namespace=self.namespace, thread=name, anchor=anchor, all=Empty() if is_all else None,
            keys=None if is_all else EffectKeys(keys=sorted(keys)),
            options=WriteOptions(request_id=str(uuid.uuid4())),
        )  # fmt: skip
        gone = {place for place in thread.effects if place[0] == anchor and (is_all or place[1] in keys)}
        answer = self.call("DeleteEffects", request)
        thread.sequence += bool(gone)
        for place in gone:
            del thread.effects[place]
        assert answer.deleted == len(gone)
        assert (answer.receipt.sequence, answer.receipt.uid) == (thread.sequence, thread.uid)
        if gone:
            again = self.call("DeleteEffects", self.restarted(request))
            assert again.deleted == answer.deleted
            self.compare_receipts(again, answer)
        self.compare_effects(name)
        request.thread = "none"
        with pytest.raises(ThreadNotFound):
            self.call("DeleteEffects", request)

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def list_effects(self, pick: int) -> None:
        """Whatever became of their versions, and wherever the thread was copied from."""
        self.compare_effects(self.pick(self.model, pick))

    def compare_effects(self, name: str) -> None:
        """The daemon lists the effects of the model, with their values."""
        request = effects.ListEffectsRequest(namespace=self.namespace, thread=name, page_size=1000)
        found = {
            (each.effect.anchor, each.effect.key): PlainEffect(each.effect.value.data, each.effect.keep_when_pruned)
            for each in self.call("ListEffects", request).effects
        }
        assert found == self.model[name].effects
