/** TLS to a daemon behind a port: the files of a client, and what is wrong if a connection fails. */
import { X509Certificate } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { connect as connectPlain } from "node:net";
import { connect, createSecureContext, type SecureContext } from "node:tls";

import { credentials, status, type ChannelCredentials } from "@grpc/grpc-js";

import { StatewardError } from "./errors.js";

export interface TlsFiles {
  /** The CA of the daemon's certificate, for a daemon's port with TLS; default: the file STATEWARD_TLS_CA. */
  tlsCa?: string;
  /** The client's own certificate, for a daemon that asks for one; default: the file STATEWARD_TLS_CERT. */
  tlsCert?: string;
  /** The key of `tlsCert`; default: the file STATEWARD_TLS_KEY. */
  tlsKey?: string;
}

const [CA, CERT, KEY] = ["STATEWARD_TLS_CA", "STATEWARD_TLS_CERT", "STATEWARD_TLS_KEY"] as const;
const PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "latin1");
const PROBE_MS = 1000;
/** How often the files are looked at. */
const LOOK_MS = 1000;

/** The files of one client, and their content. They are read again when they change. */
export class Tls {
  #stamp = "";
  #lookedAt = 0;

  constructor(readonly ca: string, readonly cert?: string, readonly key?: string) {
    this.credentials();
  }

  /** Whether the files have changed since they were read. Looks once in a second. */
  hasChanged(): boolean {
    if (Date.now() - this.#lookedAt < LOOK_MS) return false;
    this.#lookedAt = Date.now();
    return this.#stamp !== this.#stampNow();
  }

  /** What a channel is opened with. Throws a StatewardError that names a file which cannot be used. */
  credentials(): ChannelCredentials {
    const stamp = this.#stampNow();
    const { ca, cert, key } = this.read();
    this.#stamp = stamp;
    return credentials.createSsl(ca, key ?? null, cert ?? null);
  }

  /** The files. */
  read(): { ca: Buffer; cert?: Buffer; key?: Buffer; context: SecureContext } {
    const ca = readPem(CA, this.ca, "CERTIFICATE");
    try {
      new X509Certificate(ca);
    } catch {
      throw wrong(`${CA}: ${this.ca} holds no certificate in PEM`);
    }
    if (!this.cert || !this.key) return { ca, context: createSecureContext({ ca }) };
    const [cert, key] = [readPem(CERT, this.cert, "CERTIFICATE"), readPem(KEY, this.key, "PRIVATE KEY")];
    try {
      return { ca, cert, key, context: createSecureContext({ ca, cert, key }) };
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === "ERR_OSSL_X509_KEY_VALUES_MISMATCH")
        throw wrong(`${KEY}: ${this.key} is not the key of the certificate in ${this.cert}`);
      throw wrong(`${KEY}: ${this.key}, or the certificate ${this.cert}, cannot be used: ${(error as Error).message}`);
    }
  }

  #stampNow(): string {
    return [this.ca, this.cert, this.key].map((path) => (path ? stampOf(path) : "")).join(" ");
  }
}

/** The files that are given, else those that the variables name; undefined = plain text. Sockets have no TLS. */
export function resolveTls(target: string, given: TlsFiles): Tls | undefined {
  const isPort = !target.startsWith("unix:");
  const named = given.tlsCa ?? given.tlsCert ?? given.tlsKey;
  if (!isPort && named !== undefined) throw new TypeError(`tlsCa is for host:port; ${target} has no TLS`);
  if (!isPort) return undefined;
  const ca = given.tlsCa ?? process.env[CA];
  const [cert, key] = [given.tlsCert ?? process.env[CERT], given.tlsKey ?? process.env[KEY]];
  if (!ca && !cert && !key) return undefined;
  if (!ca) throw new TypeError(`a certificate of the client needs ${CA}, or tlsCa: the CA of the daemon's certificate`);
  if (!cert !== !key) throw new TypeError(`${CERT} and ${KEY} go together, as tlsCert and tlsKey do`);
  return new Tls(ca, cert || undefined, key || undefined);
}

/** Why no connection can be made; "" if a daemon may still start there. It asks once more, because a daemon that refuses
 * a certificate closes the connection without a word. */
export async function findTlsFault(target: string, tls?: Tls): Promise<string> {
  const found = /^(?:dns:(?:\/\/[^/]*\/)?)?(.+):(\d+)$/.exec(target);
  if (!found || target.startsWith("unix:")) return "";
  const [host, port] = [found[1]!.replace(/^\[|\]$/g, ""), Number(found[2])];
  if (!tls) return (await probePlain(host, port)) && (await speaksTls(host, port)) ? sayTls(target) : "";
  try {
    return (await probe(target, host, port, tls)) && (await probe(target, host, port, tls)); // one that ends closes, too
  } catch (error) {
    if (error instanceof StatewardError) return error.message; // of the files
    throw error;
  }
}

function sayTls(target: string): string {
  return `${target} speaks TLS; set ${CA}, or give the saver tlsCa`;
}

/** Whether somebody takes a connection in plain text, and closes it without an answer. */
function probePlain(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connectPlain({ host, port, timeout: PROBE_MS });
    let isMet = false;
    const end = (is: boolean) => (resolve(is), socket.destroy());
    socket.on("connect", () => ((isMet = true), socket.write(PREFACE)));
    socket.on("data", () => end(false)).on("timeout", () => end(false));
    socket.on("error", () => end(isMet)).on("close", () => end(isMet));
  });
}

function speaksTls(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: PROBE_MS, rejectUnauthorized: false, ALPNProtocols: ["h2"] });
    const end = (is: boolean) => (resolve(is), socket.destroy()); // nothing is sent
    socket.on("secureConnect", () => end(true)).on("timeout", () => end(false));
    socket.on("error", () => end(false)).on("close", () => end(false));
  });
}

function probe(target: string, host: string, port: number, tls: Tls): Promise<string> {
  const { context } = tls.read();
  const servername = /^[\d.]+$|:/.test(host) ? undefined : host;
  return new Promise((resolve) => {
    const socket = connect({
      host, port, timeout: PROBE_MS, secureContext: context, ALPNProtocols: ["h2"], ...(servername && { servername }),
    });
    let isMet = false;
    const end = (why: string) => (resolve(why), socket.destroy());
    socket.on("secureConnect", () => ((isMet = true), socket.write(PREFACE)));
    socket.on("data", () => end("")).on("timeout", () => end(""));
    socket.on("error", (error: NodeJS.ErrnoException) => end(explain(target, host, tls, error, isMet)));
    socket.on("close", () => end(isMet ? explainRefusal(target, tls) : ""));
  });
}

function explain(target: string, host: string, tls: Tls, error: NodeJS.ErrnoException, isMet: boolean): string {
  const code = error.code ?? "";
  if (code === "CERT_HAS_EXPIRED") return `${target}: the daemon's certificate has expired; renew the file of its --tls-cert`;
  if (code === "CERT_NOT_YET_VALID")
    return `${target}: the daemon's certificate is not valid yet; compare the clocks of both machines`;
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID")
    return `${target}: the daemon's certificate is not for ${host}; give the name that it is for, or renew it`;
  if (/SELF_SIGNED|UNABLE_TO|CERT_/.test(code))
    return `${target}: no CA in ${tls.ca} has signed the daemon's certificate (${error.message}); correct ${CA}`;
  if (/WRONG_VERSION|HTTP_REQUEST|RECORD_LAYER|PACKET_LENGTH/.test(code))
    return `${target} speaks no TLS: unset ${CA}, or give the address of a daemon's port with ?tls`;
  return isMet ? explainRefusal(target, tls) : "";
}

function explainRefusal(target: string, tls: Tls): string {
  if (!tls.cert) return `${target} asks clients for a certificate; set ${CERT} and ${KEY}`;
  const ends = new X509Certificate(readFileSync(tls.cert)).validTo;
  if (Date.parse(ends) <= Date.now()) return `the certificate ${tls.cert} has expired, on ${ends}; renew it`;
  return `${target} does not accept the certificate ${tls.cert}: no CA of its --tls-client-ca has signed it`;
}

function readPem(variable: string, path: string, kind: string): Buffer {
  let data: Buffer;
  try {
    data = readFileSync(path);
  } catch (error) {
    throw wrong(`${variable}: cannot read ${path}: ${(error as NodeJS.ErrnoException).code}`);
  }
  if (!data.includes(kind)) throw wrong(`${variable}: ${path} holds no ${kind.toLowerCase()} in PEM`);
  return data;
}

function stampOf(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found ? `${found.dev}/${found.ino}/${found.size}/${found.mtimeNs}/${found.ctimeNs}` : "";
}

function wrong(message: string): StatewardError {
  return new StatewardError(message, status.INVALID_ARGUMENT);
}
