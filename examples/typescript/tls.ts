// TLS to a daemon's port, with the files that the environment names.
import { readFileSync } from "node:fs";
import { createSecureContext } from "node:tls";

import * as grpc from "@grpc/grpc-js";

/** What a channel is opened with: plain text to a socket, and to a port without STATEWARD_TLS_CA. */
export function transport(target: string): grpc.ChannelCredentials {
  const { STATEWARD_TLS_CA: ca, STATEWARD_TLS_CERT: cert, STATEWARD_TLS_KEY: key } = process.env;
  if (!ca || target.startsWith("unix:")) return grpc.credentials.createInsecure();
  const files = { ca: read("STATEWARD_TLS_CA", ca) };
  if (!cert || !key) return grpc.credentials.createSsl(files.ca);
  const own = { cert: read("STATEWARD_TLS_CERT", cert), key: read("STATEWARD_TLS_KEY", key) };
  try {
    createSecureContext({ ...files, ...own });
  } catch (error) {
    fail(`STATEWARD_TLS_CERT, STATEWARD_TLS_KEY: ${cert} and ${key} cannot be used: ${(error as Error).message}`);
  }
  return grpc.credentials.createSsl(files.ca, own.key, own.cert);
}

function read(variable: string, path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    return fail(`${variable}: ${(error as Error).message}`);
  }
}

function fail(why: string): never {
  console.error(why);
  process.exit(1);
}
