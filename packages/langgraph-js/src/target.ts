import { lstatSync } from "node:fs";

/** The address of the daemon: `unix:///path`, a path, or host:port. */
export function resolveTarget(target = process.env.STATEWARD_TARGET): string {
  const temporary = process.platform === "darwin" ? process.env.TMPDIR : undefined; // macOS has no /run
  const runtime = (process.env.XDG_RUNTIME_DIR || temporary || "").replace(/\/+$/, "");
  const found = target || `${runtime ? `${runtime}/stateward` : directoryWithoutRuntime()}/stateward.sock`;
  return found.startsWith("/") ? `unix://${found}` : found;
}

/** A user who may not write /run has a directory in /tmp. Anybody may make one of that name, so its owner counts. */
function directoryWithoutRuntime(): string {
  const user = process.getuid?.();
  const own = `/tmp/stateward-${user}`;
  try {
    const found = lstatSync(own);
    const isPrivate = found.isDirectory() && found.uid === user && (found.mode & 0o022) === 0;
    if (isPrivate && lstatSync(`${own}/stateward.sock`).isSocket()) return own;
  } catch {
    // there is none
  }
  return "/run/stateward";
}
