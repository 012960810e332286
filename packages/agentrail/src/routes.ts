// The routes of the server, checked against its description: a path, a parameter or a field that the server no longer has does not compile.

import { segment } from "./ids.js";
import type { components, paths } from "./wire.js";

/** The types of the server's requests and answers. */
export type Wire = components["schemas"];

/** An answer or request in which the host's own types stand for some fields. */
export type With<T, F> = Omit<T, keyof F> & F;

type Params<P extends string> = P extends `${string}{${infer Name}}${infer Rest}` ? Name | Params<Rest> : never;

/** The query of reading a path. */
export type QueryOf<P extends keyof paths> = paths[P] extends { get: { parameters: { query?: infer Q } } }
  ? NonNullable<Q>
  : never;

/** Fills the ids into the path of a route. */
export function route<P extends keyof paths>(template: P, ids: Record<Params<P>, string>): string {
  const named: Record<string, string> = ids;
  return template.replace(/\{(\w+)\}/g, (_, name: string) => segment(name.replace("_", " "), named[name] as string));
}
