// Plays the client of a scenario of `stateward conformance`; docs/protocol.md says what each procedure does.
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { status, type ServiceError } from "@grpc/grpc-js";

import { Thread, checkpoints, newOptions, set, signals, text, type Hydrated } from "./client.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { Value__Output } from "./generated/stateward/v1/Value.js";
import { explain, isCallError } from "./retry.js";
import { readBlob, watch, writeBlob } from "./streams.js";
import { callOnce, getRecords, holding, listKeys, putRecord } from "./work.js";
import { stream } from "./writer.js";

const sha256 = (data: Uint8Array): Buffer => createHash("sha256").update(data).digest();
const reason = (error: ServiceError): string => explain(error).reason || status[error.code]!;

/** Runs a scenario. Returns the exit code: 77 if this client does not have its procedure. */
export async function conform(target: string, scenario: string): Promise<number> {
  const procedure = procedures[scenario.split("/")[0]!];
  if (!procedure) return 77;
  const thread = new Thread(target, `conformance/${scenario}`, 2000);
  try {
    await procedure(thread);
  } catch (error) {
    if (!isCallError(error)) throw error;
    await put(thread, set("error", text(reason(error))));
  }
  return 0;
}

const procedures: Record<string, (thread: Thread) => Promise<unknown>> = {
  async advance(thread) {
    while (!(await advanced(thread))) { /* a conflict: read the new head, and save on top of it */ }
  },

  async since(thread) {
    const known = await thread.hydrate();
    await saveDigest(thread, await thread.hydrate(known));
  },

  async splice(thread) {
    const { slots } = await thread.hydrate();
    const data = slots.text!.data!;
    const splices = [{ offset: data.indexOf("Paris"), delete: 5, insert: Buffer.from("Rome") }];
    await thread.save(thread.next({ spliceSlot: { slot: "text", baseSha256: sha256(data), splices } }));
  },

  async count(thread) {
    const { numbers } = await put(thread, { addNumber: { slot: "count", delta: "9007199254740993" } });
    await put(thread, set("seen", text(numbers.count!)));
  },

  async watch(thread) {
    const seen: string[] = [];
    for await (const { sequence, checkpoint } of watch(thread, 0)) {
      seen.push(sequence);
      if (checkpoint?.status === "WORK_STATUS_COMPLETED") break;
    }
    await put(thread, set("seen", text(seen.join(","))));
  },

  async "write-blob"(thread) {
    const blob = await writeBlob(thread, Buffer.from(Array.from({ length: 2_500_000 }, (_, place) => place % 251)));
    await put(thread, set("file", { mediaType: "application/octet-stream", blob }));
  },

  async "read-blob"(thread) {
    const { slots } = await thread.hydrate();
    const data = await readBlob(thread, slots.file!.blob!);
    await thread.save(thread.next(set("seen", text(sha256(data).toString("hex")))));
  },

  writer: (thread) => stream(thread, ["1", "2", "3", "4"].map((words) => set("seen", text(words)))),

  async lease(thread) {
    try {
      await holding(thread, thread.name, 1, async ({ token, lost }) => {
        await sleep(2000);
        if (!lost.aborted) await put(thread, set("seen", text("held")), { options: newOptions({ leaseToken: token }) });
      });
    } catch (error) {
      if (reason(error as ServiceError) !== "LEASE_HELD") throw error;
    } // another holder has the thread: nothing is saved any more
  },

  guard: (thread) => {
    const lock = `locks/${thread.name}`;
    return holding(thread, lock, 30, ({ token, uid }) =>
      put(thread, set("seen", text("guarded")), { guard: { thread: lock, token, expectedUid: uid } }));
  },

  async effect(thread) {
    const tool = { call: async () => text("paid"), check: async () => text("found") };
    await put(thread, set("seen", (await callOnce(thread, "", "pay", tool)).result));
  },

  async ask(thread) {
    await thread.hydrate();
    const question = { prompt: "May it cost 300?" };
    await thread.save({ ...thread.next(), status: "WORK_STATUS_WAITING", waitId: "budget", question });
    for (;;) {
      const answer = (await thread.hydrate()).signals.find((signal) => signal.waitId === "budget");
      if (answer) { // it is acknowledged in the save that uses it
        const use = thread.next(set("seen", text(String(answer.payload!.data))));
        return thread.save({ ...use, ackSignals: [answer.signalId] });
      }
      await sleep(50);
    }
  },

  answer: (thread) => {
    const signal = { name: "answer", waitId: "budget", payload: text("yes") };
    return thread.call(signals.SendSignal, { thread: thread.name, options: newOptions(), ...signal });
  },

  async record(thread) {
    for (;;) {
      const found = (await getRecords(thread, "count")).get("count");
      const number = Number(found?.value?.data ?? 0) + 1;
      try {
        return await putRecord(thread, "count", text(String(number)), found?.revision ?? 0);
      } catch (error) {
        if (reason(error as ServiceError) !== "RECORD_CONFLICT") throw error;
      }
    }
  },

  async records(thread) {
    const keys = await listKeys(thread, "users/");
    const found = await getRecords(thread, ...keys);
    const seen = keys.filter((key) => found.has(key)).map((key) => `${key}=${found.get(key)!.value!.data}`);
    await put(thread, set("seen", text(seen.join(","))));
  },
};

/** Saves the digest of the state, or of the empty state of a new thread. Returns false after a conflict. */
async function advanced(thread: Thread): Promise<boolean> {
  const state = await thread.hydrate().catch((error: ServiceError) => {
    if (reason(error) !== "THREAD_NOT_FOUND") throw error;
    Object.assign(thread, { version: "0", digest: new Uint8Array(), uid: "" });
    return { slots: {}, logs: {} };
  });
  try {
    await saveDigest(thread, state);
    return true;
  } catch (error) {
    if (reason(error as ServiceError) === "VERSION_MISMATCH") return false;
    throw error;
  }
}

type State = Pick<Hydrated, "slots" | "logs">;

const saveDigest = (thread: Thread, state: State) => thread.save(thread.next(set("seen", text(digest(state)))));

/** Saves an edit on top of any version. */
function put(thread: Thread, edit: Edit, fields: SaveRequest = {}) {
  const request = { thread: thread.name, options: newOptions(), diff: { edits: [edit] } };
  return thread.call(checkpoints.Save, { ...request, ...fields });
}

/** Returns the SHA-256 of the state's canonical form. */
function digest({ slots, logs }: State): string {
  const fields: (string | number | Uint8Array)[] = [];
  const value = ({ mediaType, content, data, number, blob }: Value__Output): void => {
    fields.push(mediaType, content ?? "", data ?? number ?? blob?.sha256 ?? "");
  };
  for (const [name, slot] of sorted(slots)) {
    fields.push("slot", name);
    value(slot);
  }
  for (const [name, { firstIndex, rewrittenVersion, entries }] of sorted(logs)) {
    fields.push("log", name, firstIndex ?? 0, rewrittenVersion, entries.length);
    entries.forEach(value);
  }
  const bytes = fields.map((field) => (field instanceof Uint8Array ? field : Buffer.from(String(field))));
  return sha256(Buffer.concat(bytes.flatMap((field) => [Buffer.from(`${field.length}:`), field]))).toString("hex");
}

/** Returns the entries in the order of the names' bytes. */
function sorted<T>(entries: Record<string, T>): [string, T][] {
  return Object.entries(entries).sort(([one], [other]) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
}
