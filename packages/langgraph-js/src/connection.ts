/** The daemon as functions: one for each call of the contract that the saver needs. Calls are retried here. */
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import { StatewardError, fromRpc } from "./errors.js";
import type { DeleteThreadRequest } from "./generated/stateward/v1/DeleteThreadRequest.js";
import type { DeleteThreadResponse__Output } from "./generated/stateward/v1/DeleteThreadResponse.js";
import type { GetCheckpointRequest } from "./generated/stateward/v1/GetCheckpointRequest.js";
import type { GetCheckpointResponse__Output } from "./generated/stateward/v1/GetCheckpointResponse.js";
import type { GetThreadRequest } from "./generated/stateward/v1/GetThreadRequest.js";
import type { GetThreadResponse__Output } from "./generated/stateward/v1/GetThreadResponse.js";
import type { HydrateRequest } from "./generated/stateward/v1/HydrateRequest.js";
import type { HydrateResponse__Output } from "./generated/stateward/v1/HydrateResponse.js";
import type { ListCheckpointsRequest } from "./generated/stateward/v1/ListCheckpointsRequest.js";
import type { ListCheckpointsResponse__Output } from "./generated/stateward/v1/ListCheckpointsResponse.js";
import type { ListEffectsRequest } from "./generated/stateward/v1/ListEffectsRequest.js";
import type { ListEffectsResponse__Output } from "./generated/stateward/v1/ListEffectsResponse.js";
import type { ListThreadsRequest } from "./generated/stateward/v1/ListThreadsRequest.js";
import type { ListThreadsResponse__Output } from "./generated/stateward/v1/ListThreadsResponse.js";
import type { PutEffectsRequest } from "./generated/stateward/v1/PutEffectsRequest.js";
import type { PutEffectsResponse__Output } from "./generated/stateward/v1/PutEffectsResponse.js";
import type { SaveRequest } from "./generated/stateward/v1/SaveRequest.js";
import type { SaveResponse__Output } from "./generated/stateward/v1/SaveResponse.js";
import { type Tls, type TlsFiles, findTlsFault, resolveTls } from "./tls.js";

const OPTIONS: grpc.ClientOptions = {
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": 64 << 20,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1000,
  "grpc.enable_retries": 0, // calls are retried here: gRPC's own retries stop after five, within about a second
  "grpc.enable_http_proxy": 0,
  "grpc.use_local_subchannel_pool": 1,
};
const SERVICES = ["checkpoint", "effect", "thread"];
const SERVICE_NAMES = ["CheckpointService", "EffectService", "ThreadService"] as const;
type Service = (typeof SERVICE_NAMES)[number];
const MAX_PAUSE_MS = 1000;
// An owner is alive if the time at which its thread becomes free moves on by more than this.
const ALIVE_MARGIN_MS = 2000;

export interface ConnectionOptions extends TlsFiles {
  /** gRPC's own TLS, for whom files do not suit; default: `tlsCa`, else plain text. */
  credentials?: grpc.ChannelCredentials;
  /** Goes with every call, to a daemon that asks for one; default: the first line of the file STATEWARD_TOKEN_FILE. */
  token?: string;
  /** How long each attempt of a call may take; default 30,000. */
  callTimeoutMs?: number;
  /** How long a call is retried while the daemon is away; default 30,000. */
  retryTimeoutMs?: number;
}

type Unary<Q, A> = (request: Q) => Promise<A>;

export class Connection {
  readonly save: Unary<SaveRequest, SaveResponse__Output>;
  readonly hydrate: Unary<HydrateRequest, HydrateResponse__Output>;
  readonly getCheckpoint: Unary<GetCheckpointRequest, GetCheckpointResponse__Output>;
  readonly listCheckpoints: Unary<ListCheckpointsRequest, ListCheckpointsResponse__Output>;
  readonly putEffects: Unary<PutEffectsRequest, PutEffectsResponse__Output>;
  readonly listEffects: Unary<ListEffectsRequest, ListEffectsResponse__Output>;
  readonly listThreads: Unary<ListThreadsRequest, ListThreadsResponse__Output>;
  readonly getThread: Unary<GetThreadRequest, GetThreadResponse__Output>;
  readonly deleteThread: Unary<DeleteThreadRequest, DeleteThreadResponse__Output>;
  #clients = new Map<Service, grpc.Client>();
  readonly #services: Record<Service, grpc.ServiceClientConstructor>;
  readonly #tls: Tls | undefined;
  readonly #target: string;
  readonly #options: ConnectionOptions;

  constructor(target: string, options: ConnectionOptions) {
    this.#target = target;
    this.#options = options;
    const protos = SERVICES.map((name) => `stateward/v1/${name}_service.proto`);
    const definition = loadSync(protos, {
      includeDirs: [fileURLToPath(new URL("../proto", import.meta.url))],
      keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true,
    });
    this.#services = (grpc.loadPackageDefinition(definition) as Record<string, any>).stateward.v1;
    this.#tls = options.credentials ? undefined : resolveTls(target, options);
    this.#open();
    this.save = this.#bind("CheckpointService", "Save");
    this.hydrate = this.#bind("CheckpointService", "Hydrate");
    this.getCheckpoint = this.#bind("CheckpointService", "GetCheckpoint");
    this.listCheckpoints = this.#bind("CheckpointService", "ListCheckpoints");
    this.putEffects = this.#bind("EffectService", "PutEffects");
    this.listEffects = this.#bind("EffectService", "ListEffects");
    this.listThreads = this.#bind("ThreadService", "ListThreads");
    this.getThread = this.#bind("ThreadService", "GetThread");
    this.deleteThread = this.#bind("ThreadService", "DeleteThread");
  }

  close(): void {
    for (const client of this.#clients.values()) client.close();
  }

  #open(): void {
    const credentials = this.#options.credentials ?? this.#tls?.credentials() ?? grpc.credentials.createInsecure();
    const open = (name: Service) => [name, new this.#services[name](this.#target, credentials, OPTIONS)] as const;
    this.#clients = new Map(SERVICE_NAMES.map(open));
  }

  /** The client of a service. gRPC keeps the files that a channel was opened with, so new files need new channels; calls
   * under way end on the old ones. */
  #client(service: Service): grpc.Client {
    if (this.#tls?.hasChanged()) {
      const old = this.#clients;
      try {
        this.#open();
        for (const client of old.values()) client.close();
      } catch (error) {
        if (!(error instanceof StatewardError)) throw error; // a file is half written: the next look finds it whole
      }
    }
    return this.#clients.get(service)!;
  }

  #bind<Q, A>(service: Service, method: string): Unary<Q, A> {
    const { callTimeoutMs = 30_000, retryTimeoutMs = 30_000 } = this.#options;
    const once = (request: Q): Promise<A> =>
      new Promise((resolve, reject) => {
        const options = { deadline: Date.now() + callTimeoutMs };
        const done = (error: grpc.ServiceError | null, answer: A) => (error ? reject(fromRpc(error)) : resolve(answer));
        const client = this.#client(service);
        (client as unknown as Record<string, Function>)[method]!(request, metadataOf(this.#options.token), options, done);
      });
    return async (request) => {
      const end = Date.now() + retryTimeoutMs;
      let freeAt = Infinity;
      for (let pause = 50; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
        try {
          return await once(request);
        } catch (error) {
          if (!(error instanceof StatewardError)) throw error;
          const free = freeMs(error);
          if (isAway(error)) await this.#findFault();
          if (!isPassing(error) && (free === undefined || Date.now() + free > freeAt + ALIVE_MARGIN_MS)) throw error;
          if (free !== undefined) freeAt = Math.min(freeAt, Date.now() + free);
          const wait = free ?? (error.retryDelayMs || pause * (0.5 + Math.random() / 2));
          if (Date.now() + wait > end) throw explain(error, this.#target);
          await sleep(Math.max(wait, 1));
        }
      }
    };
  }

  /** Throws the lasting fault of a port, as of a certificate that has expired: waiting does not help. */
  async #findFault(): Promise<void> {
    const fault = this.#options.credentials ? "" : await findTlsFault(this.#target, this.#tls);
    if (fault) throw new StatewardError(fault, grpc.status.UNAVAILABLE);
  }
}

/** Whether nobody answered. */
function isAway(error: StatewardError): boolean {
  return !error.reason && error.code === grpc.status.UNAVAILABLE;
}

/** The metadata with the token, if there is one. A file is read for each call, because it may change. */
function metadataOf(token?: string): grpc.Metadata {
  const path = process.env.STATEWARD_TOKEN_FILE;
  const found = token ?? (path ? readFileSync(path, "ascii").trim().split(/\s+/)[0] : undefined);
  const metadata = new grpc.Metadata();
  if (found) metadata.set("authorization", `Bearer ${found}`);
  return metadata;
}

/** Whether another attempt may succeed, as docs/protocol.md says. Every write carries a request id, so a repeated one is
 * done once. */
function isPassing(error: StatewardError): boolean {
  if (error.reason === "QUEUE_FULL" || error.retryDelayMs) return true;
  const { UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, UNKNOWN } = grpc.status;
  if (error.code === UNAVAILABLE || error.code === DEADLINE_EXCEEDED) return true;
  return !error.reason && (error.code === CANCELLED || error.code === UNKNOWN); // of a connection that broke
}

/** In how many milliseconds a thread is free that another sidecar holds; undefined = that is not known, or not the case. */
function freeMs(error: StatewardError): number | undefined {
  const seconds = Number(error.facts.free_in_s ?? NaN);
  return error.reason === "NOT_OWNER" && !Number.isNaN(seconds) ? Math.max(1000 * seconds, 50) : undefined;
}

function explain(error: StatewardError, target: string): StatewardError {
  return error.reason ? error : new StatewardError(`no stateward daemon answers at ${target} (${error.message})`, error.code);
}
