/** The address of the daemon: `unix:///path`, a path, or host:port. */
export function resolveTarget(target = process.env.STATEWARD_TARGET): string {
  const runtime = process.env.XDG_RUNTIME_DIR;
  const found = target || (runtime ? `${runtime}/stateward/stateward.sock` : "/run/stateward/stateward.sock");
  return found.startsWith("/") ? `unix://${found}` : found;
}
