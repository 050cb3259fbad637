// What every client needs beside the generated types: a channel, request ids, the reasons of errors, and pages.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";

import * as grpc from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";

import type { ProtoGrpcType as Checkpoints } from "./generated/checkpoint_service.js";
import type { ProtoGrpcType as Effects } from "./generated/effect_service.js";
import type { ProtoGrpcType as Leases } from "./generated/lease_service.js";
import type { ProtoGrpcType as Signals } from "./generated/signal_service.js";
import type { ProtoGrpcType as Writers } from "./generated/writer_service.js";
import type { ErrorInfo__Output } from "./generated/google/rpc/ErrorInfo.js";
import type { Status__Output } from "./generated/google/rpc/Status.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { SaveResponse__Output } from "./generated/stateward/v1/SaveResponse.js";
import type { Signal__Output } from "./generated/stateward/v1/Signal.js";
import type { Value } from "./generated/stateward/v1/Value.js";

// The options of proto-loader-gen-types in build.sh. As a number, a 64-bit integer above 2^53 would change.
const options = { includeDirs: ["proto"], longs: String, enums: String, defaults: true, oneofs: true };
const services = ["checkpoint", "effect", "lease", "signal", "writer"];
const contract = loadSync(services.map((name) => `stateward/v1/${name}_service.proto`), options);
type Loaded = Checkpoints & Effects & Leases & Signals & Writers;
const { v1 } = (grpc.loadPackageDefinition(contract) as unknown as Loaded).stateward;
const google = loadSync(["google/rpc/status.proto", "google/rpc/error_details.proto"], options);

// A call waits while the daemon is away. grpc-js does not read `waitForReady` in a service config, so it is set here.
const patient: grpc.Interceptor = (options, nextCall) =>
  new grpc.InterceptingCall(nextCall(options), {
    start(metadata, listener, next) {
      metadata.setOptions({ waitForReady: true });
      next(metadata, listener);
    },
  });

const channel: grpc.ClientOptions = {
  interceptors: [patient],
  "grpc.service_config": readFileSync("proto/service_config.json", "utf8"),
  "grpc.per_rpc_retry_buffer_size": 64 << 20, // default: no request above 1 MiB is retried
  "grpc.retry_buffer_size": 256 << 20,
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.max_reconnect_backoff_ms": 1000, // default: up to two minutes
  "grpc.max_receive_message_length": 64 << 20, // default: 4 MiB
};

type Method<Q, A> = (request: Q, done: grpc.requestCallback<A>) => grpc.ClientUnaryCall;

/** Makes a method of a client return a promise. */
const promised = <Q, A>(method: Method<Q, A>) => (request: Q) =>
  new Promise<A>((resolve, reject) => {
    method(request, (error, answer) => (error ? reject(error) : resolve(answer!)));
  });

/** A thread as one agent sees it: the daemon's methods, and the version that the agent builds on. */
export class Thread {
  readonly holder = { name: "agent", incarnation: newId() };
  version = "0";
  digest: Uint8Array = new Uint8Array();
  readonly beginEffect;
  readonly completeEffect;
  readonly acquireLease;
  readonly releaseLease;
  readonly sendSignal;
  readonly write;
  readonly #save;
  readonly #hydrate;

  /** Opens the channel, which connects with the first call. The five clients share one connection. */
  constructor(target: string, readonly name: string) {
    const plain = grpc.credentials.createInsecure();
    const checkpoints = new v1.CheckpointService(target, plain, channel);
    const effects = new v1.EffectService(target, plain, channel);
    const leases = new v1.LeaseService(target, plain, channel);
    const signals = new v1.SignalService(target, plain, channel);
    const writers = new v1.WriterService(target, plain, channel);
    this.beginEffect = promised(effects.BeginEffect.bind(effects));
    this.completeEffect = promised(effects.CompleteEffect.bind(effects));
    this.acquireLease = promised(leases.AcquireLease.bind(leases));
    this.releaseLease = promised(leases.ReleaseLease.bind(leases));
    this.sendSignal = promised(signals.SendSignal.bind(signals));
    this.write = () => writers.Write();
    this.#save = promised(checkpoints.Save.bind(checkpoints));
    this.#hydrate = promised(checkpoints.Hydrate.bind(checkpoints));
  }

  /** Makes a request with these edits, which the daemon saves only on top of the version that the agent knows. */
  next(...edits: Edit[]): SaveRequest {
    const expected = { expectedVersion: this.version, expectedDigest: this.digest };
    return { thread: this.name, requestId: newId(), ...expected, diff: { edits } };
  }

  /** Saves, and remembers the new head. */
  async save(request: SaveRequest): Promise<SaveResponse__Output> {
    const saved = await this.#save(request);
    this.version = saved.version;
    this.digest = saved.digest;
    return saved;
  }

  /** Reads the head, joins its pages, and remembers its version. Returns the signals that wait, too. */
  async hydrate() {
    const slots = new Map<string, Value>();
    const logs = new Map<string, Value[]>();
    const signals: Signal__Output[] = [];
    let pieces: Uint8Array[] = [];
    let pages = 0;
    for (let pageToken = ""; ; ) {
      const page = await this.#hydrate({ thread: this.name, includeSignals: true, pageToken });
      pages += 1;
      signals.push(...page.signals);
      for (const [name, value] of Object.entries(page.state?.slots ?? {})) slots.set(name, value);
      for (const [name, part] of Object.entries(page.state?.logs ?? {})) {
        logs.set(name, (logs.get(name) ?? []).concat(part.entries));
      }
      if (page.chunk) { // a piece of a value that is larger than a page
        const { data, mediaType, offset, sizeBytes, slot, log } = page.chunk;
        pieces.push(data);
        if (Number(offset) + data.length === Number(sizeBytes)) {
          const value = { mediaType, data: Buffer.concat(pieces) };
          pieces = [];
          if (log !== undefined) logs.get(log)!.push(value); // its page has shown the log, without this entry
          else slots.set(slot!, value);
        }
      }
      pageToken = page.nextPageToken;
      if (!pageToken) {
        this.version = page.checkpoint!.version;
        this.digest = page.checkpoint!.digest;
        return { slots, logs, signals, pages };
      }
    }
  }
}

/** Makes a request id. All attempts of a request have the same one. */
export function newId(): string {
  return randomBytes(16).toString("hex");
}

/**
 * Returns why the daemon refused a call, and the facts that error_reason.proto names for the reason. The reason is
 * empty if the error comes from gRPC itself.
 */
export function explain(error: unknown): { reason: string; metadata: Record<string, string> } {
  const [trailer] = (error as grpc.ServiceError).metadata?.get("grpc-status-details-bin") ?? [];
  if (trailer instanceof Buffer) {
    for (const detail of read<Status__Output>("google.rpc.Status", trailer).details) {
      if (!("type_url" in detail) || !detail.type_url.endsWith("/google.rpc.ErrorInfo")) continue;
      const info = read<ErrorInfo__Output>("google.rpc.ErrorInfo", detail.value);
      if (info.domain === "stateward") return info;
    }
  }
  return { reason: "", metadata: {} };
}

function read<A>(type: string, data: Buffer): A {
  return (google[type] as MessageTypeDefinition<object, object>).deserialize(data) as A;
}

export const set = (slot: string, value: Value): Edit => ({ setSlot: { slot, value } });
export const add = (log: string, ...entries: Value[]): Edit => ({ append: { log, entries } });
export const text = (words: string): Value => ({ mediaType: "text/plain", data: Buffer.from(words) });
export const binary = (data: Uint8Array): Value => ({ mediaType: "application/octet-stream", data });
