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
import { Edits, type Piece, checked, dump, fromValue, load, loadChannels, readChannels, toValue } from "./channels.js";
import { Connection, type ConnectionOptions } from "./connection.js";
import { StatewardError } from "./errors.js";
import { Guarded } from "./guarded.js";
import type { Duration } from "./generated/google/protobuf/Duration.js";
import type { Checkpoint__Output } from "./generated/stateward/v1/Checkpoint.js";
import type { Effect } from "./generated/stateward/v1/Effect.js";
import type { PutEffectsRequest } from "./generated/stateward/v1/PutEffectsRequest.js";
import type { RecordedEffect__Output } from "./generated/stateward/v1/RecordedEffect.js";
import type { ThreadOptions } from "./generated/stateward/v1/ThreadOptions.js";
import type { VersionRef } from "./generated/stateward/v1/VersionRef.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { SaveResponse__Output } from "./generated/stateward/v1/SaveResponse.js";
import { MAIN, branchOf, decode, encode, escape, isOrphans, nameFor, namespaceOf, textOf, unescape } from "./names.js";
import { type Pages, readPages } from "./pages.js";
import { resolveTarget } from "./target.js";
import { statusOf, toldBy } from "./telling.js";

const REST = "checkpoint";
const RUN_LABEL = "run_id";
const DELTA_COUNTERS = "counters_since_delta_snapshot";
const PAGE = 100;
const EFFECTS_MAX = 1000;
const SORT_BYTES_MAX = 1024;
/** A uid that no thread has. */
const NO_UID = "0".repeat(32);
/** Ends the media type of a value before whose bytes names stand that are too long for the fields of an effect. */
const ABOUT = "; about";
const MISSING = ["THREAD_NOT_FOUND", "VERSION_NOT_FOUND", "VERSION_PRUNED"];
const STALE = ["VERSION_MISMATCH", "EDIT_CONFLICT", "VERSION_NOT_FOUND", "VERSION_PRUNED"];

export interface StatewardSaverOptions extends ConnectionOptions {
  /** Keeps graphs apart from other work; default "default". */
  namespace?: string;
  /**
   * Classes that values may have beside LangChain's messages, as LangChain stores them, with slashes:
   * "langchain_core/prompts/PromptTemplate". A value of any other class is refused with TypeNotAllowedError.
   */
  allowedTypes?: readonly string[];
  /** Replaces the serializer, and with it these rules: LangGraph's makes every class that @langchain/core exports. */
  serde?: SerializerProtocol;
  /** How long after its last checkpoint a thread is deleted; default: never. Used when the first checkpoint makes it. */
  ttlMs?: number;
  /**
   * Which checkpoints of each namespace are kept; default: all. The newest one stays always. If both rules are given, a
   * checkpoint goes when both allow it. Used when the first checkpoint makes the thread.
   */
  retention?: { keepLast?: number; keepForMs?: number };
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
  /** Only if the thread or the branch has nothing but the digest of it; escaped. */
  thread_id?: string;
  checkpoint_ns?: string;
}

/**
 * Keeps checkpoints in the daemon at `target`: `unix:///path`, a path, or host:port; default: STATEWARD_TARGET, else the
 * usual socket. A checkpoint is durable when `put` has returned. Every call is retried while the daemon is away.
 */
export class StatewardSaver extends BaseCheckpointSaver {
  readonly #connection: Connection;
  readonly #namespace: string;
  readonly #create: ThreadOptions;
  readonly #writeOwnership: boolean;
  readonly #bases: Bases;
  readonly #creations = new Creations();

  constructor(target?: string, options: StatewardSaverOptions = {}) {
    if (options.serde && options.allowedTypes) {
      throw new Error("allowedTypes is for the saver's own serializer; the one in serde has rules of its own");
    }
    super(options.serde ?? new Guarded(options.allowedTypes));
    this.#connection = new Connection(resolveTarget(target), options);
    this.#namespace = options.namespace ?? "default";
    this.#create = threadOptions(options);
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
    const found = await this.#read(place, byId(checkpointId), () => {
      if (!checkpointId && place.branch === MAIN) this.#creations.noteMissing(place.thread);
    });
    if (!checkpointId) this.#bases.forget(place.thread, place.branch);
    if (!found) return undefined;
    const { checkpoint_id: id, uid } = found.message;
    this.#creations.note(place.thread, id, uid);
    if (!checkpointId) this.#bases.keep(place.thread, place.branch, idOf(found), found.base);
    return this.#tuple(place, found, config.configurable.thread_id);
  }

  /** Lists checkpoints, newest first: of a namespace, of a thread, or of all threads if `config` names none. */
  async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
    const { filter, before } = options;
    let left = options.limit ?? Infinity;
    const only = getCheckpointId(config);
    const older = before && getCheckpointId(before);
    const { thread_id, checkpoint_ns } = config.configurable ?? {};
    const branch = checkpoint_ns === undefined ? "" : branchOf(checkpoint_ns);
    const threads = thread_id === undefined ? this.#threads() : [nameFor(String(thread_id))];
    for await (const thread of threads) {
      if (left <= 0) return;
      for await (const message of this.#versions(thread, branch)) {
        if (left <= 0) return;
        const id = message.checkpoint_id;
        if (!id || (only && id !== nameFor(only)) || (older && (textOf(id) ?? id) >= older)) continue;
        const { metadata } = await this.#about(message);
        if (!Object.entries(filter ?? {}).every(([key, value]) => isDeepStrictEqual(metadata[key], value))) continue;
        const place = { namespace: this.#namespace, thread, branch: message.branch };
        const found = await this.#read(place, { version: message.version, digest: message.digest });
        if (!found) continue;
        yield await this.#tuple(place, found, thread_id);
        left -= 1;
      }
    }
  }

  /**
   * Writes a checkpoint, whose parent is the one that `config` names. Durable when this returns. Fails with the reason
   * UID_MISMATCH if the thread was deleted since the parent was read or written here.
   */
  async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions = {},
  ): Promise<RunnableConfig> {
    const place = this.#place(config);
    const { channel_values: values, ...rest } = checkpoint;
    const { thread_id, checkpoint_ns = "" } = config.configurable!;
    const about: About = { metadata: metadata as About["metadata"], parent_id: getCheckpointId(config) };
    if (textOf(place.thread) === undefined) about.thread_id = escape(String(thread_id));
    if (namespaceOf(place.branch) === undefined) about.checkpoint_ns = escape(checkpoint_ns);
    const [restPiece, aboutPiece] = await Promise.all([dump(this.serde, rest), dump(this.serde, about)]);
    const runId = about.metadata[RUN_LABEL];
    const name = nameFor(checkpoint.id);
    if (this.#create.retention && Object.keys((about.metadata[DELTA_COUNTERS] as object | undefined) ?? {}).length > 0) {
      throw new Error("retention removes checkpoints that this graph's delta channels are made from; give none");
    }
    const request: SaveRequest = {
      ...place,
      checkpoint_id: name,
      metadata: toValue(checked(this.serde, aboutPiece)),
      step: Number.isInteger(metadata.step) ? metadata.step : undefined,
      labels: typeof runId === "string" && runId ? { [RUN_LABEL]: nameFor(runId) } : {},
      status: place.branch === MAIN ? statusOf(checkpoint, metadata.source) : undefined,
    };
    const around = ancestorsOf(config);
    let uid = this.#creations.of(place.thread, [about.parent_id, ...around].filter(Boolean).map((each) => nameFor(each)));
    if (!uid && around.length > 0) uid = this.#creations.ofThread(place.thread);
    this.#creations.note(place.thread, name, uid, false); // now: the writes of its tasks may be sent before the answer
    const remembered = this.#bases.get(place.thread, place.branch, about.parent_id);
    for (let base = remembered; ; base = undefined) {
      const from = base ?? (await this.#readBase(place, about.parent_id, uid));
      const edits = await this.#edit(from, checkpoint, newVersions, !about.parent_id && metadata.source !== "fork");
      request.diff = { edits: [{ set_slot: { slot: REST, value: toValue(checked(this.serde, restPiece)) } }, ...edits.edits] };
      try {
        const { version, receipt } = await this.#save(request, from, from.uid || uid, base !== undefined);
        const { digest, uid: made } = receipt!;
        this.#creations.note(place.thread, name, made);
        this.#bases.forget(place.thread, place.branch);
        // An unknown first index is read before the next checkpoint is written.
        if ([...edits.channels.values()].every((each) => "piece" in each || each.first !== undefined)) {
          const { channels } = edits;
          const kept = { version, digest, uid: made, channelVersions: checkpoint.channel_versions, channels };
          this.#bases.keep(place.thread, place.branch, checkpoint.id, kept);
        }
        return configOf(String(thread_id), checkpoint_ns, checkpoint.id);
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
   * UID_MISMATCH if the thread was deleted since the checkpoint was read or written here.
   */
  async putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string, taskPath = ""): Promise<void> {
    const { namespace, thread, branch } = this.#place(config);
    const checkpointId = getCheckpointId(config);
    if (!checkpointId) throw new Error("the config's `configurable` has no `checkpoint_id`");
    const anchor = nameFor(checkpointId);
    const path = encode(taskPath);
    const last = new Map(writes.map(([channel, value], position) => {
      const index = WRITES_IDX_MAP[channel] ?? position;
      return [index, { index, channel, value }];
    }));
    const made = await Promise.all(
      [...last.values()].map(async ({ index, channel, value }): Promise<Effect> => {
        const key = nameFor(JSON.stringify([taskId, index]));
        const about: Beside = {};
        if (textOf(key) === undefined) about.key = [taskId, index];
        if (textOf(nameFor(channel)) === undefined) about.channel = channel;
        if (path.length > SORT_BYTES_MAX) about.path = taskPath;
        return {
          anchor,
          key,
          name: nameFor(channel),
          sort_key: path.subarray(0, SORT_BYTES_MAX),
          value: toValue(closePiece(about, checked(this.serde, await dump(this.serde, value)))),
          on_conflict: index >= 0 ? "CONFLICT_RULE_KEEP" : "CONFLICT_RULE_REPLACE",
        };
      }),
    );
    const told = branch === MAIN ? toldBy(writes, checkpointId, taskId) : undefined;
    const put = async (uid: string) => {
      for (let start = 0; start < made.length; start += EFFECTS_MAX) {
        const effects = made.slice(start, start + EFFECTS_MAX);
        const options = { request_id: randomUUID(), expected_uid: uid, create: this.#create };
        const request: PutEffectsRequest = { namespace, thread, options, effects };
        const isLast = start + EFFECTS_MAX >= made.length;
        uid = (await this.#connection.putEffects(isLast ? { ...request, ...told } : request)).receipt!.uid;
      }
      this.#creations.note(thread, anchor, uid);
    };
    const known = this.#creations.of(thread, [anchor, ...ancestorsOf(config).map((each) => nameFor(each))]);
    try {
      await put(known || this.#creations.ofThread(thread));
    } catch (error) {
      if (known || !(error instanceof StatewardError) || error.reason !== "UID_MISMATCH") throw error;
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
    this.#bases.forgetThread(nameFor(threadId));
    const place = { namespace: this.#namespace, thread: nameFor(threadId) };
    // A save that makes the thread may be on its way to the disk. If no thread is seen, the daemon is asked to delete
    // none, which it does after such a save, and the thread is looked for once more.
    for (let look = 0; look < 2; look++) {
      const uid = (await this.#orMissing(this.#connection.getThread(place)))?.thread?.uid;
      const options = { expected_uid: uid || NO_UID };
      await this.#connection.deleteThread({ ...place, options, allow_missing: true });
      if (uid) return;
    }
  }

  #place(config: RunnableConfig): Place {
    const { thread_id: thread, checkpoint_ns } = config.configurable ?? {};
    if (thread === undefined) throw new Error("the config's `configurable` has no `thread_id`");
    return { namespace: this.#namespace, thread: nameFor(String(thread)), branch: branchOf(checkpoint_ns) };
  }

  /** The answer of a call; undefined = there is no such thread or version. */
  async #orMissing<A>(call: Promise<A>, onMissing?: () => void): Promise<A | undefined> {
    try {
      return await call;
    } catch (error) {
      if (!(error instanceof StatewardError) || !MISSING.includes(error.reason)) throw error;
      onMissing?.();
      return undefined;
    }
  }

  async #read(place: Place, version?: VersionRef, onMissing?: () => void): Promise<Found | undefined> {
    const reading = readPages(this.#connection, { ...place, version, include_effects: true });
    const pages: Pages | undefined = await this.#orMissing(reading, onMissing);
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
    const found = checkpointId ? await this.#read(place, byId(checkpointId)) : undefined;
    if (found && uid && found.base.uid !== uid) {
      const message = `thread "${place.thread}" was deleted and made again since checkpoint ${checkpointId} was read`;
      const facts = { thread: place.thread, uid: found.base.uid, expected_uid: uid };
      throw new StatewardError(message, status.ABORTED, "UID_MISMATCH", facts);
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
      const isKnown = edits.has(channel) && version !== undefined && version === from.channelVersions[channel];
      const isNew = Object.hasOwn(newVersions, channel);
      if (isKnown && !isNew) edits.keep(channel);
      else if (isNew || !onlyNew) await edits.put(channel, value);
    }
    edits.finish();
    return edits;
  }

  /** If the parent is no longer the head of the branch, the version is a fork, as in every LangGraph saver. */
  async #save(
    request: SaveRequest, from: Base, expected_uid: string, isRemembered: boolean,
  ): Promise<SaveResponse__Output> {
    const every = { expected_uid, create: this.#create };
    const expected = { expected_version: from.version, expected_digest: from.digest as Buffer };
    try {
      return await this.#connection.save({ ...request, options: { ...every, ...expected, request_id: randomUUID() } });
    } catch (error) {
      const isBehind = error instanceof StatewardError && error.reason === "VERSION_MISMATCH";
      if (!isBehind || isRemembered || this.#writeOwnership) throw error;
      const parent = { version: from.version, digest: from.digest as Buffer };
      return await this.#connection.save({ ...request, parent, options: { ...every, request_id: randomUUID() } });
    }
  }

  /** The names of all threads but orphans, which are no threads of LangGraph. Fails after the last one if there are threads that cannot be opened. */
  async *#threads(): AsyncGenerator<string> {
    const unreadable: string[] = [];
    for (let page_token = ""; ; ) {
      const page = await this.#connection.listThreads({ namespace: this.#namespace, page_size: PAGE, page_token });
      for (const each of page.threads) if (!isOrphans(each.thread)) yield each.thread;
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

  /** `threadId`: of the config that was given; undefined = all threads were asked for. */
  async #tuple(place: Place, found: Found, threadId?: unknown): Promise<CheckpointTuple> {
    const { metadata, parent_id, thread_id = escape(place.thread), checkpoint_ns = "" } = await this.#about(found.message);
    const thread = threadId === undefined ? textOf(place.thread) ?? unescape(thread_id) : String(threadId);
    const ns = namespaceOf(place.branch) ?? unescape(checkpoint_ns);
    const values = await loadChannels(this.serde, found.base.channels, Object.keys(found.rest.channel_versions));
    const checkpoint = { ...found.rest, channel_values: values };
    const parentConfig = parent_id ? configOf(thread, ns, parent_id) : undefined;
    if (checkpoint.v < 4 && parent_id) await this.#migrateSends(place, checkpoint, parent_id);
    const pendingWrites = await this.#writes(found.effects);
    const tuple = { config: configOf(thread, ns, idOf(found)), checkpoint, metadata, pendingWrites };
    return parentConfig ? { ...tuple, parentConfig } : tuple;
  }

  /** Before format 4, the tasks that a step had sent lay among the writes of its parent. */
  async #migrateSends(place: Place, checkpoint: Checkpoint, parentId: string): Promise<void> {
    const parent = await this.#read(place, byId(parentId));
    const sends = (parent?.effects ?? []).filter((each) => each.effect?.name === TASKS);
    const versions = Object.values(checkpoint.channel_versions);
    checkpoint.channel_values[TASKS] = (await this.#writes(sends)).map(([, , value]) => value);
    checkpoint.channel_versions[TASKS] = versions.length ? maxChannelVersion(...versions) : this.getNextVersion(undefined);
  }

  /** Pending writes, in the order in which LangGraph applies them. */
  async #writes(effects: RecordedEffect__Output[]): Promise<CheckpointPendingWrite[]> {
    const keyed = effects.map(({ effect }) => {
      const [about, piece] = openPiece(fromValue(effect!.value));
      const [taskId, index] = about.key ?? (JSON.parse(textOf(effect!.key)!) as [string, number]);
      const channel = about.channel ?? textOf(effect!.name)!;
      const path = about.path ?? decode(Buffer.from(effect!.sort_key));
      return { taskId, channel, piece, key: writesSortKey(path, taskId, index) };
    });
    keyed.sort((a, b) => compareWritesSortKeys(a.key, b.key));
    const loading = keyed.map(async ({ taskId, channel, piece }): Promise<CheckpointPendingWrite> => [
      taskId, channel, await load(this.serde, piece),
    ]);
    return Promise.all(loading);
  }
}

function threadOptions({ ttlMs, retention = {} }: StatewardSaverOptions): ThreadOptions {
  const { keepLast, keepForMs } = retention;
  if (keepLast !== undefined && !(Number.isInteger(keepLast) && keepLast > 0)) {
    throw new RangeError(`retention.keepLast is ${keepLast}; it must be a whole number of at least 1`);
  }
  const hasRule = keepLast !== undefined || keepForMs !== undefined;
  const rules = { keep_last: keepLast, keep_for: duration(keepForMs, "retention.keepForMs") };
  return { ttl: duration(ttlMs, "ttlMs"), retention: hasRule ? rules : undefined };
}

function duration(ms: number | undefined, name: string): Duration | undefined {
  if (ms === undefined) return undefined;
  if (!(ms >= 1 && Number.isFinite(ms))) throw new RangeError(`${name} is ${ms}; it must be at least 1 millisecond`);
  return { seconds: Math.floor(ms / 1000), nanos: Math.floor(ms % 1000) * 1_000_000 };
}

/** The checkpoints of the graphs around a subgraph. */
function ancestorsOf(config: RunnableConfig): string[] {
  return Object.values(config.configurable?.checkpoint_map ?? {});
}

function byId(checkpointId: string): VersionRef | undefined {
  return checkpointId ? { checkpoint_id: nameFor(checkpointId) } : undefined;
}

function idOf(found: Found): string {
  return textOf(found.message.checkpoint_id) ?? found.rest.id;
}

/** Names of a pending write that are too long for the fields of an effect. */
interface Beside {
  key?: [string, number];
  channel?: string;
  path?: string;
}

/** A value of a pending write; before its bytes stand such names. */
function closePiece(about: Beside, piece: Piece): Piece {
  if (Object.keys(about).length === 0) return piece;
  const head = Buffer.from(JSON.stringify(about));
  const size = Buffer.alloc(4);
  size.writeUInt32BE(head.length);
  return { kind: piece.kind + ABOUT, data: Buffer.concat([size, head, piece.data]) };
}

/** The reverse of `closePiece`. */
function openPiece({ kind, data }: Piece): [Beside, Piece] {
  if (!kind.endsWith(ABOUT)) return [{}, { kind, data }];
  const end = 4 + Buffer.from(data.subarray(0, 4)).readUInt32BE();
  const about = JSON.parse(Buffer.from(data.subarray(4, end)).toString()) as Beside;
  return [about, { kind: kind.slice(0, -ABOUT.length), data: data.slice(end) }];
}

function configOf(thread_id: string, checkpoint_ns: string, checkpoint_id: string): RunnableConfig {
  return { configurable: { thread_id, checkpoint_ns, checkpoint_id } };
}
