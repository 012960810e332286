/** The directory of a store. */
export interface Store {
  directory: string;
  env: NodeJS.ProcessEnv;
  remove(): void;
}

/** A running server. */
export interface Server {
  baseUrl: string;
  kill(): Promise<void>;
  stop(): Promise<void>;
}

export function binary(): string;
export function freshStore(): Store;
export function serve(store: Store, options?: string[]): Promise<Server>;
