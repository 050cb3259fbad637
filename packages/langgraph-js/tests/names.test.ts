/** The danger: LangGraph's own savers take a name, and this one refuses it or takes it for another. */
import { MemorySaver } from "@langchain/langgraph";
import { afterAll, beforeAll, expect, it } from "vitest";

import { StatewardSaver } from "../src/index.js";
import { isOrphans, nameFor, textOf } from "../src/names.js";
import { Daemon } from "./daemon.js";

const LONG = "x".repeat(3000);
const NAMES = [
  "-", "plain", "main", "ns/main", "a\0b", "\n", "\x85", "é".repeat(600), LONG, `${LONG}y`, "t@@3", "~%41", "~#41", "100%",
  "\ud800", "a\udfffb", "🌍", "a|b:c",
];
const daemon = new Daemon();
let saver: StatewardSaver;

beforeAll(async () => {
  await daemon.start();
  saver = new StatewardSaver(daemon.target);
}, 30_000);
afterAll(async () => {
  saver.close();
  await daemon.remove();
});

function checkpoint(id: string, values: Record<string, unknown>): any {
  const versions = Object.fromEntries(Object.keys(values).map((name) => [name, 1]));
  return { v: 4, id, ts: "", channel_values: values, channel_versions: versions, versions_seen: {} };
}

async function all(list: AsyncGenerator<any>): Promise<string[]> {
  const found = [];
  for await (const { config, parentConfig, checkpoint: it, pendingWrites } of list) {
    found.push(JSON.stringify([config, parentConfig ?? null, Object.entries(it.channel_values), pendingWrites]));
  }
  return found.sort();
}

it("a name has at most 1,024 bytes, no control characters and no surrogates, and is its text again", () => {
  const names = [...NAMES, ""].map((each) => nameFor(each));
  expect(new Set(names).size).toBe(NAMES.length + 1);
  for (const [at, name] of names.entries()) {
    expect(name).toMatch(/^[^\p{Cc}\p{Surrogate}]+$/u);
    expect(Buffer.byteLength(name)).toBeLessThanOrEqual(1024);
    if (!name.startsWith("~#")) expect(textOf(name)).toBe([...NAMES, ""][at]);
  }
});

it("the names of orphans, which lists leave out, are none of its own", () => {
  expect(["t@@1", "t@@1.2", "a\n@@10"].filter(isOrphans)).toHaveLength(3);
  expect(["t@1", "t@@", "t@@1a", "@@1", "t@@1.", ...NAMES.map((each) => nameFor(each))].filter(isOrphans)).toEqual([]);
});

it("threads, namespaces, checkpoints, channels, tasks and paths of any name", async () => {
  const memory = new MemorySaver();
  for (const each of [saver, memory]) {
    for (const name of NAMES) {
      const place = { configurable: { thread_id: name, checkpoint_ns: name } };
      const first = await each.put(place, checkpoint(name, { [name]: [name] }), { source: "loop", step: 1, parents: {} }, { [name]: 1 });
      await each.putWrites(first, [[name, 1]], name, name);
      const about = { source: "loop" as const, step: 2, parents: {} };
      await each.put(first, checkpoint(`${name}~`, { [name]: [name, 2] }), about, { [name]: 2 });
    }
  }
  expect(await all(saver.list({}))).toEqual(await all(memory.list({})));
  for (const name of NAMES) {
    const config = { configurable: { thread_id: name, checkpoint_ns: name } };
    expect((await saver.getTuple(config))!.config).toEqual((await memory.getTuple(config))!.config);
    await saver.deleteThread(name);
    expect(await saver.getTuple(config)).toBeUndefined();
  }
  expect(await all(saver.list({}))).toEqual([]);
}, 60_000);
