/** What a saver remembers of the newest checkpoints, so that it need not read them before it writes the next ones. */
import type { ChannelVersions } from "@langchain/langgraph-checkpoint";

import type { Channels } from "./channels.js";

/** A version whose channels are known, so that only what changes is sent. Version 0 = the empty state. */
export interface Base {
  version: number;
  digest: Uint8Array;
  channelVersions: ChannelVersions;
  channels: Channels;
}

export const EMPTY: Base = { version: 0, digest: new Uint8Array(), channelVersions: {}, channels: new Map() };

/** The newest version of each branch that was written or read last, within a memory limit. */
export class Bases {
  readonly #items = new Map<string, { id: string; base: Base; bytes: number }>();
  #used = 0;

  constructor(private readonly limitBytes: number) {}

  get(thread: string, branch: string, checkpointId: string): Base | undefined {
    const found = this.#items.get(keyOf(thread, branch));
    return found?.id === checkpointId ? found.base : undefined;
  }

  keep(thread: string, branch: string, id: string, base: Base): void {
    const key = keyOf(thread, branch);
    const bytes = sizeOf(base);
    this.#drop(key);
    this.#items.set(key, { id, base, bytes });
    this.#used += bytes;
    for (const oldest of this.#items.keys()) if (this.#used > this.limitBytes) this.#drop(oldest);
  }

  forget(thread: string, branch: string): void {
    this.#drop(keyOf(thread, branch));
  }

  forgetThread(thread: string): void {
    for (const key of this.#items.keys()) if (JSON.parse(key)[0] === thread) this.#drop(key);
  }

  #drop(key: string): void {
    this.#used -= this.#items.get(key)?.bytes ?? 0;
    this.#items.delete(key);
  }
}

function keyOf(thread: string, branch: string): string {
  return JSON.stringify([thread, branch]);
}

function sizeOf(base: Base): number {
  let bytes = 1000;
  for (const stored of base.channels.values()) {
    for (const each of "piece" in stored ? [stored.piece] : stored.pieces) bytes += 100 + each.data.length;
  }
  return bytes;
}
