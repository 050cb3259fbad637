/** The danger: a saver that sends no token, so that a daemon that asks for one refuses it. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";

import { emptyCheckpoint } from "@langchain/langgraph-checkpoint";
import { expect, test } from "vitest";

import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";

test("the token of the options, or of the file that the variable names, goes with every call", async () => {
  const [directory, token] = [mkdtempSync("/tmp/sw-js-"), "token-" + "0".repeat(20)];
  const path = `${directory}/tokens`;
  writeFileSync(path, `${token}\n`, { mode: 0o600 });
  const daemon = new Daemon("--token-file", path);
  await daemon.start();
  const use = async (options: object) => {
    const saver = new StatewardSaver(daemon.target, options);
    try {
      const metadata = { source: "input" as const, step: -1, parents: {} };
      await saver.put({ configurable: { thread_id: "t", checkpoint_ns: "" } }, emptyCheckpoint(), metadata, {});
    } finally {
      saver.close();
    }
  };
  try {
    await expect(use({})).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
    await expect(use({ token: "wrong-" + "0".repeat(20) })).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
    await use({ token });
    process.env.STATEWARD_TOKEN_FILE = path;
    await use({});
  } finally {
    delete process.env.STATEWARD_TOKEN_FILE;
    await daemon.remove();
    rmSync(directory, { recursive: true });
  }
});
