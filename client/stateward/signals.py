"""Signals: messages from outside to a thread, and the questions that some of them answer.

    thread.ask(state, "Book it for 1,200 EUR?", schema={"type": "boolean"})  # and the agent may end
    client.thread("booking-42").approve("fine")                              # somebody, days later
    state = thread.hydrate()                                                 # the agent, started again
    if state.answer is not None:
        state.slots["booked"] = state.answer.approved
        thread.save(state)                                                   # acknowledges the answer

A signal stays until a save acknowledges it. A save that continues from a question acknowledges the answer that its
state was hydrated with; `ack` names other signals. An agent that dies before that save finds the signal again, so each
signal is delivered at least once. Use an effect for the agent's reaction to it.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from stateward import values
from stateward._frames import at_the_caller
from stateward._version import install_command
from stateward.arguments import message
from stateward.fromproto import FromProto
from stateward.v1 import signal_pb2, state_pb2

ANSWER, APPROVE, REJECT = "answer", "approve", "reject"


class AnswerRefused(ValueError):
    """The answer does not fit the question's schema; nothing was sent. The message names the place."""


class SchemaNotChecked(UserWarning):
    """The answer could not be checked against the question's schema, for example without the package jsonschema."""


@dataclass(frozen=True)
class QuestionPart:
    """One of several things that are asked at once. A framework's parallel tasks ask so, such as LangGraph's."""

    name: str
    """Names the part in the answer."""
    prompt: str
    schema: Any = None
    """As in Question."""
    asker: str = ""
    """The task that asks."""
    wait_id: str = ""
    """The wait id with which the task asked."""


@dataclass(frozen=True)
class Question:
    """The question of a waiting agent."""

    prompt: str
    schema: Any = None
    """JSON Schema of the answer, as Python values; None = any answer is allowed."""
    parts: tuple[QuestionPart, ...] = ()
    """What is asked, if a framework asks. The answer to several parts is a dict with the name and the answer of one of
    them or several."""
    asked_by: str = ""
    """The name of who asks; not verified. Empty = not said."""

    @classmethod
    def from_proto(cls, asked: signal_pb2.Question) -> Question:
        """Reads the asked."""
        parts = tuple(
            QuestionPart(each.name, each.prompt, _read_schema(each.answer_schema), each.asker, each.wait_id)
            for each in asked.parts
        )
        return cls(asked.prompt, _read_schema(asked.answer_schema), parts, asked.asked_by)

    @at_the_caller
    def to_proto(self) -> signal_pb2.Question:
        """Returns the message that `from_proto` reads."""
        parts = [
            signal_pb2.QuestionPart(
                name=each.name, prompt=each.prompt, answer_schema=_write_schema(each.schema), asker=each.asker,
                wait_id=each.wait_id,
            ) for each in self.parts
        ]  # fmt: skip
        fields = {"prompt": self.prompt, "answer_schema": _write_schema(self.schema), "parts": parts}
        return message(signal_pb2.Question, {**fields, "asked_by": self.asked_by})

    @at_the_caller
    def is_same(self, other: Question) -> bool:
        """Whether both ask for the same, whoever asks."""
        return replace(self, asked_by="").to_proto() == replace(other, asked_by="").to_proto()

    @at_the_caller
    def check(self, answer: Any) -> None:
        """Raises AnswerRefused if the answer does not fit the schema, or names none of several parts. Warns with
        SchemaNotChecked if the answer cannot be checked here, for example with a `$ref` to another document, which is
        never fetched."""
        if len(self.parts) > 1:
            self._check_parts(answer)
            return
        if self.parts and isinstance(answer, dict) and answer.keys() == {self.parts[0].name}:
            answer = answer[self.parts[0].name]
        elif self.parts and isinstance(answer, dict) and answer and all(map(_RANDOM_NAME.fullmatch, map(str, answer))):
            self._check_parts(answer)  # it names parts that were over before it came
        if self.schema is None:
            return
        try:
            import jsonschema  # noqa: PLC0415  an extra, and slow to import
            import jsonschema_specifications as known  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415

            validator = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
            # This registry fetches nothing: the agent wrote the schema, and must not choose URLs for this machine.
            faults = validator(self.schema, registry=known.REGISTRY).iter_errors(answer)
            error = jsonschema.exceptions.best_match(faults)
        except ModuleNotFoundError:
            why = f"the package jsonschema is not installed; run: {install_command('schema')}"
        except Exception as failure:  # noqa: BLE001  an agent's schema may be anything; the answer is what matters
            why = f"the question's schema is wrong: {failure}"
        else:
            if error is None:
                return
            where = "".join(f"[{each!r}]" for each in error.absolute_path)
            raise AnswerRefused(f"the question wants another answer{' at ' + where if where else ''}: {error.message}")
        warnings.warn(f"the answer was not checked against the question's schema: {why}", SchemaNotChecked, 3)

    @at_the_caller
    def check_yes(self) -> None:
        """Raises AnswerRefused if a yes does not fit the question, or one of its parts."""
        for each in self.parts if len(self.parts) > 1 else (self,):
            Question(each.prompt, each.schema).check(True)

    def _check_parts(self, answer: Any) -> None:
        known = {each.name: each for each in self.parts}
        names = ", ".join(known)
        if not isinstance(answer, dict) or not answer:
            raise AnswerRefused(f"the question has several parts; answer with an object that has some of: {names}")
        for name, each in answer.items():
            if name not in known:
                raise AnswerRefused(f"the question has no part {name!r}; it has: {names}")
            Question(known[name].prompt, known[name].schema).check(each)


_RANDOM_NAME = re.compile("[0-9a-f]{32}")
"""Names that no person gives to the fields of an answer: LangGraph's of its questions."""
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def check_schema(schema: Any) -> None:
    """Raises ValueError if this is no JSON Schema: else a person would meet the fault when answering. Without the
    package jsonschema only the outermost form is checked."""
    if schema is None or isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f'schema takes a JSON Schema, such as {{"type": "boolean"}}, not {schema!r:.100}')
    types = schema.get("type", [])
    for each in types if isinstance(types, list) else [types]:
        if each not in _TYPES:
            raise ValueError(f"schema has the type {each!r:.100}; JSON Schema knows {', '.join(_TYPES)}")
    try:
        import jsonschema  # noqa: PLC0415  an extra, and slow to import
    except ModuleNotFoundError:
        return
    try:
        jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        where = "".join(f"[{each!r}]" for each in error.absolute_path)
        raise ValueError(f"schema is no JSON Schema{', at ' + where if where else ''}: {error.message}") from None


def _write_schema(schema: Any) -> str:
    return "" if schema is None else json.dumps(schema, ensure_ascii=False)


def _read_schema(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text  # shown unchanged; `check` warns that it is not a schema


@dataclass(frozen=True)
class Signal(FromProto):
    """A message to a thread. Pass it as `ack` to the save that holds the agent's reaction."""

    id: str = field(metadata={"proto": "signal_id"})
    name: str
    """Kind of signal: "answer", "approve", "reject", or any name that sender and agent agree on, such as "cancel"."""
    sender: str
    """Name that the sender gave; not verified."""
    wait_id: str
    """Id of the question that the signal answers; empty = none."""
    time: datetime = field(metadata={"proto": "create_time"})
    sequence: int
    """The signal's position in the thread's journal."""
    parts: tuple[str, ...]
    """Names of the parts of the question that the answer is about. Empty = the question had no parts, or the signal is
    no answer."""
    payload_value: state_pb2.Value | None = field(default=None, repr=False, hash=False, metadata={"proto": "payload"})

    @cached_property
    @at_the_caller
    def payload(self) -> Any:
        """The decoded content; None = none."""
        return None if self.payload_value is None else values.decode(self.payload_value, "payload")

    @property
    @at_the_caller
    def approved(self) -> bool:
        """Whether the signal is an approval, or the answer True."""
        return self.name == APPROVE or (self.name == ANSWER and self.payload is True)


@dataclass(frozen=True)
class Wake:
    """A thread with waiting signals, whose agent must be started."""

    thread: str
    signals: tuple[Signal, ...]
    """The signals that were waiting already, oldest first, or the one that just arrived."""


def answer_in(signals: tuple[Signal, ...] | list[Signal], wait_id: str) -> Signal | None:
    """Returns the answer to a question; None = none yet."""
    if not wait_id:
        raise ValueError("wait_id is empty: no question has this name")
    return next((each for each in signals if each.wait_id == wait_id), None)
