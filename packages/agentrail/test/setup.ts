// Serves one store to all tests. Each test uses a tenant of its own.

import type { TestProject } from "vitest/node";
import { freshStore, serve } from "../scripts/server.mjs";

declare module "vitest" {
  interface ProvidedContext {
    baseUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const store = freshStore();
  const server = await serve(store);
  project.provide("baseUrl", server.baseUrl);
  return async () => {
    await server.stop();
    store.remove();
  };
}
