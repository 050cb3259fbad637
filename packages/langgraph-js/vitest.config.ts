import { defineConfig } from "vitest/config";

// The validation suite expects describe, it and expect to be global.
export default defineConfig({ test: { globals: true, include: ["tests/*.test.ts"], testTimeout: 60_000 } });
