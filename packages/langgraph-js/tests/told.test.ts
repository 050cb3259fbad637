/** What the saver tells about the work, in the calls that it makes anyway. The danger: a graph that waits or is over looks as if it worked. */
import { Annotation, Command, END, START, Send, StateGraph, entrypoint, interrupt } from "@langchain/langgraph";

import { Connection } from "../src/connection.js";
import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";

const daemon = new Daemon();
let saver: StatewardSaver;
let connection: Connection;

beforeAll(async () => {
  await daemon.start();
  saver = new StatewardSaver(daemon.target);
  connection = new Connection(daemon.target, {});
}, 30_000);
afterAll(async () => {
  saver.close();
  connection.close();
  await daemon.remove();
});

const Said = Annotation.Root({ said: Annotation<string[]>({ reducer: (old, more) => old.concat(more), default: () => [] }) });
const of = (thread_id: string) => ({ configurable: { thread_id } });
const info = async (thread: string) => (await connection.getThread({ namespace: "default", thread })).thread!;

it.each(["sync", "async", "exit"])("parallel questions, answers and the end, with durability %s", async (durability) => {
  const graph = new StateGraph(Said)
    .addNode("a", () => ({ said: ["a"] }))
    .addNode("b", () => ({ said: [interrupt<string, string>("B?")] }))
    .addNode("c", () => ({ said: [interrupt<string, string>("C1?") + interrupt<string, string>("C2?")] }))
    .addEdge(START, "a").addEdge("a", "b").addEdge("a", "c").compile({ checkpointer: saver });
  const thread = `parallel-${durability}`;
  const config: any = { ...of(thread), durability };
  await graph.invoke({ said: [] }, config);
  const asked = new Map<string, string>();
  for (const prompts of [["B?", "C1?"], ["C1?"], ["C2?"]]) {
    const now = await info(thread);
    expect([now.status, now.question!.parts.map((each) => each.prompt).sort()]).toEqual(["WORK_STATUS_WAITING", prompts]);
    for (const part of now.question!.parts) asked.set(part.prompt, part.name);
    const answered = prompts[0]!;
    await graph.invoke(new Command({ resume: { [asked.get(answered)!]: answered } }), config);
  }
  expect((await info(thread)).status).toBe("WORK_STATUS_COMPLETED");
}, 30_000);

it("an error, and every checkpoint with a task behind it", async () => {
  let fails = true;
  const graph = new StateGraph(Said)
    .addNode("a", () => new Command({ goto: [new Send("b", { said: [] }), new Send("b", { said: [] })] }), { ends: ["b"] })
    .addNode("b", () => {
      if (fails) throw new TypeError("no money");
      return { said: ["b"] };
    })
    .addNode("c", () => ({}))
    .addEdge(START, "a").addEdge("b", "c").addEdge("c", END).compile({ checkpointer: saver });
  await expect(graph.invoke({ said: [] }, of("fails"))).rejects.toThrow();
  const failed = await info("fails");
  expect([failed.status, failed.status_detail]).toEqual(["WORK_STATUS_FAILED", "TypeError: no money"]);
  fails = false;
  await graph.invoke(null, of("fails"));
  expect((await info("fails")).status).toBe("WORK_STATUS_COMPLETED");
  const listed = await connection.listCheckpoints({ namespace: "default", thread: "fails" });
  for (const each of listed.checkpoints) {
    const { next } = await graph.getState({ configurable: { thread_id: "fails", checkpoint_id: each.checkpoint_id } });
    expect(each.status === "WORK_STATUS_COMPLETED").toBe(next.length === 0);
  }
}, 30_000);

it("the functional form", async () => {
  const flow = entrypoint({ checkpointer: saver, name: "flow" }, async (count: number) => interrupt<string, number>(`${count}?`));
  await flow.invoke(2, of("flow"));
  expect((await info("flow")).question!.prompt).toBe("2?");
  await flow.invoke(new Command({ resume: 3 }), of("flow"));
  expect((await info("flow")).status).toBe("WORK_STATUS_COMPLETED");
}, 30_000);
