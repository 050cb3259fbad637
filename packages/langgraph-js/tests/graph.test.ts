/** Real graphs on a real daemon: the same results as with LangGraph's own saver. */
import { Annotation, type CheckpointTuple, Command, MemorySaver, START, StateGraph, interrupt } from "@langchain/langgraph";

import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";
import { build, play } from "./graph.mjs";

const daemon = new Daemon();
let saver: StatewardSaver;
let expected: unknown;

beforeAll(async () => {
  await daemon.start();
  saver = new StatewardSaver(daemon.target);
  expected = plain(await play(build(new MemorySaver()), "t"));
}, 30_000);
afterAll(async () => {
  saver.close();
  await daemon.remove();
});

const plain = (value: unknown) => JSON.parse(JSON.stringify(value));

async function history(graph: any, thread_id: string): Promise<unknown[]> {
  const found = [];
  for await (const each of graph.getStateHistory({ configurable: { thread_id } })) {
    found.push([each.next, each.metadata.step, plain(each.values)]);
  }
  return found;
}

it.each(["sync", "async", "exit"])("a graph gives what it gives in memory, with durability %s", async (durability) => {
  const memory = build(new MemorySaver());
  await play(memory, durability, durability);
  const graph = build(saver);
  expect(plain(await play(graph, durability, durability))).toEqual(expected);
  expect(await history(graph, durability)).toEqual(await history(memory, durability));
});

it("time travel makes a fork, and the newest checkpoint is then the fork's", async () => {
  const graph = build(saver);
  const config = { configurable: { thread_id: "travel" } };
  const end: any = await play(graph, "travel");
  let past: any;
  for await (const each of graph.getStateHistory(config)) if (each.next[0] === "approve") past ??= each;
  const fork = await graph.updateState(past.config, { steps: 10 }, "quote");
  expect((await graph.getState(config)).values.steps).toBe(past.values.steps + 10);
  expect((await graph.getState(fork)).parentConfig?.configurable).toEqual(past.config.configurable);
  expect((await play(graph, "travel") as any).steps).toBe(end.steps + 10);
});

it("an array is a log: a step that adds an element sends that element, and a change in place is found", async () => {
  let parent: any = { configurable: { thread_id: "log", checkpoint_ns: "" } };
  const states = [["a"], ["a", 12], ["a", 1], [new Uint8Array([7]), null], [], "text", ["a"], ["a", "b"]];
  for (const [step, value] of states.entries()) {
    parent = await saver.put(parent, checkpoint(step, value), about(step), { a: step + 1 });
    const found: CheckpointTuple = (await saver.getTuple({ configurable: { thread_id: "log" } }))!;
    expect(found.checkpoint.channel_values).toEqual({ a: value });
  }
});

it("a node that asks twice: LangGraph writes one special channel twice in a call, and the last value counts", async () => {
  const Form = Annotation.Root({ answers: Annotation<string[]>() });
  const ask = () => ({ answers: [interrupt("name?"), interrupt("age?")] as string[] });
  const graph = new StateGraph(Form).addNode("ask", ask).addEdge(START, "ask").compile({ checkpointer: saver });
  const config = { configurable: { thread_id: "form" } };
  await graph.invoke({ answers: [] }, config);
  for (const resume of ["Ana", "41"]) await graph.invoke(new Command({ resume }), config);
  expect((await graph.getState(config)).values).toEqual({ answers: ["Ana", "41"] });
});

it("a value that is larger than a message of gRPC comes back whole", async () => {
  const value = ["x".repeat(5 << 20), "y"];
  const config = { configurable: { thread_id: "large", checkpoint_ns: "" } };
  const saved = await saver.put(config, checkpoint(0, value), about(0), { a: 1 });
  expect((await saver.getTuple(saved))!.checkpoint.channel_values).toEqual({ a: value });
});

it("a second writer is refused with writeOwnership, and makes a fork without it", async () => {
  const config = { configurable: { thread_id: "two", checkpoint_ns: "" } };
  const owner = new StatewardSaver(daemon.target, { writeOwnership: true });
  const parent = await saver.put(config, checkpoint(1, 1), about(0), { a: 2 });
  await saver.put(parent, checkpoint(2, 2), about(1), { a: 3 });
  const refused = owner.put(parent, checkpoint(3, 3), about(1), { a: 4 });
  await expect(refused).rejects.toMatchObject({ name: "StatewardError", reason: "VERSION_MISMATCH" });
  const forked = await saver.put(parent, checkpoint(4, 4), about(1), { a: 5 });
  const found = (await saver.getTuple(forked))!;
  expect(found.parentConfig).toEqual(parent);
  expect(found.checkpoint.channel_values).toEqual({ a: 4 });
  owner.close();
});

it("a thread that was deleted and made again by somebody else: an old run is refused, a new one reads it", async () => {
  const config = { configurable: { thread_id: "again", checkpoint_ns: "" } };
  const other = new StatewardSaver(daemon.target);
  const refused = { reason: "UID_MISMATCH" };
  const first = await saver.put(config, checkpoint(0, ["old"]), about(0), { a: 1 });
  await other.deleteThread("again");
  await expect(saver.putWrites(first, [["a", 1]], "task")).rejects.toMatchObject(refused);
  expect(await other.getTuple(config)).toBeUndefined();
  await other.put(config, checkpoint(0, ["new", "er"]), about(0), { a: 1 });
  for (const _ of ["remembered", "forgotten"]) {
    const late = saver.put(first, checkpoint(1, ["old", "er"]), about(1), { a: 2 });
    await expect(late).rejects.toMatchObject(refused);
  }
  const inner = { configurable: { ...config.configurable, checkpoint_ns: "inner", checkpoint_map: { "": checkpoint(0, 0).id } } };
  await expect(saver.put(inner, checkpoint(2, 1), about(1), { a: 2 })).rejects.toMatchObject(refused);
  expect((await saver.getTuple(config))!.checkpoint.channel_values).toEqual({ a: ["new", "er"] });
  const second = await saver.put(first, checkpoint(1, ["new", "er", "est"]), about(1), { a: 2 });
  expect((await saver.getTuple(second))!.checkpoint.channel_values).toEqual({ a: ["new", "er", "est"] });
  other.close();
});

it("a checkpoint that the daemon has lost: the next one is not mixed with another of its number", async () => {
  const machine = new Daemon();
  await machine.start();
  const [first, other] = [new StatewardSaver(machine.target), new StatewardSaver(machine.target)];
  try {
    const config = { configurable: { thread_id: "lost", checkpoint_ns: "" } };
    const one = await first.put(config, checkpoint(0, ["one"]), about(0), { a: 1 });
    await machine.kill();
    machine.backUp();
    await machine.start();
    const two = await first.put(one, checkpoint(1, ["one", "two"]), about(1), { a: 2 });
    await machine.kill();
    machine.setBack();
    await machine.start();
    await other.put(one, checkpoint(2, ["one", "other"]), about(1), { a: 2 });
    const three = await first.put(two, checkpoint(3, ["one", "two", "three"]), about(2), { a: 3 });
    expect((await other.getTuple(three))!.checkpoint.channel_values).toEqual({ a: ["one", "two", "three"] });
  } finally {
    first.close();
    other.close();
    await machine.remove();
  }
}, 60_000);

it("a run that finds no checkpoint begins anew, whoever wrote first to the next thread of the name, or comes late", async () => {
  const other = new StatewardSaver(daemon.target);
  for (const isBegun of [true, false]) {
    const config = { configurable: { thread_id: `begun-${isBegun}`, checkpoint_ns: "" } };
    const of = (checkpoint_id: string) => ({ configurable: { ...config.configurable, checkpoint_id } });
    const first = await saver.put(config, checkpoint(0, 1), about(0), { a: 1 });
    await other.deleteThread(config.configurable.thread_id);
    if (isBegun) await other.putWrites(of("of a worker that died"), [["a", 1]], "task");
    expect(await saver.getTuple(config)).toBeUndefined();
    if (!isBegun) {
      const late = saver.put(first, checkpoint(1, 2), about(1), { a: 2 });
      await expect(late).rejects.toMatchObject({ reason: "UID_MISMATCH" });
    }
    const next = checkpoint(2, 3);
    await saver.putWrites(of(next.id), [["a", 4]], "task");
    await saver.put(config, next, about(0), { a: 3 });
    expect((await saver.getTuple(config))!.pendingWrites).toEqual([["task", "a", 4]]);
  }
  other.close();
});

it.each(["sync", "async"])("a thread that is deleted while a run is under way stays deleted, with durability %s", async (durability) => {
  const other = new StatewardSaver(daemon.target);
  const Said = Annotation.Root({ said: Annotation<string[]>({ reducer: (old, more) => old.concat(more), default: () => [] }) });
  let meanwhile = async () => {};
  const inner = new StateGraph(Said).addNode("talk", async () => (await meanwhile(), { said: ["late"] }))
    .addNode("bye", () => ({ said: ["bye"] })).addEdge(START, "talk").addEdge("talk", "bye").compile();
  const graph = new StateGraph(Said).addNode("inner", inner).addEdge(START, "inner").compile({ checkpointer: saver });
  const config = { configurable: { thread_id: `deleted-${durability}` } };
  await graph.invoke({ said: ["hello"] }, config);
  meanwhile = () => other.deleteThread(config.configurable.thread_id);
  const run = graph.invoke({ said: ["again"] }, { ...config, durability: durability as "sync" | "async" });
  await expect(run).rejects.toMatchObject({ reason: "UID_MISMATCH" });
  meanwhile = async () => {};
  const found = [];
  for await (const each of other.list({ configurable: { thread_id: config.configurable.thread_id } })) found.push(each);
  expect(found).toEqual([]);
  expect((await graph.invoke({ said: ["new"] }, config)).said[0]).toBe("new");
  other.close();
});

it("writes before any checkpoint of a new thread are kept", async () => {
  const first = { configurable: { thread_id: "early", checkpoint_ns: "", checkpoint_id: checkpoint(0, 0).id } };
  await saver.putWrites(first, [["a", 1]], "task");
  await saver.put(first, checkpoint(1, 1), about(0), { a: 2 });
  expect((await saver.getTuple({ configurable: { thread_id: "early" } }))!.checkpoint.channel_values).toEqual({ a: 1 });
});

it("a config without a thread, or a write without a checkpoint, says what is missing", async () => {
  await expect(saver.put({}, checkpoint(0, 1), about(0), { a: 1 })).rejects.toThrow("has no `thread_id`");
  await expect(saver.putWrites({ configurable: { thread_id: "t" } }, [], "task")).rejects.toThrow("has no `checkpoint_id`");
});

it("no daemon: the error says where none answers", async () => {
  const lonely = new StatewardSaver("unix:///tmp/no-stateward.sock", { retryTimeoutMs: 100 });
  const config = { configurable: { thread_id: "t" } };
  await expect(lonely.getTuple(config)).rejects.toThrow("no stateward daemon answers at unix:///tmp/no-stateward.sock");
  lonely.close();
});

function checkpoint(step: number, a: unknown): any {
  const id = `1f1e7739-3b1c-6112-8007-${String(step).padStart(12, "0")}`;
  return { v: 4, id, ts: "", channel_values: { a }, channel_versions: { a: step + 1 }, versions_seen: {} };
}

function about(step: number): any {
  return { source: "loop", step, parents: {} };
}
