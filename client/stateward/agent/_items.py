"""Items with an id, each in a slot of its own, in an order that lies in another one.

So a changed item is one small edit, however many there are.
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

    In a partial state, single items may be read and set, and items added where the order was read. What needs items or
    an order that were not read is a ValueError that names the slot.
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
        """Makes these the items, in this order. Those that are as they were are not sent again."""
        new = list(items)
        ids = [item.id for item in new]
        if "" in ids or len(set(ids)) < len(ids):
            raise ValueError(f"{self._slot}: every item needs an id of its own, not {ids}")
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
        """The ids in the order, also of items that are not there."""
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
        """Adds a step at the end; without `id` it gets the next number."""
        number = enum_number(StepStatus, "STEP_STATUS", status)
        return self._add(PlanStep(id=id, text=text, status=number, depends_on=depends_on))

    def set_status(self, id_: str, status: str | int, note: str | None = None) -> PlanStep:
        """Says how far a step is: "pending", "in_progress", "done", "failed", "skipped"."""
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
    """What is open besides the plan. What is done is removed: `del agent.todos["1"]`."""

    _slot, _kind = "agent/todos", Todo

    def add(self, text: str, *, id: str = "", due: datetime | None = None, time: datetime | None = None) -> Todo:  # noqa: A002
        """Notes something; without `id` it gets the next number. `time` None = now."""
        item = Todo(id=id, text=text, create_time=stamp(time))
        if due is not None:
            item.due_time.CopyFrom(stamp(due))
        return self._add(item)


def is_over(step: Any) -> bool:
    """Whether a step needs nothing any more."""
    return step.status in (
        StepStatus.STEP_STATUS_DONE,
        StepStatus.STEP_STATUS_FAILED,
        StepStatus.STEP_STATUS_SKIPPED,
    )
