/** Kill -9 of the agent and of the daemon at aimed moments: the same result as undisturbed. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { MemorySaver } from "@langchain/langgraph";

import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";
import { aim, build, play } from "./graph.mjs";

const AGENT = fileURLToPath(new URL("agent.mjs", import.meta.url));
// Where somebody is killed: before, in or after the n-th call of a method.
const AIMS = [
  ["put", 1, "after"], ["put", 2, "before"], ["put", 3, "in"], ["put", 7, "after"],
  ["putWrites", 4, "before"], ["putWrites", 5, "in"], ["putWrites", 6, "after"], ["getTuple", 3, "before"],
] as const;

const daemon = new Daemon();
let expected: unknown;

beforeAll(async () => {
  await daemon.start();
  expected = plain(await play(build(new MemorySaver()), "t"));
}, 30_000);
afterAll(() => daemon.remove());

const plain = (value: unknown) => JSON.parse(JSON.stringify(value));

it.each(AIMS)("a killed agent carries on: %s %i %s", (method, nth, when) => {
  const thread = `${method}-${nth}-${when}`;
  const first = spawnSync(process.execPath, [AGENT, daemon.target, thread, method, String(nth), when]);
  expect(first.signal, first.stderr.toString()).toBe("SIGKILL");
  const second = spawnSync(process.execPath, [AGENT, daemon.target, thread], { encoding: "utf8" });
  expect(JSON.parse(second.stdout)).toEqual(expected);
});

it("a daemon that is killed costs nothing", async () => {
  for (const [method, nth, when] of AIMS) {
    const aimed = new StatewardSaver(daemon.target);
    const calls = aim(aimed, method, nth, when, async () => {
      await daemon.kill();
      await daemon.start();
    });
    expect(plain(await play(build(aimed), `daemon-${method}-${nth}-${when}`))).toEqual(expected);
    expect(calls()).toBeGreaterThanOrEqual(nth);
    aimed.close();
  }
});
