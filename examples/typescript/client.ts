// What every client needs beside the generated types: calls with retries, request ids, and pages.
import { randomBytes } from "node:crypto";

import * as grpc from "@grpc/grpc-js";
import { loadSync, type MethodDefinition } from "@grpc/proto-loader";

import { repeat } from "./retry.js";
import { transport } from "./tls.js";
import type { ProtoGrpcType as Blobs } from "./generated/blob_service.js";
import type { ProtoGrpcType as Checkpoints } from "./generated/checkpoint_service.js";
import type { ProtoGrpcType as Effects } from "./generated/effect_service.js";
import type { ProtoGrpcType as Leases } from "./generated/lease_service.js";
import type { ProtoGrpcType as Records } from "./generated/record_service.js";
import type { ProtoGrpcType as Signals } from "./generated/signal_service.js";
import type { ProtoGrpcType as Threads } from "./generated/thread_service.js";
import type { ProtoGrpcType as Writers } from "./generated/writer_service.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { HydrateRequest } from "./generated/stateward/v1/HydrateRequest.js";
import type { Log__Output } from "./generated/stateward/v1/Log.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { SaveResponse__Output } from "./generated/stateward/v1/SaveResponse.js";
import type { Signal__Output } from "./generated/stateward/v1/Signal.js";
import type { Value, Value__Output } from "./generated/stateward/v1/Value.js";
import type { WriteOptions } from "./generated/stateward/v1/WriteOptions.js";

// The options of proto-loader-gen-types in build.sh. As a number, a 64-bit integer above 2^53 would change.
const options = { includeDirs: ["proto"], longs: String, enums: String, defaults: true, oneofs: true };
const topics = ["blob", "checkpoint", "effect", "lease", "record", "signal", "thread", "writer"];
const contract = loadSync(topics.map((topic) => `stateward/v1/${topic}_service.proto`), options);
type Contract = Blobs & Checkpoints & Effects & Leases & Records & Signals & Threads & Writers;
const { v1 } = (grpc.loadPackageDefinition(contract) as unknown as Contract).stateward;

/** The methods of the daemon, for `Thread.call`. */
export const checkpoints = v1.CheckpointService.service;
export const effects = v1.EffectService.service;
export const leases = v1.LeaseService.service;
export const records = v1.RecordService.service;
export const signals = v1.SignalService.service;
export const threads = v1.ThreadService.service;

const CHANNEL: grpc.ClientOptions = {
  "grpc.max_receive_message_length": 64 << 20, // default: 4 MiB
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.max_reconnect_backoff_ms": 1000, // default: two minutes
  "grpc.enable_retries": 0, // calls are retried here: gRPC's own retries stop after five attempts
};

/** What `Thread.hydrate` reads. */
export interface Hydrated {
  version: string;
  digest: Uint8Array;
  slots: Record<string, Value__Output>;
  logs: Record<string, Log__Output>;
  signals: Signal__Output[];
  pages: number;
}

/** A thread as one agent sees it: the daemon's methods, and the version that the agent builds on. */
export class Thread {
  readonly holder = { name: "agent", incarnation: newId() };
  version = "0";
  digest: Uint8Array = new Uint8Array();
  /** Of the thread that was read or saved: a later thread of the same name has another one. */
  uid = "";
  readonly #client: grpc.Client;
  /** The services with streams. */
  readonly blobs: InstanceType<typeof v1.BlobService>;
  readonly watches: InstanceType<typeof v1.ThreadService>;
  readonly writers: InstanceType<typeof v1.WriterService>;

  /** Opens the channel, which connects with the first call. Each attempt of a call ends after `callTimeoutMs`. */
  constructor(target: string, readonly name: string, readonly callTimeoutMs = 30_000) {
    const credentials = transport(target);
    this.#client = new grpc.Client(target, credentials, CHANNEL);
    const shared = { ...CHANNEL, channelOverride: this.#client.getChannel() };
    this.blobs = new v1.BlobService(target, credentials, shared);
    this.watches = new v1.ThreadService(target, credentials, shared);
    this.writers = new v1.WriterService(target, credentials, shared);
  }

  /** Sends a request until it is answered. A write carries a request id, so the daemon applies it once. */
  async call<Q extends object, A>(method: MethodDefinition<Q, object, object, A>, request: Q): Promise<A> {
    return repeat(() => this.#attempt(method, request));
  }

  #attempt<Q, A>({ path, ...method }: MethodDefinition<Q, object, object, A>, request: Q): Promise<A> {
    const options = { deadline: Date.now() + this.callTimeoutMs };
    return new Promise((resolve, reject) => {
      const done: grpc.requestCallback<A> = (error, answer) => (error ? reject(error) : resolve(answer!));
      this.#client.makeUnaryRequest(path, method.requestSerialize, method.responseDeserialize, request, options, done);
    });
  }

  /** Makes a request with these edits, which the daemon saves only on top of the version that the agent knows, and only
   * to the thread that it knows: if that was deleted, the request does not bring it back. */
  next(...edits: Edit[]): SaveRequest {
    const expected = { expectedVersion: this.version, expectedDigest: this.digest, expectedUid: this.uid };
    return { thread: this.name, options: newOptions(expected), diff: { edits } };
  }

  /** Saves, and remembers the new head. */
  async save(request: SaveRequest): Promise<SaveResponse__Output> {
    const saved = await this.call(checkpoints.Save, request);
    this.remember(saved);
    return saved;
  }

  /** Builds on this version from now on. */
  remember({ version, receipt }: SaveResponse__Output): void {
    const { digest, uid } = receipt!;
    Object.assign(this, { version, digest, uid });
  }

  /**
   * Reads the head, joins its pages, and remembers its version. Returns the signals that wait, too. With a state that was
   * read whole, it reads what has changed since.
   */
  async hydrate(known?: Hydrated): Promise<Hydrated> {
    const since = { knownVersion: known?.version, knownDigest: known?.digest };
    const request: HydrateRequest = { thread: this.name, includeSignals: true, ...since };
    const first = await this.call(checkpoints.Hydrate, request);
    const begun = first.baseVersion === "0" ? undefined : known; // else the answer is the whole state
    const slots = { ...begun?.slots };
    const logs = { ...begun?.logs };
    for (const name of first.removedSlots) delete slots[name];
    for (const name of first.removedLogs) delete logs[name];
    const signals: Signal__Output[] = [];
    let pieces: Uint8Array[] = [];
    let pages = 1;
    for (let page = first; ; pages++) {
      signals.push(...page.signals);
      Object.assign(slots, page.state?.slots);
      for (const [name, part] of Object.entries(page.state?.logs ?? {})) {
        const { firstIndex } = logs[name] ?? part; // a log that is there goes on
        logs[name] = { ...part, firstIndex, entries: [...(logs[name]?.entries ?? []), ...part.entries] };
      }
      if (page.chunk) { // a piece of a value that is larger than a page
        const { mediaType, sizeBytes, offset, data, slot, log } = page.chunk;
        pieces.push(data);
        if (Number(offset) + data.length === Number(sizeBytes)) {
          const value: Value__Output = { mediaType, content: "data", data: Buffer.concat(pieces) };
          pieces = [];
          if (log !== undefined) logs[log]!.entries.push(value); // its page has shown the log, without this entry
          else slots[slot!] = value;
        }
      }
      if (!page.nextPageToken) {
        const { version, digest, uid } = page.checkpoint!;
        Object.assign(this, { version, digest, uid });
        return { version, digest, slots, logs, signals, pages };
      }
      page = await this.call(checkpoints.Hydrate, { ...request, pageToken: page.nextPageToken });
    }
  }
}

/** Makes a request id. All attempts of a request have the same one. */
export function newId(): string {
  return randomBytes(16).toString("hex");
}

/** Makes the options of a write that is safe to repeat. */
export function newOptions(fields: WriteOptions = {}): WriteOptions {
  return { requestId: newId(), ...fields };
}

/** Changes the options of a save. */
export function withOptions(request: SaveRequest, fields: WriteOptions): SaveRequest {
  return { ...request, options: { ...request.options, ...fields } };
}

export const set = (slot: string, value: Value): Edit => ({ setSlot: { slot, value } });
export const add = (log: string, ...entries: Value[]): Edit => ({ append: { log, entries } });
export const text = (words: string): Value => ({ mediaType: "text/plain", data: Buffer.from(words) });
export const binary = (data: Uint8Array): Value => ({ mediaType: "application/octet-stream", data });
