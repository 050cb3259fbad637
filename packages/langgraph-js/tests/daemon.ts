/** A throw-away daemon. STATEWARD_PYTHON names the Python that has it; default: that of the repository's .venv. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const PYTHON = process.env.STATEWARD_PYTHON ?? fileURLToPath(new URL("../../../.venv/bin/python", import.meta.url));

export class Daemon {
  readonly #directory = mkdtempSync("/tmp/sw-js-");
  readonly #flags: string[];
  readonly target = `unix://${this.#directory}/s.sock`;
  #process?: ChildProcess;

  constructor(...flags: string[]) {
    this.#flags = flags;
    writeFileSync(`${this.#directory}/key`, randomBytes(32).toString("hex"), { mode: 0o600 });
  }

  /** Starts the daemon, or starts it again on the same data, and waits until it is ready. */
  async start(): Promise<void> {
    const place = ["--data-dir", `${this.#directory}/data`, "--key-file", `${this.#directory}/key`];
    const args = ["-m", "stateward_sidecar", ...place, "--listen", this.target, ...this.#flags];
    this.#process = spawn(PYTHON, args, { stdio: ["ignore", "pipe", "inherit"] });
    for await (const line of createInterface({ input: this.#process.stdout! })) {
      if (line.includes("stateward-sidecar ready")) return;
    }
    throw new Error("the daemon ended before it was ready");
  }

  /** Kill -9, like a crash. */
  async kill(): Promise<void> {
    const ended = once(this.#process!, "exit");
    this.#process!.kill("SIGKILL");
    await ended;
  }

  /** Copies the disk of a daemon that was killed. */
  backUp(): void {
    cpSync(`${this.#directory}/data`, `${this.#directory}/copy`, { recursive: true });
  }

  /** Puts the copy in the place of the disk: what came after it is lost. */
  setBack(): void {
    rmSync(`${this.#directory}/data`, { recursive: true });
    cpSync(`${this.#directory}/copy`, `${this.#directory}/data`, { recursive: true });
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.#directory, { recursive: true });
  }
}
