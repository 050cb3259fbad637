"""The danger: each page of a list of effects reads all of them again, or a change between two pages repeats some."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import between, opened, write
from tests.daemon.wire import text

from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, ListEffectsResponse, PutEffectsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.kinds import effect
from stateward_sidecar.store.store import Store

COUNT, PAGE = 400, 30


def put(store: Store, *effects: Effect) -> None:
    request = PutEffectsRequest(
        namespace="default", thread="t", effects=effects, options=WriteOptions(request_id=str(random.random()))
    )
    write(store, store.effects.put(request))


def page(store: Store, token: str = "", **fields: Any) -> ListEffectsResponse:
    asked = {"page_size": PAGE, **fields}
    answer: ListEffectsResponse = store.read(
        store.effect_list.read, ListEffectsRequest(namespace="default", thread="t", page_token=token, **asked)
    )
    return answer


def made(number: int) -> Effect:
    """Many share a sort key, and some an anchor."""
    return Effect(
        anchor=f"anchor {number % 7}", key=str(number), name=f"name {number % 3}", sort_key=b"%03d" % (number % 50),
        value=text(str(number)),
    )  # fmt: skip


def order(effect: Effect) -> tuple[bytes, str, str]:
    return effect.sort_key, effect.anchor, effect.key


def read_all(store: Store, **fields: Any) -> list[Effect]:
    found, token = list[Effect](), ""
    while True:
        answer = page(store, token, **fields)
        assert len(answer.effects) <= PAGE
        found += [each.effect for each in answer.effects]
        token = answer.next_page_token
        if not token:
            return found


def test_pages_hold_every_effect_once_in_order(tmp_path: Path) -> None:
    """All, those of an anchor, and those with a name."""
    effects = sorted(map(made, range(COUNT)), key=order)
    with opened(tmp_path) as store:
        put(store, *effects)
        for fields in ({}, {"anchor": "anchor 3"}, {"names": ["name 1", "name 2"]}):
            wanted = [
                each for each in effects
                if fields.get("anchor") in (None, each.anchor) and each.name in fields.get("names", [each.name])
            ]  # fmt: skip
            for _ in range(2):  # the second time from what is kept
                assert read_all(store, **fields) == wanted
        one = page(store, anchor="anchor 3", key="3")
        assert [each.effect.key for each in one.effects] == ["3"]


def test_a_page_reads_only_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first page no other rows are opened."""
    opens, open_row = list[bytes](), effect.EFFECT_ROWS.open

    def noting(identity: Any, key: bytes, record: Any) -> Any:
        opens.append(key)
        return open_row(identity, key, record)

    with opened(tmp_path) as store:
        put(store, *map(made, range(COUNT)))
        token = page(store).next_page_token
        monkeypatch.setattr(effect.EFFECT_ROWS, "open", noting)
        page(store, token)
    assert len(opens) == PAGE


def test_a_change_between_two_pages_repeats_nothing(tmp_path: Path) -> None:
    """What comes before the place of the next page is not shown, what comes behind it is, and a new value is."""
    with opened(tmp_path) as store:
        put(store, *map(made, range(COUNT)))
        first = page(store)
        shown = [each.effect for each in first.effects]
        before = Effect(anchor="a", key="early", sort_key=b"", value=text("early"))
        behind = Effect(anchor="a", key="late", sort_key=b"9", value=text("late"))
        put(store, before, behind)
        changed = max(map(made, range(COUNT)), key=order)
        changed.value.CopyFrom(text("changed"))
        put(store, Effect(on_conflict=Effect.CONFLICT_RULE_REPLACE, **_fields(changed)))
        rest, token = list[Effect](), first.next_page_token
        while token:
            answer = page(store, token)
            rest += [each.effect for each in answer.effects]
            token = answer.next_page_token
    assert [each.key for each in rest].count("early") == 0
    assert rest[-1] == behind
    assert rest[-2].value == text("changed")
    assert len(shown) + len(rest) == COUNT + 1
    assert not {each.key for each in shown} & {each.key for each in rest}


def _fields(effect: Effect) -> dict[str, Any]:
    return {field.name: value for field, value in effect.ListFields()}


def test_a_page_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect gets another sort key whenever a page begins: its place is that of the record that is shown."""
    effects = [made(number) for number in range(100)]
    with opened(tmp_path) as store:
        put(store, *effects)
        is_first, wanted = False, {each.key for each in effects}

        def act() -> None:
            nonlocal is_first
            is_first = not is_first
            changed = made(25)
            changed.sort_key = b"000" if is_first else b"999"
            changed.on_conflict = Effect.CONFLICT_RULE_REPLACE
            put(store, changed)
            store.read(store.effect_list.read, ListEffectsRequest(namespace="default", thread="t"))

        with between(store, monkeypatch, act):
            for _ in range(4):
                shown = [each.effect for each in page(store, page_size=1000).effects]
                assert shown == sorted(shown, key=order)
                assert {each.key for each in shown} == wanted
