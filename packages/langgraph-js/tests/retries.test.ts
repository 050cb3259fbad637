/** The danger: a call is given up that the next attempt would have answered, or repeated in vain. */
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import protobuf from "protobufjs";
import { afterEach, expect, test } from "vitest";

import { Connection } from "../src/connection.js";

const rpc = protobuf.parse(`syntax = "proto3"; package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
  message Duration { int64 seconds = 1; int32 nanos = 2; }
  message RetryInfo { Duration retry_delay = 1; }`, { keepCase: true }).root;
const encode = (type: string, fields: object) => {
  const found = rpc.lookupType(`google.rpc.${type}`);
  return found.encode(found.fromObject(fields)).finish();
};

/** The error of a daemon, as it is on the wire. */
function refusal(code: grpc.status, reason: string, facts = {}, retryMs = 0): Partial<grpc.ServiceError> {
  const detail = (type: string, fields: object) => ({
    type_url: `type.googleapis.com/google.rpc.${type}`, value: encode(type, fields),
  });
  const details = reason ? [detail("ErrorInfo", { reason, domain: "stateward", metadata: facts })] : [];
  if (retryMs) details.push(detail("RetryInfo", { retry_delay: { seconds: 0, nanos: retryMs * 1e6 } }));
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(encode("Status", { code, message: "no", details })));
  return { code, details: "no", metadata };
}

const open: { close: () => void }[] = [];
afterEach(() => open.splice(0).forEach((each) => each.close()));

/** A daemon that refuses the first lists of threads, and a connection to it. */
async function scripted(refusals: Partial<grpc.ServiceError>[], retryTimeoutMs = 5000) {
  const definition = loadSync("stateward/v1/thread_service.proto", {
    includeDirs: [fileURLToPath(new URL("../proto", import.meta.url))], keepCase: true,
  });
  const { stateward } = grpc.loadPackageDefinition(definition) as Record<string, any>;
  const server = new grpc.Server();
  const calls: number[] = [];
  server.addService(stateward.v1.ThreadService.service, {
    ListThreads: (_: unknown, answer: grpc.sendUnaryData<object>) => {
      calls.push(Date.now());
      const next = refusals.shift();
      if (next) answer(next); else answer(null, { threads: [] });
    },
  });
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, found) =>
      error ? reject(error) : resolve(found)));
  const connection = new Connection(`127.0.0.1:${port}`, { retryTimeoutMs });
  open.push(connection, { close: () => server.forceShutdown() });
  return { connection, calls };
}

const { status } = grpc;
test.each([
  ["ARCHIVE_UNAVAILABLE", refusal(status.UNAVAILABLE, "ARCHIVE_UNAVAILABLE")],
  ["SHUTTING_DOWN", refusal(status.UNAVAILABLE, "SHUTTING_DOWN", {}, 20)],
  ["QUEUE_FULL", refusal(status.RESOURCE_EXHAUSTED, "QUEUE_FULL", {}, 20)],
  ["a broken connection", refusal(status.UNKNOWN, "")],
  ["a free thread", refusal(status.FAILED_PRECONDITION, "NOT_OWNER", { free_in_s: "0.1" })],
])("the call is repeated after %s", async (_, error) => {
  const { connection, calls } = await scripted([error, error]);
  expect(await connection.listThreads({})).toMatchObject({ threads: [] });
  expect(calls.length).toBe(3);
});

test("it waits as long as the daemon asks", async () => {
  const { connection, calls } = await scripted([refusal(status.RESOURCE_EXHAUSTED, "QUEUE_FULL", {}, 300)]);
  await connection.listThreads({});
  expect(calls[1]! - calls[0]!).toBeGreaterThanOrEqual(290);
});

test.each([
  ["NOT_OWNER of an owner that is alive", refusal(status.FAILED_PRECONDITION, "NOT_OWNER"), 1],
  ["DISK_FULL", refusal(status.RESOURCE_EXHAUSTED, "DISK_FULL"), 1],
  ["a thread that is free too late", refusal(status.FAILED_PRECONDITION, "NOT_OWNER", { free_in_s: "60" }), 1],
])("the call is not repeated after %s", async (_, error, count) => {
  const { connection, calls } = await scripted([error, error]);
  await expect(connection.listThreads({})).rejects.toMatchObject({ code: error.code });
  expect(calls.length).toBe(count);
});
