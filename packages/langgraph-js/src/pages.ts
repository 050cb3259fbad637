/** Reads all pages of a state, with the effects of its version, and joins them. */
import type { Connection } from "./connection.js";
import type { Checkpoint__Output } from "./generated/stateward/v1/Checkpoint.js";
import type { HydrateRequest } from "./generated/stateward/v1/HydrateRequest.js";
import type { RecordedEffect__Output } from "./generated/stateward/v1/RecordedEffect.js";
import type { State__Output } from "./generated/stateward/v1/State.js";
import type { Value__Output } from "./generated/stateward/v1/Value.js";

export interface Pages {
  checkpoint: Checkpoint__Output;
  slots: State__Output["slots"];
  logs: State__Output["logs"];
  effects: RecordedEffect__Output[];
}

export async function readPages(connection: Connection, request: HydrateRequest): Promise<Pages> {
  const slots: Pages["slots"] = {};
  const logs: Pages["logs"] = {};
  let effects: RecordedEffect__Output[] = [];
  let pieces: Uint8Array[] = [];
  for (let page_token = ""; ; ) {
    const page = await connection.hydrate({ ...request, page_token });
    Object.assign(slots, page.state?.slots);
    for (const [name, log] of Object.entries(page.state?.logs ?? {})) {
      if (logs[name]) logs[name].entries = logs[name].entries.concat(log.entries);
      else logs[name] = log;
    }
    if (page.chunk) {
      const { data, media_type, offset, size_bytes, slot, log, index } = page.chunk;
      pieces.push(data);
      if (offset + data.length >= size_bytes) {
        const value: Value__Output = { media_type, data: Buffer.concat(pieces), content: "data" };
        pieces = [];
        if (slot !== undefined) slots[slot] = value;
        else (logs[log!] ??= { first_index: index, entries: [], rewritten_version: 0 }).entries.push(value);
      }
    }
    effects = effects.concat(page.effects);
    page_token = page.next_page_token;
    if (!page_token) return { checkpoint: page.checkpoint!, slots, logs, effects };
  }
}
