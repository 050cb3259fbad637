/** The program of the README runs as it is written. */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { Daemon } from "./daemon.js";

it("the README's program runs", async () => {
  const root = fileURLToPath(new URL("..", import.meta.url));
  const [, program] = /```js\n(.*?)```/s.exec(readFileSync(`${root}README.md`, "utf8"))!;
  const daemon = new Daemon();
  await daemon.start();
  const env = { ...process.env, STATEWARD_TARGET: daemon.target };
  const done = spawnSync(process.execPath, ["--input-type=module"], { cwd: root, env, input: program, encoding: "utf8" });
  await daemon.remove();
  expect(done.stderr).toBe("");
  expect(done.stdout).toContain("I read 1 messages");
});
