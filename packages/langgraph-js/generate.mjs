// Copies the contract beside the package, and generates the types of its messages and stubs. Neither is committed.
import { execFileSync } from "node:child_process";
import { cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
for (const made of ["proto", "src/generated"]) rmSync(here + made, { recursive: true, force: true });
cpSync(here + "../../proto/stateward/v1", here + "proto/stateward/v1", { recursive: true });
execFileSync(
  here + "node_modules/.bin/proto-loader-gen-types",
  [
    "--keepCase", "--longs=Number", "--enums=String", "--defaults", "--oneofs", "--includeComments",
    "--grpcLib=@grpc/grpc-js", "--targetFileExtension=.ts", "--importFileExtension=.js",
    "--includeDirs=proto", "--outDir=src/generated",
    ...["checkpoint", "effect", "thread"].map((name) => `stateward/v1/${name}_service.proto`),
  ],
  { cwd: here, stdio: ["ignore", "ignore", "inherit"] },
);
