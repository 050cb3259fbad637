/**
 * What LangGraph tells a saver about its work, as a status of Stateward: what waits and for what, what failed, what is over.
 *
 * The rules are those of the saver for Python (`stateward/langgraph/_telling.py`).
 */
import { createHash } from "node:crypto";

import { type Checkpoint, ERROR, INTERRUPT, type PendingWrite, RESUME, TASKS } from "@langchain/langgraph-checkpoint";

import { nameFor } from "./names.js";

const NO_TASK = "00000000-0000-0000-0000-000000000000";
const START = "__start__";
const END = "__end__";
const OWN_NAMES = ["__input__", INTERRUPT];
const DETAIL_BYTES_MAX = 4096;
const PROMPT_BYTES_MAX = 8000;
const TEXT_BYTES_MAX = 60_000;
const PARTS_MAX = 100;

export type Status = "WORK_STATUS_RUNNING" | "WORK_STATUS_WAITING" | "WORK_STATUS_COMPLETED" | "WORK_STATUS_FAILED";

/** Fields of PutEffects. */
export interface Told {
  status: Status;
  status_detail?: string;
  asker?: string;
  wait_id?: string;
  question?: { prompt: string; parts: { name: string; prompt: string }[] };
}

/** COMPLETED if no task follows a checkpoint of the graph that has the thread for itself; RUNNING also if that cannot be told. */
export function statusOf(checkpoint: Checkpoint, source: unknown): Status {
  const values = checkpoint.channel_values;
  const tasks = values[TASKS];
  const hasTasks = Array.isArray(tasks) ? tasks.length > 0 : tasks !== undefined;
  const isOver =
    (source === "loop" || source === "update") &&
    namesItsEdges(checkpoint) &&
    !hasTasks &&
    !Object.entries(values).some(([channel, value]) => isEdge(channel) && mayTrigger(value));
  return isOver ? "WORK_STATUS_COMPLETED" : "WORK_STATUS_RUNNING";
}

/** Whether the graph's nodes were triggered by channels with LangGraph's own names only. */
function namesItsEdges(checkpoint: Checkpoint): boolean {
  const seen = Object.entries(checkpoint.versions_seen).filter(([name]) => !OWN_NAMES.includes(name));
  if (!seen.some(([name]) => name === START) && !(END in checkpoint.channel_versions)) return false;
  return seen.every(([, channels]) => Object.keys(channels).every((each) => isEdge(each) || each === TASKS));
}

function isEdge(channel: string): boolean {
  return channel === START || channel.startsWith("branch:") || channel.startsWith("join:");
}

/** Whether a channel with this value may be complete: one that joins branches is empty after it has triggered. */
function mayTrigger(value: unknown): boolean {
  const isDeferred = Array.isArray(value) && value.length === 2 && typeof value[1] === "boolean";
  const met = isDeferred ? value[0] : value;
  return !Array.isArray(met) || met.length > 0;
}

/** What the writes of a task tell; undefined = nothing. Several tasks may ask at once, each for itself. */
export function toldBy(writes: PendingWrite[], checkpointId: string, taskId: string): Told | undefined {
  const found = new Map<string, unknown>(writes.map(([channel, value]) => [channel as string, value]));
  const resumed = found.get(RESUME);
  if (found.has(INTERRUPT)) {
    const turn = Array.isArray(resumed) ? resumed.length : resumed === undefined ? 0 : 1;
    return asked(found.get(INTERRUPT), checkpointId, taskId, turn);
  }
  if (found.has(ERROR)) {
    const error = found.get(ERROR) as { name?: string; message?: string } | string | undefined;
    const text = typeof error === "string" ? error : [error?.name, error?.message].filter(Boolean).join(": ");
    return { status: "WORK_STATUS_FAILED", status_detail: cut(text || "Error", DETAIL_BYTES_MAX), asker: nameFor(taskId) };
  }
  if (!found.has(RESUME)) return undefined;
  if (taskId === NO_TASK) return { status: "WORK_STATUS_RUNNING" };
  return { status: "WORK_STATUS_RUNNING", asker: nameFor(taskId) };
}

function asked(interrupts: unknown, checkpointId: string, taskId: string, turn: number): Told {
  const several = (Array.isArray(interrupts) ? interrupts : [interrupts]).slice(0, PARTS_MAX);
  const room = Math.min(PROMPT_BYTES_MAX, Math.floor(TEXT_BYTES_MAX / Math.max(1, several.length)));
  const parts = new Map<string, { name: string; prompt: string }>();
  for (const each of several as ({ id?: string; interrupt_id?: string; value?: unknown } | null | undefined)[]) {
    const name = nameFor(String(each?.id ?? each?.interrupt_id ?? taskId));
    parts.set(name, { name, prompt: cut(promptOf(each?.value), room) });
  }
  if (parts.size === 0) return { status: "WORK_STATUS_WAITING" };
  const all = [...parts.values()];
  return {
    status: "WORK_STATUS_WAITING",
    asker: nameFor(taskId),
    wait_id: waitId(checkpointId, taskId, ...parts.keys(), turn),
    question: { prompt: all.map((each) => each.prompt).join("\n"), parts: all },
  };
}

/** A wait id that is the same whenever the same is asked, so an answer fits after a restart. */
function waitId(...facts: unknown[]): string {
  return createHash("sha256").update(JSON.stringify(facts)).digest("hex").slice(0, 16);
}

/** A value as the text that a person is asked. */
function promptOf(value: unknown): string {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return "<object>";
  }
}

/** The text, or its beginning and an ellipsis. Lone surrogates are replaced. */
function cut(text: string, bytesMax: number): string {
  if (Buffer.byteLength(text) <= bytesMax) return Buffer.from(text).toString();
  const kept = Buffer.from(text).subarray(0, bytesMax - 3);
  return `${new TextDecoder().decode(kept).replace(/\ufffd+$/u, "")}…`;
}
