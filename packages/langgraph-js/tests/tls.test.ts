/** The danger: a saver that cannot reach a daemon's port with TLS, does not say why, or keeps certificates that ended. */
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { emptyCheckpoint } from "@langchain/langgraph-checkpoint";
import { afterAll, expect, test } from "vitest";

import { StatewardSaver } from "../src/index.js";
import { Daemon } from "./daemon.js";

const place = mkdtempSync("/tmp/sw-js-tls-");
afterAll(() => rmSync(place, { recursive: true }));

const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: place, stdio: "pipe" });
const path = (name: string) => `${place}/${name}`;

/** Makes an authority: NAME.pem and NAME.key. */
function authority(name: string): void {
  openssl(
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", `/CN=${name}`,
    "-keyout", `${name}.key`, "-out", `${name}.pem`,
  );
}

/** Signs a certificate for so many days: NAME.pem and NAME.key, each of which is replaced at once. */
function sign(ca: string, name: string, names: string, days = 2): void {
  openssl(
    "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", `/CN=${name}`,
    "-addext", `subjectAltName=${names}`, "-keyout", "new.key", "-out", "new.csr",
  );
  const by = ["-CA", `${ca}.pem`, "-CAkey", `${ca}.key`, "-copy_extensions", "copy"];
  openssl("x509", "-req", "-in", "new.csr", ...by, "-days", `${days}`, "-out", "new.pem");
  renameSync(path("new.key"), path(`${name}.key`));
  renameSync(path("new.pem"), path(`${name}.pem`));
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const put = (saver: StatewardSaver) => {
  const metadata = { source: "input" as const, step: -1, parents: {} };
  return saver.put({ configurable: { thread_id: "t", checkpoint_ns: "" } }, emptyCheckpoint(), metadata, {});
};
async function use(target: string, options: object): Promise<void> {
  const saver = new StatewardSaver(target, options);
  try {
    await put(saver);
  } finally {
    saver.close();
  }
}
const mine = { tlsCa: path("ca.pem"), tlsCert: path("agent.pem"), tlsKey: path("agent.key") };

test("a saver connects with its certificate, and each fault is one line", async () => {
  for (const name of ["ca", "other"]) authority(name);
  sign("ca", "daemon", "DNS:localhost,IP:127.0.0.1");
  sign("ca", "agent", "URI:spiffe://example.org/agent");
  sign("other", "stranger", "DNS:stranger");
  const target = `127.0.0.1:${await freePort()}`;
  const files = ["--tls-cert", path("daemon.pem"), "--tls-key", path("daemon.key"), "--tls-client-ca", path("ca.pem")];
  const daemon = new Daemon("--listen", `${target}?tls`, ...files);
  await daemon.start();
  try {
    await use(target, mine);
    await expect(use(target, {})).rejects.toThrow(/speaks TLS; set STATEWARD_TLS_CA/);
    await expect(use(target, { tlsCa: mine.tlsCa })).rejects.toThrow(/asks clients for a certificate/);
    await expect(use(target, { ...mine, tlsCa: path("other.pem") })).rejects.toThrow(/has signed the daemon's certificate/);
    const stranger = { tlsCert: path("stranger.pem"), tlsKey: path("stranger.key") };
    await expect(use(target, { ...mine, ...stranger })).rejects.toThrow(/does not accept the certificate/);
    for (const name of ["CA", "CERT", "KEY"]) {
      const option = `tls${name[0]}${name.slice(1).toLowerCase()}`;
      process.env[`STATEWARD_TLS_${name}`] = (mine as Record<string, string>)[option];
    }
    await use(target, {});
    await use(daemon.target, {}); // a socket has no TLS
  } finally {
    for (const name of ["CA", "CERT", "KEY"]) delete process.env[`STATEWARD_TLS_${name}`];
    await daemon.remove();
  }
  const plain = new Daemon("--listen", target, "--exposed-port");
  await plain.start();
  try {
    await expect(use(target, mine)).rejects.toThrow(/speaks no TLS: unset STATEWARD_TLS_CA/);
  } finally {
    await plain.remove();
  }
});

test("a certificate that has expired is named", async () => {
  authority("ca");
  sign("ca", "daemon", "DNS:localhost,IP:127.0.0.1");
  sign("ca", "agent", "DNS:agent", -1);
  const target = `127.0.0.1:${await freePort()}`;
  const files = ["--tls-cert", path("daemon.pem"), "--tls-key", path("daemon.key"), "--tls-client-ca", path("ca.pem")];
  const daemon = new Daemon("--listen", `${target}?tls`, ...files);
  await daemon.start();
  try {
    await expect(use(target, mine)).rejects.toThrow(/agent.pem has expired/);
  } finally {
    await daemon.remove();
  }
});

test("a saver takes files that change while it runs", async () => {
  authority("ca");
  authority("next");
  sign("ca", "daemon", "IP:127.0.0.1");
  sign("ca", "agent", "DNS:agent");
  copyFileSync(path("ca.pem"), path("trust.pem"));
  const target = `127.0.0.1:${await freePort()}`;
  const files = ["--tls-cert", path("daemon.pem"), "--tls-key", path("daemon.key"), "--tls-client-ca", path("trust.pem")];
  const daemon = new Daemon("--listen", `${target}?tls`, ...files);
  await daemon.start();
  const saver = new StatewardSaver(target, { ...mine, tlsCa: path("trust.pem") });
  try {
    await put(saver);
    await daemon.kill();
    copyFileSync(path("next.pem"), path("trust.pem"));
    sign("next", "daemon", "IP:127.0.0.1");
    sign("next", "agent", "DNS:agent");
    await daemon.start();
    await put(saver);
    writeFileSync(path("agent.key"), "half"); // what it had goes on
    await sleep(1500);
    await put(saver);
  } finally {
    saver.close();
    await daemon.remove();
  }
});

test("files that cannot be used are one line", () => {
  authority("ca");
  sign("ca", "agent", "DNS:agent");
  writeFileSync(path("junk"), "junk");
  const open = (options: object, target = "127.0.0.1:1") => () => new StatewardSaver(target, options).close();
  expect(open({ tlsCa: path("none") })).toThrow(/STATEWARD_TLS_CA: cannot read/);
  expect(open({ tlsCa: path("junk") })).toThrow(/STATEWARD_TLS_CA: .*holds no certificate/);
  expect(open({ ...mine, tlsCert: path("none") })).toThrow(/STATEWARD_TLS_CERT: cannot read/);
  expect(open({ ...mine, tlsKey: path("junk") })).toThrow(/STATEWARD_TLS_KEY: .*holds no private key/);
  expect(open({ ...mine, tlsKey: path("ca.key") })).toThrow(/is not the key of the certificate/);
  expect(open({ tlsCert: mine.tlsCert, tlsKey: mine.tlsKey })).toThrow(/needs STATEWARD_TLS_CA/);
  expect(open({ tlsCa: mine.tlsCa, tlsCert: mine.tlsCert })).toThrow(/go together/);
  expect(open(mine, "unix:///tmp/none.sock")).toThrow(/has no TLS/);
  open(mine)();
});
