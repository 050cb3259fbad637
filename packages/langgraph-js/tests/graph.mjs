// A graph with all that a checkpointer meets: tools, parallel tasks, interrupts, a subgraph, and messages.
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { Annotation, Command, END, MessagesAnnotation, START, Send, StateGraph, interrupt } from "@langchain/langgraph";

const CITIES = ["Lima", "Oslo", "Rome"];
const added = () => Annotation({ reducer: (a, b) => a.concat(b), default: () => [] });

const Trip = Annotation.Root({
  ...MessagesAnnotation.spec,
  prices: added(),
  approved: Annotation(),
  steps: Annotation({ reducer: (a, b) => a + b, default: () => 0 }),
  booking: Annotation(),
});
const Booking = Annotation.Root({ prices: Annotation(), booking: Annotation() });

function model({ messages }) {
  const asked = messages.filter((each) => each.getType() === "tool").length;
  if (asked === 2) return { messages: [new AIMessage({ content: "Three cities fit.", id: "ai-end" })], steps: 1 };
  const call = { name: "search", args: { n: asked }, id: `call-${asked}`, type: "tool_call" };
  return { messages: [new AIMessage({ content: "", tool_calls: [call], id: `ai-${asked}` })], steps: 1 };
}

function tool({ messages }) {
  const [call] = messages.at(-1).tool_calls;
  const id = `tool-${call.id}`;
  return { messages: [new ToolMessage({ content: `found ${call.args.n}`, tool_call_id: call.id, id })] };
}

function afterModel({ messages }) {
  return messages.at(-1).tool_calls.length ? "tool" : CITIES.map((city) => new Send("quote", { city }));
}

function choose({ prices }) {
  const [city, price] = [...prices].sort((a, b) => a[1] - b[1] || (a[0] < b[0] ? -1 : 1))[0];
  return { booking: { city, price } };
}

/** The graph, compiled. */
export function build(checkpointer) {
  const inner = new StateGraph(Booking)
    .addNode("choose", choose)
    .addNode("confirm", ({ booking }) => ({ booking: { ...booking, seat: interrupt("Which seat?") } }))
    .addEdge(START, "choose")
    .addEdge("choose", "confirm")
    .addEdge("confirm", END);
  return new StateGraph(Trip)
    .addNode("model", model)
    .addNode("tool", tool)
    .addNode("quote", ({ city }) => ({ prices: [[city, 100 * city.length]], steps: 1 }))
    .addNode("approve", ({ prices }) => ({ approved: interrupt({ question: "Book?", prices }), steps: 1 }))
    .addNode("book", inner.compile())
    .addEdge(START, "model")
    .addConditionalEdges("model", afterModel, ["tool", "quote"])
    .addEdge("tool", "model")
    .addEdge("quote", "approve")
    .addEdge("approve", "book")
    .addEdge("book", END)
    .compile({ checkpointer });
}

/** Runs the graph to its end from wherever it is, as an agent does that may have been killed before. */
export async function play(graph, thread_id, durability = "sync") {
  const config = { configurable: { thread_id }, durability };
  for (;;) {
    const state = await graph.getState(config);
    const [asked] = state.tasks.flatMap((each) => each.interrupts);
    if (!state.config.configurable?.checkpoint_id) {
      await graph.invoke({ messages: [new HumanMessage({ content: "Where to in May?", id: "human" })] }, config);
    } else if (asked) {
      await graph.invoke(new Command({ resume: asked.value === "Which seat?" ? "12A" : true }), config);
    } else if (state.tasks.length) { // `next` leaves out tasks whose writes are there
      await graph.invoke(null, config);
    } else {
      const messages = state.values.messages.map((each) => [each.getType(), each.id, each.content]);
      return { ...state.values, messages };
    }
  }
}

/** Calls `act` before the n-th call of a saver's method, at its start, or after its end. */
export function aim(saver, method, nth, when, act) {
  const call = saver[method].bind(saver);
  let calls = 0;
  saver[method] = async (...args) => {
    const isAimed = ++calls === nth;
    if (isAimed && when === "before") await act();
    const answer = call(...args);
    if (isAimed && when === "in") await act();
    const found = await answer;
    if (isAimed && when === "after") await act();
    return found;
  };
  return () => calls;
}
