import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/setup.ts"],
    // On a busy machine, even short tests may take long.
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
