"""Items with an id, each in its own slot. Another slot holds their order.

So the change of an item is one small edit, however many items there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from stateward.agent._fields import checked, enum_number, is_unread, read_slot, require_read, stamp
from stateward.agent.v1.agent_pb2 import ItemOrder, PlanStep, StepStatus, Todo
from stateward.state import State

I = TypeVar("I", PlanStep, Todo)  # noqa: E741  an item


class Items(Generic[I]):
    """Ordered items, found by id. An item may be edited in place until the next save, as every value of a state.

    In a partial state, single items can be read and set; items can be added if the order was read. An operation that
    needs unread items or an unread order raises ValueError, which names the slot.
    """

    _slot: str
    _kind: type[I]

    def __init__(self, state: State) -> None:
        self._state = state

    def __iter__(self) -> Iterator[I]:
        return iter([self[id_] for id_ in self.ids()])

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, id_: object) -> bool:
        return id_ in self._listed() and self._is_there(str(id_))

    def __getitem__(self, id_: str) -> I:
        """The item with this id; KeyError if there is none."""
        place = self._place(id_)
        return checked(self._state.slots[place], self._kind, f"slots.{place}")

    def __delitem__(self, id_: str) -> None:
        """Removes an item; KeyError if there is none."""
        require_read(self._state, self._slot)  # before anything is changed
        del self._state.slots[self._place(id_)]
        order = self._order()
        if id_ in order.ids:
            order.ids.remove(id_)

    def __repr__(self) -> str:
        if is_unread(self._state, self._slot):
            return f"{type(self).__name__}(not read)"
        there = (id_ for id_ in self._listed() if self._place(id_) in self._state.slots)
        return f"{type(self).__name__}({', '.join(there)})"

    def ids(self) -> list[str]:
        """The ids, in order."""
        return [id_ for id_ in self._listed() if self._is_there(id_)]

    def replace(self, items: Iterable[I]) -> None:
        """Replaces all items with these, in this order. The next save sends only items that changed."""
        new = list(items)
        ids = [item.id for item in new]
        if "" in ids or len(set(ids)) < len(ids):
            raise ValueError(f"{self._slot}: every item needs its own id; the ids are {ids}")
        kept = set(ids)
        gone = [id_ for id_ in self._listed() if id_ not in kept and self._is_there(id_)]
        for id_ in gone:
            del self._state.slots[self._place(id_)]
        for item in new:
            self._state.slots[self._place(item.id)] = item
        self._state.slots[self._slot] = ItemOrder(ids=ids)

    def _add(self, item: I) -> I:
        order = self._order()
        if not item.id:
            item.id = str(1 + max((int(each) for each in order.ids if each.isdecimal()), default=0))
        elif item.id in order.ids:
            raise ValueError(f"{self._slot} has an item {item.id!r} already")
        self._state.slots[self._place(item.id)] = item
        order.ids.append(item.id)
        return item

    def _listed(self) -> Sequence[str]:
        """Returns the ids in the order, including ids whose items are missing."""
        order = read_slot(self._state, self._slot, ItemOrder)
        return order.ids if order else ()

    def _is_there(self, id_: str) -> bool:
        require_read(self._state, self._place(id_))
        return self._place(id_) in self._state.slots

    def _order(self) -> ItemOrder:
        require_read(self._state, self._slot)
        if self._slot not in self._state.slots:
            self._state.slots[self._slot] = ItemOrder()
        return checked(self._state.slots[self._slot], ItemOrder, f"slots.{self._slot}")

    def _place(self, id_: str) -> str:
        return f"{self._slot}/{id_}"


class Plan(Items[PlanStep]):
    """The steps of the plan, in order."""

    _slot, _kind = "agent/plan", PlanStep

    def add(
        self,
        text: str,
        *,
        id: str = "",  # noqa: A002
        depends_on: Iterable[str] = (),
        status: str | int = "pending",
    ) -> PlanStep:
        """Adds a step at the end; `id` empty = the next number."""
        number = enum_number(StepStatus, "STEP_STATUS", status)
        return self._add(PlanStep(id=id, text=text, status=number, depends_on=depends_on))

    def set_status(self, id_: str, status: str | int, note: str | None = None) -> PlanStep:
        """Sets the status of a step: "pending", "in_progress", "done", "failed" or "skipped"."""
        step = self[id_]
        step.status = enum_number(StepStatus, "STEP_STATUS", status)
        if note is not None:
            step.note = note
        return step

    def ready(self) -> list[PlanStep]:
        """Pending steps whose dependencies are all done or skipped."""
        over = {
            step.id for step in self if step.status in (StepStatus.STEP_STATUS_DONE, StepStatus.STEP_STATUS_SKIPPED)
        }
        pending = (StepStatus.STEP_STATUS_UNSPECIFIED, StepStatus.STEP_STATUS_PENDING)
        return [step for step in self if step.status in pending and over.issuperset(step.depends_on)]


class Todos(Items[Todo]):
    """Open items besides the plan. Remove an item when it is done: `del agent.todos["1"]`."""

    _slot, _kind = "agent/todos", Todo

    def add(self, text: str, *, id: str = "", due: datetime | None = None, time: datetime | None = None) -> Todo:  # noqa: A002
        """Adds an item at the end; `id` empty = the next number, `time` None = now."""
        item = Todo(id=id, text=text, create_time=stamp(time))
        if due is not None:
            item.due_time.CopyFrom(stamp(due))
        return self._add(item)


def is_over(step: Any) -> bool:
    """Whether a step has ended: done, failed or skipped."""
    return step.status in (
        StepStatus.STEP_STATUS_DONE,
        StepStatus.STEP_STATUS_FAILED,
        StepStatus.STEP_STATUS_SKIPPED,
    )
