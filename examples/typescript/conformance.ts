// Plays the client of a scenario of `stateward conformance`; docs/protocol.md says what each procedure does.
import { createHash } from "node:crypto";

import { status, type ServiceError } from "@grpc/grpc-js";

import { Thread, checkpoints, newId, set, text } from "./client.js";
import { explain } from "./errors.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { Value__Output } from "./generated/stateward/v1/Value.js";

const sha256 = (data: Uint8Array): Buffer => createHash("sha256").update(data).digest();
const reason = (error: ServiceError): string => explain(error).reason || status[error.code]!;

/** Runs a scenario. Returns the exit code: 77 if this client does not have its procedure. */
export async function conform(target: string, scenario: string): Promise<number> {
  const procedure = procedures[scenario.split("/")[0]!];
  if (!procedure) return 77;
  await procedure(new Thread(target, `conformance/${scenario}`, 2000));
  return 0;
}

const procedures: Record<string, (thread: Thread) => Promise<void>> = {
  async advance(thread) {
    try {
      while (!(await saveDigest(thread))) { /* a conflict: read the new head, and save on top of it */ }
    } catch (error) {
      await put(thread, set("error", text(reason(error as ServiceError))));
    }
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
};

/** Saves the digest of the state, or of the empty state of a new thread. Returns false after a conflict. */
async function saveDigest(thread: Thread): Promise<boolean> {
  const state = await thread.hydrate().catch((error: ServiceError) => {
    if (reason(error) !== "THREAD_NOT_FOUND") throw error;
    return { slots: {}, logs: {} };
  });
  try {
    await thread.save(thread.next(set("seen", text(digest(state)))));
    return true;
  } catch (error) {
    if (reason(error as ServiceError) === "VERSION_MISMATCH") return false;
    throw error;
  }
}

/** Saves an edit on top of any version. */
function put(thread: Thread, edit: Edit) {
  return thread.call(checkpoints.Save, { thread: thread.name, requestId: newId(), diff: { edits: [edit] } });
}

/** Returns the SHA-256 of the state's canonical form. */
function digest({ slots, logs }: Pick<Awaited<ReturnType<Thread["hydrate"]>>, "slots" | "logs">): string {
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
