// Calls that outlive a daemon that is away, and the reasons of errors.
import { setTimeout as sleep } from "node:timers/promises";

import * as grpc from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";

import type { ErrorInfo__Output } from "./generated/google/rpc/ErrorInfo.js";
import type { RetryInfo__Output } from "./generated/google/rpc/RetryInfo.js";
import type { Status__Output } from "./generated/google/rpc/Status.js";

const options = { includeDirs: ["proto"], longs: String, defaults: true };
const google = loadSync(["google/rpc/status.proto", "google/rpc/error_details.proto"], options);
const RETRY_TIMEOUT_MS = 30_000;
const MAX_PAUSE_MS = 1000;
// A daemon that stops may end a call with CANCELLED.
const PASSING = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED, grpc.status.CANCELLED, grpc.status.UNKNOWN];

/** Repeats an attempt until it succeeds, fails for good, or the time is over. */
export async function repeat<A>(attempt: () => Promise<A>): Promise<A> {
  const end = Date.now() + RETRY_TIMEOUT_MS;
  for (let number = 0; ; number++) {
    try {
      return await attempt();
    } catch (error) {
      const pauseMs = pauseAfter(error, number);
      if (pauseMs === undefined || Date.now() + pauseMs > end) throw error;
      await sleep(pauseMs);
    }
  }
}

/** Whether an error is that of a call. */
export function isCallError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && "metadata" in error && "code" in error;
}

/**
 * Returns why the daemon refused a call, the facts that error_reason.proto names for the reason, and how long to wait
 * before another attempt. The reason is empty if the error comes from gRPC itself.
 */
export function explain(error: grpc.ServiceError) {
  const why = { reason: "", facts: {} as Record<string, string>, retryMs: 0 };
  const [trailer] = error.metadata.get("grpc-status-details-bin");
  if (!(trailer instanceof Buffer)) return why;
  for (const detail of read<Status__Output>("google.rpc.Status", trailer).details) {
    const { type_url, value } = detail as { type_url: string; value: Buffer };
    if (type_url.endsWith("/google.rpc.ErrorInfo")) {
      const { domain, reason, metadata } = read<ErrorInfo__Output>("google.rpc.ErrorInfo", value);
      if (domain === "stateward") Object.assign(why, { reason, facts: metadata });
    } else if (type_url.endsWith("/google.rpc.RetryInfo")) {
      const { retryDelay } = read<RetryInfo__Output>("google.rpc.RetryInfo", value);
      if (retryDelay) why.retryMs = Number(retryDelay.seconds) * 1000 + retryDelay.nanos / 1e6;
    }
  }
  return why;
}

/** Makes the status of a refused frame the error that a call by itself throws. */
export function refusal(refused: Status__Output): grpc.ServiceError {
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", messageType("google.rpc.Status").serialize(refused));
  return Object.assign(new Error(refused.message), { code: refused.code, details: refused.message, metadata });
}

function read<A>(type: string, data: Buffer): A {
  return messageType(type).deserialize(data) as A;
}

function messageType(type: string): MessageTypeDefinition<object, object> {
  return google[type] as MessageTypeDefinition<object, object>;
}

/** Returns for how many milliseconds to wait before another attempt; undefined = the error is final. */
export function pauseAfter(error: unknown, attempt: number): number | undefined {
  if (!isCallError(error)) return undefined;
  const { reason, facts, retryMs } = explain(error);
  if (reason === "NOT_OWNER" && facts.free_in_s) return Math.max(Number(facts.free_in_s) * 1000, 50);
  if (retryMs) return retryMs;
  if (!PASSING.includes(error.code) && reason !== "QUEUE_FULL") return undefined;
  return Math.min(50 * 2 ** attempt, MAX_PAUSE_MS) * (0.5 + Math.random() / 2);
}
