/** LangGraph.js on Stateward: `StatewardSaver` keeps the checkpoints of graphs. */
import { randomUUID } from "node:crypto";
import { isDeepStrictEqual } from "node:util";

import { status } from "@grpc/grpc-js";
import type { RunnableConfig } from "@langchain/core/runnables";
import {
  BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  type CheckpointTuple,
  type PendingWrite,
  type SerializerProtocol,
  TASKS,
  WRITES_IDX_MAP,
  compareWritesSortKeys,
  getCheckpointId,
  maxChannelVersion,
  writesSortKey,
} from "@langchain/langgraph-checkpoint";

import { type Base, Bases, Creations, EMPTY } from "./bases.js";
import { Edits, dump, fromValue, load, loadChannels, readChannels, toValue } from "./channels.js";
import { Connection, type ConnectionOptions } from "./connection.js";
import { StatewardError } from "./errors.js";
import type { Checkpoint__Output } from "./generated/stateward/v1/Checkpoint.js";
import type { Effect } from "./generated/stateward/v1/Effect.js";
import type { RecordedEffect__Output } from "./generated/stateward/v1/RecordedEffect.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { SaveResponse__Output } from "./generated/stateward/v1/SaveResponse.js";
import { type Pages, readPages } from "./pages.js";
import { resolveTarget } from "./target.js";

const REST = "checkpoint";
const RUN_LABEL = "run_id";
const MAIN = "main";
const ESCAPE = "ns/";
const PAGE = 100;
const EFFECTS_MAX = 1000;
const MISSING = ["THREAD_NOT_FOUND", "VERSION_NOT_FOUND", "VERSION_PRUNED"];
const STALE = ["VERSION_MISMATCH", "EDIT_CONFLICT", "VERSION_NOT_FOUND", "VERSION_PRUNED"];

export interface StatewardSaverOptions extends ConnectionOptions {
  /** Keeps graphs apart from other work; default "default". */
  namespace?: string;
  serde?: SerializerProtocol;
  /** True: a checkpoint whose parent is no longer the newest fails with VERSION_MISMATCH, and does not make a fork. */
  writeOwnership?: boolean;
  /** How many bytes are remembered of the newest checkpoints, which spares reading them; default 64 MiB. */
  cacheBytes?: number;
}

/** A thread and branch of the daemon: a thread and checkpoint namespace of LangGraph. */
interface Place {
  namespace: string;
  thread: string;
  branch: string;
}

/** A checkpoint as it was read. `rest` is the checkpoint without its channels. */
interface Found {
  message: Checkpoint__Output;
  rest: Omit<Checkpoint, "channel_values">;
  base: Base;
  effects: RecordedEffect__Output[];
}

interface About {
  metadata: CheckpointMetadata & Record<string, unknown>;
  parent_id: string;
}

/**
 * Keeps checkpoints in the daemon at `target`: `unix:///path`, a path, or host:port; default: STATEWARD_TARGET, else the
 * usual socket. A checkpoint is durable when `put` has returned. Every call is retried while the daemon is away.
 */
export class StatewardSaver extends BaseCheckpointSaver {
  readonly #connection: Connection;
  readonly #namespace: string;
  readonly #writeOwnership: boolean;
  readonly #bases: Bases;
  readonly #creations = new Creations();

  constructor(target?: string, options: StatewardSaverOptions = {}) {
    super(options.serde);
    this.#connection = new Connection(resolveTarget(target), options);
    this.#namespace = options.namespace ?? "default";
    this.#writeOwnership = options.writeOwnership ?? false;
    this.#bases = new Bases(options.cacheBytes ?? 64 << 20);
  }

  /** Closes the connection. */
  close(): void {
    this.#connection.close();
  }

  /** Returns the checkpoint that `config` names, or the newest one of its namespace; undefined = there is none. */
  async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    if (config.configurable?.thread_id === undefined) return undefined;
    const place = this.#place(config);
    const checkpointId = getCheckpointId(config);
    const found = await this.#read(place, checkpointId, () => {
      if (!checkpointId && place.branch === MAIN) this.#creations.noteMissing(place.thread);
    });
    if (!checkpointId) this.#bases.forget(place.thread, place.branch);
    if (!found) return undefined;
    const { checkpoint_id: id, uid } = found.message;
    this.#creations.note(place.thread, id, uid);
    if (!checkpointId) this.#bases.keep(place.thread, place.branch, id, found.base);
    return this.#tuple(place, found);
  }

  /** Lists checkpoints, newest first: of a namespace, of a thread, or of all threads if `config` names none. */
  async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
    const { filter, before } = options;
    let left = options.limit ?? Infinity;
    const only = getCheckpointId(config);
    const older = before && getCheckpointId(before);
    const { thread_id, checkpoint_ns } = config.configurable ?? {};
    const branch = checkpoint_ns === undefined ? "" : branchOf(checkpoint_ns);
    const threads = thread_id === undefined ? this.#threads() : [String(thread_id)];
    for await (const thread of threads) {
      if (left <= 0) return;
      for await (const message of this.#versions(thread, branch)) {
        if (left <= 0) return;
        const id = message.checkpoint_id;
        if (!id || (only && id !== only) || (older && id >= older)) continue;
        const { metadata } = await this.#about(message);
        if (!Object.entries(filter ?? {}).every(([key, value]) => isDeepStrictEqual(metadata[key], value))) continue;
        const place = { namespace: this.#namespace, thread, branch: message.branch };
        const found = await this.#read(place, id);
        if (!found) continue;
        yield await this.#tuple(place, found);
        left -= 1;
      }
    }
  }

  /**
   * Writes a checkpoint, whose parent is the one that `config` names. Durable when this returns. Fails with the reason
   * THREAD_NOT_FOUND if the thread was deleted since the parent was read or written here.
   */
  async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions = {},
  ): Promise<RunnableConfig> {
    const place = this.#place(config);
    const { channel_values: values, ...rest } = checkpoint;
    const about: About = { metadata: metadata as About["metadata"], parent_id: getCheckpointId(config) };
    const [restPiece, aboutPiece] = await Promise.all([dump(this.serde, rest), dump(this.serde, about)]);
    const runId = about.metadata[RUN_LABEL];
    const request: SaveRequest = {
      ...place,
      checkpoint_id: checkpoint.id,
      metadata: toValue(aboutPiece),
      step: Number.isInteger(metadata.step) ? metadata.step : undefined,
      labels: typeof runId === "string" && runId ? { [RUN_LABEL]: runId } : {},
    };
    const around = ancestorsOf(config);
    let uid = this.#creations.of(place.thread, [about.parent_id, ...around]);
    if (!uid && around.length > 0) uid = this.#creations.ofThread(place.thread);
    this.#creations.note(place.thread, checkpoint.id, uid); // now: the writes of its tasks may be sent before the answer
    const remembered = this.#bases.get(place.thread, place.branch, about.parent_id);
    for (let base = remembered; ; base = undefined) {
      const from = base ?? (await this.#readBase(place, about.parent_id, uid));
      request.expected_uid = from.uid || uid;
      const edits = await this.#edit(from, checkpoint, newVersions, !about.parent_id && metadata.source !== "fork");
      request.diff = { edits: [{ set_slot: { slot: REST, value: toValue(restPiece) } }, ...edits.edits] };
      try {
        const saved = await this.#save(request, from, base !== undefined);
        const { version, digest, uid } = saved;
        this.#creations.note(place.thread, checkpoint.id, uid);
        this.#bases.forget(place.thread, place.branch);
        // An unknown first index is read before the next checkpoint is written.
        if ([...edits.channels.values()].every((each) => "piece" in each || each.first !== undefined)) {
          const kept = { version, digest, uid, channelVersions: checkpoint.channel_versions, channels: edits.channels };
          this.#bases.keep(place.thread, place.branch, checkpoint.id, kept);
        }
        return configOf(place, checkpoint.id);
      } catch (error) {
        this.#bases.forget(place.thread, place.branch);
        // What is remembered is not what is there: look.
        if (base === undefined || !(error instanceof StatewardError) || !STALE.includes(error.reason)) throw error;
      }
    }
  }

  /**
   * Writes what a task wrote, for the checkpoint that `config` names. A write that is there already stays; those to
   * special channels, such as errors and interrupts, are replaced, also by a later one of the same call. Fails with the reason
   * THREAD_NOT_FOUND if the thread was deleted since the checkpoint was read or written here.
   */
  async putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string, taskPath = ""): Promise<void> {
    const { namespace, thread, branch } = this.#place(config);
    const anchor = getCheckpointId(config);
    if (!anchor) throw new Error("the config's `configurable` has no `checkpoint_id`");
    const last = new Map(writes.map(([channel, value], position) => {
      const index = WRITES_IDX_MAP[channel] ?? position;
      return [index, { index, channel, value }];
    }));
    const made = await Promise.all(
      [...last.values()].map(async ({ index, channel, value }): Promise<Effect> => {
        return {
          anchor,
          key: JSON.stringify([taskId, index]),
          name: channel,
          sort_key: Buffer.from(taskPath),
          value: toValue(await dump(this.serde, value)),
          on_conflict: index >= 0 ? "CONFLICT_RULE_KEEP" : "CONFLICT_RULE_REPLACE",
        };
      }),
    );
    const put = async (uid: string) => {
      for (let start = 0; start < made.length; start += EFFECTS_MAX) {
        const effects = made.slice(start, start + EFFECTS_MAX);
        const request = { namespace, thread, effects, request_id: randomUUID(), expected_uid: uid };
        uid = (await this.#connection.putEffects(request)).uid;
      }
      this.#creations.note(thread, anchor, uid);
    };
    const known = this.#creations.of(thread, [anchor, ...ancestorsOf(config)]);
    try {
      await put(known || this.#creations.ofThread(thread));
    } catch (error) {
      if (known || !(error instanceof StatewardError) || error.reason !== "THREAD_NOT_FOUND") throw error;
      // A checkpoint that this saver has not seen may belong to the next thread of the name.
      const version = { checkpoint_id: anchor };
      const found = await this.#orMissing(this.#connection.getCheckpoint({ namespace, thread, branch, version }));
      if (!found) throw error;
      await put(found.checkpoint!.uid);
    }
  }

  /**
   * Removes a thread with all its namespaces, and not the next thread of its name if the call is repeated. The daemon
   * destroys its key.
   */
  async deleteThread(threadId: string): Promise<void> {
    this.#bases.forgetThread(threadId);
    const place = { namespace: this.#namespace, thread: threadId };
    const found = await this.#orMissing(this.#connection.getThread(place));
    const uid = found?.thread?.uid;
    if (uid) await this.#connection.deleteThread({ ...place, expected_uid: uid, allow_missing: true });
  }

  #place(config: RunnableConfig): Place {
    const { thread_id: thread, checkpoint_ns } = config.configurable ?? {};
    if (thread === undefined) throw new Error("the config's `configurable` has no `thread_id`");
    return { namespace: this.#namespace, thread: String(thread), branch: branchOf(checkpoint_ns) };
  }

  /** The answer of a call; undefined = there is no such thread or version. */
  async #orMissing<A>(call: Promise<A>, onNoThread?: () => void): Promise<A | undefined> {
    try {
      return await call;
    } catch (error) {
      if (!(error instanceof StatewardError) || !MISSING.includes(error.reason)) throw error;
      if (error.reason === "THREAD_NOT_FOUND") onNoThread?.();
      return undefined;
    }
  }

  async #read(place: Place, checkpointId: string, onNoThread?: () => void): Promise<Found | undefined> {
    const version = checkpointId ? { checkpoint_id: checkpointId } : undefined;
    const reading = readPages(this.#connection, { ...place, version, include_effects: true });
    const pages: Pages | undefined = await this.#orMissing(reading, onNoThread);
    if (!pages) return undefined;
    const { checkpoint: message, slots, logs, effects } = pages;
    if (!message.checkpoint_id || !slots[REST]) {
      const at = `version ${message.version} of thread "${message.thread}"`;
      throw new Error(`${at} is no checkpoint of LangGraph: something else writes to this thread`);
    }
    const rest = await load(this.serde, fromValue(slots[REST]));
    const { version: number, digest, uid } = message;
    const channels = readChannels({ slots, logs });
    const base = { version: number, digest, uid, channelVersions: rest.channel_versions, channels };
    return { message, rest, effects, base };
  }

  /** The parent. If it is no longer there, the checkpoint is written whole, on top of the empty state. */
  async #readBase(place: Place, checkpointId: string, uid: string): Promise<Base> {
    const found = checkpointId ? await this.#read(place, checkpointId) : undefined;
    if (found && uid && found.base.uid !== uid) {
      const message = `thread "${place.thread}" was deleted and made again since checkpoint ${checkpointId} was read`;
      const facts = { thread: place.thread, uid: found.base.uid };
      throw new StatewardError(message, status.NOT_FOUND, "THREAD_NOT_FOUND", facts);
    }
    return found?.base ?? EMPTY;
  }

  /**
   * A channel is unchanged if its version is that of the parent, and it is not said to be new. With `onlyNew`, a channel
   * that is not said to be new is left out, as in LangGraph's savers; a copy of a first checkpoint says so of none.
   */
  async #edit(from: Base, checkpoint: Checkpoint, newVersions: ChannelVersions, onlyNew: boolean): Promise<Edits> {
    const edits = new Edits(this.serde, from.channels, from.version === 0);
    for (const [channel, value] of Object.entries(checkpoint.channel_values)) {
      const version = checkpoint.channel_versions[channel];
      const isKnown = from.channels.has(channel) && version !== undefined && version === from.channelVersions[channel];
      const isNew = Object.hasOwn(newVersions, channel);
      if (isKnown && !isNew) edits.keep(channel);
      else if (isNew || !onlyNew) await edits.put(channel, value);
    }
    edits.finish();
    return edits;
  }

  /** If the parent is no longer the head of the branch, the version is a fork, as in every LangGraph saver. */
  async #save(request: SaveRequest, from: Base, isRemembered: boolean): Promise<SaveResponse__Output> {
    const expected = { expected_version: from.version, expected_digest: from.digest as Buffer };
    try {
      return await this.#connection.save({ ...request, ...expected, request_id: randomUUID() });
    } catch (error) {
      const isBehind = error instanceof StatewardError && error.reason === "VERSION_MISMATCH";
      if (!isBehind || isRemembered || this.#writeOwnership) throw error;
      const parent = { version: from.version, digest: from.digest as Buffer };
      return await this.#connection.save({ ...request, parent, request_id: randomUUID() });
    }
  }

  /** The names of all threads. Fails after the last one if there are threads that cannot be opened. */
  async *#threads(): AsyncGenerator<string> {
    const unreadable: string[] = [];
    for (let page_token = ""; ; ) {
      const page = await this.#connection.listThreads({ namespace: this.#namespace, page_size: PAGE, page_token });
      for (const each of page.threads) yield each.thread;
      for (const each of page.unreadable) unreadable.push(`${each.thread || `uid ${each.uid}`} (${each.message})`);
      page_token = page.next_page_token;
      if (!page_token) break;
    }
    if (unreadable.length) {
      throw new StatewardError(`threads cannot be opened: ${unreadable.join(", ")}`, status.DATA_LOSS, "CORRUPT");
    }
  }

  /** The versions of a thread, newest first, without their states; an empty branch = all branches. */
  async *#versions(thread: string, branch: string): AsyncGenerator<Checkpoint__Output> {
    const request = { namespace: this.#namespace, thread, branch, page_size: PAGE };
    for (let page_token = ""; ; ) {
      const page = await this.#connection.listCheckpoints({ ...request, page_token }).catch((error) => {
        if (error instanceof StatewardError && error.reason === "THREAD_NOT_FOUND") return undefined;
        throw error;
      });
      yield* page?.checkpoints ?? [];
      page_token = page?.next_page_token ?? "";
      if (!page_token) return;
    }
  }

  #about(message: Checkpoint__Output): Promise<About> {
    return load(this.serde, fromValue(message.metadata));
  }

  async #tuple(place: Place, found: Found): Promise<CheckpointTuple> {
    const { metadata, parent_id } = await this.#about(found.message);
    const checkpoint = { ...found.rest, channel_values: await loadChannels(this.serde, found.base.channels) };
    const parentConfig = parent_id ? configOf(place, parent_id) : undefined;
    if (checkpoint.v < 4 && parent_id) await this.#migrateSends(place, checkpoint, parent_id);
    const pendingWrites = await this.#writes(found.effects);
    const tuple = { config: configOf(place, found.message.checkpoint_id), checkpoint, metadata, pendingWrites };
    return parentConfig ? { ...tuple, parentConfig } : tuple;
  }

  /** Before format 4, the tasks that a step had sent lay among the writes of its parent. */
  async #migrateSends(place: Place, checkpoint: Checkpoint, parentId: string): Promise<void> {
    const parent = await this.#read(place, parentId);
    const sends = (parent?.effects ?? []).filter((each) => each.effect?.name === TASKS);
    const versions = Object.values(checkpoint.channel_versions);
    checkpoint.channel_values[TASKS] = (await this.#writes(sends)).map(([, , value]) => value);
    checkpoint.channel_versions[TASKS] = versions.length ? maxChannelVersion(...versions) : this.getNextVersion(undefined);
  }

  /** Pending writes, in the order in which LangGraph applies them. */
  async #writes(effects: RecordedEffect__Output[]): Promise<CheckpointPendingWrite[]> {
    const keyed = effects.map(({ effect }) => {
      const [taskId, index] = JSON.parse(effect!.key) as [string, number];
      return { taskId, effect: effect!, key: writesSortKey(effect!.sort_key.toString(), taskId, index) };
    });
    keyed.sort((a, b) => compareWritesSortKeys(a.key, b.key));
    const loading = keyed.map(async ({ taskId, effect }): Promise<CheckpointPendingWrite> => [
      taskId, effect.name, await load(this.serde, fromValue(effect.value)),
    ]);
    return Promise.all(loading);
  }
}

/** The checkpoints of the graphs around a subgraph. */
function ancestorsOf(config: RunnableConfig): string[] {
  return Object.values(config.configurable?.checkpoint_map ?? {});
}

/** The branch of a checkpoint namespace. The root's is main. */
function branchOf(ns = ""): string {
  return ns === MAIN || ns.startsWith(ESCAPE) ? ESCAPE + ns : ns || MAIN;
}

/** The reverse of `branchOf`. */
function namespaceOf(branch: string): string {
  if (branch === MAIN) return "";
  return branch.startsWith(ESCAPE) ? branch.slice(ESCAPE.length) : branch;
}

function configOf(place: Place, checkpoint_id: string): RunnableConfig {
  return { configurable: { thread_id: place.thread, checkpoint_ns: namespaceOf(place.branch), checkpoint_id } };
}
