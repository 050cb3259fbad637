/** The programs of README.md and of docs/frameworks.md run as they are written. */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { Daemon } from "./daemon.js";

const ROOT = fileURLToPath(new URL("..", import.meta.url));

/** The block of a page in `language`. */
function block(page: string, language: string): string {
  return new RegExp("```" + language + "\\n(.*?)```", "s").exec(readFileSync(`${ROOT}${page}`, "utf8"))![1]!;
}

async function run(program: string): Promise<string> {
  const daemon = new Daemon();
  await daemon.start();
  const env = { ...process.env, STATEWARD_TARGET: daemon.target };
  const done = spawnSync(process.execPath, ["--input-type=module"], { cwd: ROOT, env, input: program, encoding: "utf8" });
  await daemon.remove();
  expect(done.stderr).toBe("");
  return done.stdout;
}

it("the README's program runs", async () => {
  expect(await run(block("README.md", "js"))).toContain("I read 1 messages");
});

it("the lines of docs/frameworks.md run in the README's program", async () => {
  const lines = block("../../docs/frameworks.md", "ts");
  const program = block("README.md", "js");
  const begin = program.replace(/^import.*@stateward.*\n|^const (saver|graph) = .*\n/gm, "");
  const at = begin.indexOf("const { messages } = await");
  expect(await run(begin.slice(0, at) + lines + begin.slice(at))).toContain("I read 1 messages");
});
