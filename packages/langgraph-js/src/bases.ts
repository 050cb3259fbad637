/**
 * What a saver remembers: the newest checkpoints, so that it need not read them before it writes the next ones, and the
 * creation of its thread to which each checkpoint belongs.
 */
import type { ChannelVersions } from "@langchain/langgraph-checkpoint";

import type { Channels } from "./channels.js";

/** A version whose channels are known, so that only what changes is sent. Version 0 = the empty state. */
export interface Base {
  version: number;
  digest: Uint8Array;
  /** Uid of the thread; empty = any. */
  uid: string;
  channelVersions: ChannelVersions;
  channels: Channels;
}

export const EMPTY: Base = { version: 0, digest: new Uint8Array(), uid: "", channelVersions: {}, channels: new Map() };

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

/**
 * The uids of the threads to which the checkpoints belong that were written or read last. A write names the checkpoint
 * that it continues, and the daemon refuses it if the thread with that uid was deleted. LangGraph may write what a task
 * wrote before it has begun to write the task's checkpoint: such a write belongs to the thread as the run found it.
 */
export class Creations {
  readonly #checkpoints = new Map<string, string>();
  readonly #threads = new Map<string, string>();

  constructor(private readonly limit = 50_000) {}

  /** The uid of the first of these checkpoints that is known; empty = none is. */
  of(thread: string, checkpointIds: string[]): string {
    for (const id of checkpointIds) {
      const found = this.#checkpoints.get(keyOf(thread, id));
      if (found) return found;
    }
    return "";
  }

  /** The uid that the thread had last; empty = it was not there, or is not known. */
  ofThread(thread: string): string {
    return this.#threads.get(thread) ?? "";
  }

  /**
   * `isSeen`: the daemon has answered with the uid. A checkpoint that is about to be written says nothing about the
   * thread: it may be late.
   */
  note(thread: string, checkpointId: string, uid: string, isSeen = true): void {
    if (!checkpointId || !uid) return;
    this.#put(this.#checkpoints, keyOf(thread, checkpointId), uid);
    if (isSeen) this.#put(this.#threads, thread, uid);
  }

  /**
   * A run that begins now finds no checkpoint, so any thread of the name is its own. What earlier runs write stays as it
   * was noted.
   */
  noteMissing(thread: string): void {
    this.#threads.delete(thread);
  }

  #put(items: Map<string, string>, key: string, uid: string): void {
    items.delete(key);
    items.set(key, uid);
    for (const oldest of items.keys()) {
      if (items.size <= this.limit) return;
      items.delete(oldest);
    }
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
