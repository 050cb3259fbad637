"""A graph with all that a checkpointer meets: tools, parallel tasks, interrupts, a subgraph, and messages."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

CITIES = ("Lima", "Oslo", "Rome")


class Trip(TypedDict, total=False):
    """What the graph knows."""

    messages: Annotated[list[AnyMessage], add_messages]
    prices: Annotated[list[list[Any]], operator.add]
    approved: bool
    steps: Annotated[int, operator.add]
    booking: dict[str, Any]


class Quote(TypedDict):
    """What one parallel task gets."""

    city: str


class Booking(TypedDict, total=False):
    """The state of the subgraph."""

    booking: dict[str, Any]
    prices: list[list[Any]]


def model(state: Trip) -> dict[str, Any]:
    """A model that first calls a tool, and then answers."""
    asked = len([each for each in state["messages"] if isinstance(each, ToolMessage)])
    if asked < 2:
        call = {"name": "search", "args": {"n": asked}, "id": f"call-{asked}"}
        return {"messages": [AIMessage("", tool_calls=[call], id=f"ai-{asked}")], "steps": 1}
    return {"messages": [AIMessage("Three cities fit.", id="ai-end")], "steps": 1}


def tool(state: Trip) -> dict[str, Any]:
    """Answers the last tool call."""
    call = state["messages"][-1].tool_calls[0]  # type: ignore[union-attr]
    return {"messages": [ToolMessage(f"found {call['args']['n']}", tool_call_id=call["id"], id=f"tool-{call['id']}")]}


def after_model(state: Trip) -> Any:
    """To the tool, or to a task for each city."""
    if state["messages"][-1].tool_calls:  # type: ignore[union-attr]
        return "tool"
    return [Send("quote", {"city": city}) for city in CITIES]


def quote(task: Quote) -> dict[str, Any]:
    """One of the parallel tasks. Its price is a list, which a tuple becomes in every saver: after a crash some are read
    back, and some are not."""
    return {"prices": [[task["city"], 100 * len(task["city"])]], "steps": 1}


def approve(state: Trip) -> dict[str, Any]:
    """Asks a person."""
    return {"approved": interrupt({"question": "Book?", "prices": sorted(state["prices"])}), "steps": 1}


def choose(state: Booking) -> dict[str, Any]:
    """First node of the subgraph: the cheapest."""
    city, price = min(state["prices"], key=lambda each: (each[1], each[0]))
    return {"booking": {"city": city, "price": price}}


def confirm(state: Booking) -> dict[str, Any]:
    """Second node of the subgraph: asks for a seat."""
    return {"booking": {**state["booking"], "seat": interrupt("Which seat?")}}


def build(checkpointer: Any) -> Any:
    """The graph, compiled."""
    inner = StateGraph(Booking)
    inner.add_node("choose", choose)
    inner.add_node("confirm", confirm)
    inner.add_edge(START, "choose")
    inner.add_edge("choose", "confirm")
    inner.add_edge("confirm", END)
    outer = StateGraph(Trip)
    outer.add_node("model", model)
    outer.add_node("tool", tool)
    outer.add_node("quote", quote)
    outer.add_node("approve", approve)
    outer.add_node("book", inner.compile())
    outer.add_edge(START, "model")
    outer.add_conditional_edges("model", after_model, ["tool", "quote"])
    outer.add_edge("tool", "model")
    outer.add_edge("quote", "approve")
    outer.add_edge("approve", "book")
    outer.add_edge("book", END)
    return outer.compile(checkpointer=checkpointer)


QUESTION = {"messages": [HumanMessage("Where to in May?", id="human")]}


def play(graph: Any, thread_id: str, **options: Any) -> dict[str, Any]:
    """Runs the graph to its end from wherever it is, as an agent does that may have been killed before."""
    config = {"configurable": {"thread_id": thread_id}}
    while True:
        state = graph.get_state(config)
        if not state.config["configurable"].get("checkpoint_id"):
            graph.invoke(QUESTION, config, **options)
        elif state.interrupts:
            answer = "12A" if state.interrupts[0].value == "Which seat?" else True
            graph.invoke(Command(resume=answer), config, **options)
        elif state.tasks:  # `next` leaves out tasks whose writes are there
            graph.invoke(None, config, **options)
        else:
            return seen(graph, thread_id)


def seen(graph: Any, thread_id: str) -> dict[str, Any]:
    """The end state, in a form that can be compared."""
    values = dict(graph.get_state({"configurable": {"thread_id": thread_id}}).values)
    values["messages"] = [(type(each).__name__, each.id, each.content) for each in values["messages"]]
    return values
