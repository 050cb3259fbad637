"""The danger: a save that was prepared before a status was told takes that status back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import get, hydrate, opened, save, write
from tests.daemon.wire import appends, text
from tests.messages import to_write

from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.signal_pb2 import Question, QuestionPart
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.versions import make
from stateward_sidecar.store.versions.save import SaveWrite


def tell(store: Store, anchor: str, number: int = 1) -> None:
    """Asks a question with an effect of this anchor."""
    request = PutEffectsRequest(
        namespace="default", thread="t", options=WriteOptions(request_id=f"told-{number}"), status=WORK_STATUS_WAITING,
        wait_id=f"w{number}",
        question=Question(prompt=f"{number}?"), effects=[Effect(anchor=anchor, key=str(number), value=text("x"))],
    )  # fmt: skip
    write(store, store.effects.put(request))


def prepare_cold(store: Store, made: SaveWrite) -> None:
    with store.context.engine.read() as txn:
        made.prepare(txn, get(store))


def prepare_late(_: Store, made: SaveWrite) -> None:
    made.prepare_late()


@pytest.mark.parametrize("prepare", [prepare_cold, prepare_late])
def test_a_save_under_way_takes_what_is_told_meanwhile(
    tmp_path: Path, prepare: Callable[[Store, SaveWrite], None]
) -> None:
    """A save that only adds keeps a question that came after it was prepared; the next checkpoint gets its own."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="a")
        hydrate(store)
        adding = begin(store, "adds")
        prepare(store, adding)
        tell(store, "a")
        write(store, adding.run)
        assert shown(store) == (2, WORK_STATUS_WAITING, "w1", "1?")
        made = begin(store, "b", checkpoint_id="b", expected_version=2, expected_digest=get(store).head.main_digest)
        prepare(store, made)
        tell(store, "b", 2)
        write(store, made.run)
        assert shown(store) == (3, WORK_STATUS_WAITING, "w2", "2?")
        assert not get(store).head.HasField("early")


def test_what_is_told_while_a_save_is_prepared_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question commits in the middle: the save has looked for one already, and has not begun to wait."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="a")
        hydrate(store)
        asked, describe = list[str](), make.describe_numbers

        def tell_and_describe(*args: Any) -> None:
            describe(*args)
            if not asked:
                asked.append("b")
                tell(store, "b")

        monkeypatch.setattr(make, "describe_numbers", tell_and_describe)
        made = begin(store, "b", checkpoint_id="b")
        assert made.prepare_hot(get(store))
        assert asked
        write(store, made.run)
        assert shown(store) == (2, WORK_STATUS_WAITING, "w1", "1?")


def begin(store: Store, name: str, **fields: Any) -> SaveWrite:
    request = to_write(SaveRequest, namespace="default", thread="t", request_id=name, diff=appends(name), **fields)
    return SaveWrite(store.context, store.threads, request)


def shown(store: Store) -> tuple[int, int, str, str]:
    """What the thread and its newest version say, which is the same."""
    head, seen = get(store).head, hydrate(store).checkpoint
    found = seen.version, seen.status, seen.wait_id, seen.question.prompt
    assert found == (head.main_version, head.status, head.wait_id, head.question.prompt)
    return found


def test_a_signal_whose_write_is_made_again_names_the_same_parts(tmp_path: Path) -> None:
    """As after a takeover during the call: what was sent is still what was sent."""
    with opened(tmp_path) as store:
        save(store, "1", checkpoint_id="c", status=0)
        for name in ("hotel", "flight"):
            asked = PutEffectsRequest(
                namespace="default", thread="t", options=WriteOptions(request_id=name), status=WORK_STATUS_WAITING,
                wait_id="w", asker=name,
                question=Question(parts=[QuestionPart(name=name)]),
                effects=[Effect(anchor="c", key=name, value=text("x"))],
            )  # fmt: skip
            write(store, store.effects.put(asked))
        sent = SendSignalRequest(
            namespace="default", thread="t", name="answer", wait_id=get(store).head.wait_id, parts=["flight"],
            options=WriteOptions(request_id="s"),
        )  # fmt: skip
        store.signals.send(sent)
        assert list(write(store, store.signals.send(sent)).signal.parts) == ["flight"]
