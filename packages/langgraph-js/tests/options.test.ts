/** Threads that go by themselves: TTL and retention. */
import { StatewardSaver } from "../src/index.js";
import { Connection } from "../src/connection.js";
import { Daemon } from "./daemon.js";

const daemon = new Daemon();
let connection: Connection;

beforeAll(async () => {
  await daemon.start();
  connection = new Connection(daemon.target, {});
}, 30_000);
afterAll(async () => {
  connection.close();
  await daemon.remove();
});

const config = (thread_id: string) => ({ configurable: { thread_id, checkpoint_ns: "" } });
const about: any = { source: "loop", step: 0, parents: {} };
const checkpoint: any = {
  v: 4, id: "1f1e7739-3b1c-6112-8007-000000000000", ts: "", channel_values: { a: 1 }, channel_versions: { a: 1 }, versions_seen: {},
};

it.each(["a checkpoint", "a write"])("the thread is made with both, whatever makes it: %s", async (first) => {
  const saver = new StatewardSaver(daemon.target, { ttlMs: 90_500, retention: { keepLast: 3, keepForMs: 1000 } });
  if (first === "a checkpoint") await saver.put(config(first), checkpoint, about, { a: 1 });
  else await saver.putWrites({ configurable: { ...config(first).configurable, checkpoint_id: checkpoint.id } }, [["a", 1]], "t");
  const { thread } = await connection.getThread({ namespace: "default", thread: first });
  expect([Number(thread!.ttl!.seconds), thread!.ttl!.nanos]).toEqual([90, 500_000_000]);
  expect([Number(thread!.retention!.keep_last), Number(thread!.retention!.keep_for!.seconds)]).toEqual([3, 1]);
  saver.close();
});

it("a thread of a saver without them stays whole", async () => {
  const saver = new StatewardSaver(daemon.target);
  await saver.put(config("whole"), checkpoint, about, { a: 1 });
  const { thread } = await connection.getThread({ namespace: "default", thread: "whole" });
  expect([thread!.ttl, thread!.retention]).toEqual([null, null]);
  saver.close();
});

it("a graph with delta channels is refused with retention, before anything is written", async () => {
  const saver = new StatewardSaver(daemon.target, { retention: { keepLast: 3 } });
  const delta = { ...about, counters_since_delta_snapshot: { a: 1 } };
  await expect(saver.put(config("delta"), checkpoint, delta, { a: 1 })).rejects.toThrow("delta channels");
  expect(await saver.getTuple(config("delta"))).toBeUndefined();
  saver.close();
});

it.each([{ ttlMs: 0 }, { ttlMs: NaN }, { retention: { keepLast: 0 } }, { retention: { keepForMs: -1 } }])(
  "a wrong option is named: %o", (options) => {
    expect(() => new StatewardSaver(daemon.target, options)).toThrow(/ttlMs|retention/);
  },
);
