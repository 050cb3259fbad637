/** Errors of the daemon. */
import { Metadata, status, type ServiceError } from "@grpc/grpc-js";
import protobuf, { type INamespace } from "protobufjs";

/** The parts of google.rpc that are read here; npm has no small package with them. */
const google: INamespace = {
  nested: {
    Any: { fields: { type_url: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
    Status: { fields: { details: { rule: "repeated", type: "Any", id: 3 } } },
    ErrorInfo: {
      fields: { reason: { type: "string", id: 1 }, metadata: { keyType: "string", type: "string", id: 3 } },
    } as protobuf.IType, // `keyType` of a map is missing in the types of protobufjs
    RetryInfo: { fields: { retry_delay: { type: "Duration", id: 1 } } },
    Duration: { fields: { seconds: { type: "int64", id: 1 }, nanos: { type: "int32", id: 2 } } },
  },
};
const rpc = protobuf.Root.fromJSON(google);

/** An answer of the daemon that says no. Match on `reason`, a name of error_reason.proto without its prefix. */
export class StatewardError extends Error {
  override name = "StatewardError";

  constructor(
    message: string,
    /** The gRPC status code. */
    readonly code: status,
    /** Why, e.g. "VERSION_MISMATCH"; empty = the error comes from gRPC itself, e.g. because no daemon answers. */
    readonly reason = "",
    /** The facts that error_reason.proto names for the reason. */
    readonly facts: Readonly<Record<string, string>> = {},
    /** How long the daemon asks to wait before the next attempt; 0 = it names no time. */
    readonly retryDelayMs = 0,
  ) {
    super(reason ? `${reason}: ${message}` : message);
  }
}

/** The error of a call. */
export function fromRpc(error: ServiceError): StatewardError {
  const [trailer] = (error.metadata ?? new Metadata()).get("grpc-status-details-bin");
  if (!(trailer instanceof Uint8Array)) return new StatewardError(error.details, error.code);
  const details = read("Status", trailer).details as { type_url: string; value: Uint8Array }[];
  const info = details.find((each) => each.type_url.endsWith("/google.rpc.ErrorInfo"));
  const { reason, metadata } = info ? read("ErrorInfo", info.value) : {};
  const retry = details.find((each) => each.type_url.endsWith("/google.rpc.RetryInfo"));
  const facts = metadata as Record<string, string>;
  return new StatewardError(error.details, error.code, reason as string, facts, retry ? delayMs(retry.value) : 0);
}

function delayMs(retryInfo: Uint8Array): number {
  const { seconds, nanos } = read("RetryInfo", retryInfo).retry_delay as { seconds: number; nanos: number };
  return 1000 * seconds + nanos / 1e6;
}

function read(type: string, data: Uint8Array): Record<string, unknown> {
  const found = rpc.lookupType(type);
  return found.toObject(found.decode(data), { defaults: true, longs: Number });
}
