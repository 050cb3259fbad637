/** Reading a checkpoint makes nothing that another client of the daemon put into it. */
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { PromptTemplate } from "@langchain/core/prompts";
import { JsonPlusSerializer } from "@langchain/langgraph-checkpoint";

import { StatewardSaver, TypeNotAllowedError } from "../src/index.js";
import { Daemon } from "./daemon.js";

const daemon = new Daemon();
const PATH = "langchain_core/prompts/prompt/PromptTemplate";
const prompt = () => PromptTemplate.fromTemplate("From {city}");
let guarded: StatewardSaver, trusting: StatewardSaver, allowing: StatewardSaver;

beforeAll(async () => {
  await daemon.start();
  guarded = new StatewardSaver(daemon.target);
  trusting = new StatewardSaver(daemon.target, { serde: new JsonPlusSerializer() });
  allowing = new StatewardSaver(daemon.target, { allowedTypes: [PATH] });
}, 30_000);
afterAll(async () => {
  for (const each of [guarded, trusting, allowing]) each.close();
  await daemon.remove();
});

const config = (thread_id: string) => ({ configurable: { thread_id, checkpoint_ns: "" } });
const about: any = { source: "loop", step: 0, parents: {} };
const checkpoint = (a: unknown): any => ({
  v: 4, id: "1f1e7739-3b1c-6112-8007-000000000000", ts: "", channel_values: { a }, channel_versions: { a: 1 }, versions_seen: {},
});

it.each([["slot", () => prompt()], ["log", () => ["text", prompt()]], ["nested", () => ({ deep: [{ a: new Map([[1, prompt()]]) }, prompt()] })]])(
  "a class that is not allowed is neither stored nor loaded: %s", async (name, make) => {
    const error = { name: "TypeNotAllowedError", typeName: PATH, message: expect.stringContaining("allowedTypes") };
    await expect(guarded.put(config(name), checkpoint(make()), about, { a: 1 })).rejects.toMatchObject(error);
    expect(await guarded.getTuple(config(name))).toBeUndefined();
    const saved = await trusting.put(config(name), checkpoint(make()), about, { a: 1 });
    await expect(guarded.putWrites(saved, [["a", make()]], "task")).rejects.toMatchObject(error);
    await expect(guarded.getTuple(config(name))).rejects.toBeInstanceOf(TypeNotAllowedError);
    expect((await allowing.getTuple(config(name)))!.checkpoint.channel_values).toEqual(
      (await trusting.getTuple(config(name)))!.checkpoint.channel_values,
    );
  },
);

it("messages need no permission", async () => {
  const messages = [new HumanMessage("Rome?"), new AIMessage({ content: "", tool_calls: [{ name: "a", args: {}, id: "1" }] })];
  await guarded.put(config("messages"), checkpoint(messages), about, { a: 1 });
  const found = (await guarded.getTuple(config("messages")))!.checkpoint.channel_values.a as unknown[];
  expect(found).toEqual(messages);
  expect(found[1]).toBeInstanceOf(AIMessage);
});

it("a list of classes and a serializer together are refused", () => {
  const both = { allowedTypes: [PATH], serde: new JsonPlusSerializer() };
  expect(() => new StatewardSaver(daemon.target, both)).toThrow("allowedTypes");
});
