// Writes src/wire.ts: the types of the requests and answers about sessions, from the server's own /openapi.json. With --check it only
// compares.

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";
import { freshStore, serve } from "./server.mjs";

const target = fileURLToPath(new URL("../src/wire.ts", import.meta.url));
const used = (path) => /^\/v1\/(sessions|user-memo|inspector)(\/|$)/.test(path);

const store = freshStore();
const server = await serve(store);
let description;
try {
  description = await (await fetch(`${server.baseUrl}/openapi.json`)).json();
} finally {
  await server.stop();
  store.remove();
}

const paths = Object.fromEntries(Object.entries(description.paths).filter(([path]) => used(path)));
const all = description.components?.schemas ?? {};
const schemas = {};
const visit = (value) => {
  for (const [, name] of JSON.stringify(value).matchAll(/"#\/components\/schemas\/([^"]+)"/g)) {
    if (!(name in schemas)) {
      schemas[name] = all[name];
      visit(all[name]);
    }
  }
};
const { schemas: _, ...components } = description.components ?? {};
visit({ paths, components });
const part = { ...description, paths, components: { ...components, schemas } };
// Properties with a default may be left out of requests.
const types = astToString(await openapiTS(part, { defaultNonNullable: false }));
const text = `// Generated from the server's /openapi.json by scripts/wire.mjs; do not edit.\n\n${types}`;

if (!process.argv.includes("--check")) {
  writeFileSync(target, text);
} else if (readFileSync(target, "utf8") !== text) {
  console.error("src/wire.ts does not match the server's /openapi.json; run `npm run wire`");
  process.exit(1);
}
