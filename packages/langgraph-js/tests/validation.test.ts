/** LangGraph's own validation suite, against a real daemon. Each checkpointer has a namespace of its own. */
import { randomUUID } from "node:crypto";

import { validate } from "@langchain/langgraph-checkpoint-validation";

import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";

const daemon = new Daemon();

validate<StatewardSaver>({
  checkpointerName: "StatewardSaver",
  beforeAll: () => daemon.start(),
  beforeAllTimeout: 30_000,
  afterAll: () => daemon.remove(),
  createCheckpointer: () => new StatewardSaver(daemon.target, { namespace: randomUUID() }),
  destroyCheckpointer: (saver) => saver.close(),
});
