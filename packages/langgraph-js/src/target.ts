/** The address of the daemon: `unix:///path`, a path, or host:port. */
export function resolveTarget(target = process.env.STATEWARD_TARGET): string {
  const temporary = process.platform === "darwin" ? process.env.TMPDIR : undefined; // macOS has no /run
  const runtime = (process.env.XDG_RUNTIME_DIR || temporary || "/run").replace(/\/+$/, "");
  const found = target || `${runtime}/stateward/stateward.sock`;
  return found.startsWith("/") ? `unix://${found}` : found;
}
