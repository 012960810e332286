// What the tests share: a client of the common server, a fresh tenant, sessions and messages.

import { randomUUID } from "node:crypto";
import { connect, createServer, type Socket } from "node:net";
import { expect, inject } from "vitest";
import {
  type AssistantMessage,
  type ClientOptions,
  type Message,
  type SessionHandle,
  type ToolResultMessage,
  TreeholdClient,
  TreeholdError,
  TreeholdSessionStore,
  type Usage,
  type UserMessage,
} from "../src/index.js";

export const baseUrl = inject("baseUrl");

export function client(options: Partial<ClientOptions> = {}): TreeholdClient {
  return new TreeholdClient({ baseUrl, ...options });
}

export function fresh(prefix: string): string {
  return `${prefix}-${randomUUID()}`;
}

export interface World extends SessionHandle {
  store: TreeholdSessionStore;
  tenantId: string;
  userId: string;
}

/** Makes a session in a tenant of its own. */
export async function session(store = new TreeholdSessionStore(client())): Promise<World> {
  const [tenantId, userId] = [fresh("tenant"), fresh("user")];
  return { store, tenantId, userId, ...(await store.getOrCreate(tenantId, userId, "helper")) };
}

export function usage(inputTokens: number, outputTokens: number): Usage {
  return {
    inputTokens,
    outputTokens,
    cacheReadTokens: 0,
    cacheWriteTokens: 0,
    totalTokens: inputTokens + outputTokens,
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 },
  };
}

export function user(content: string, timestamp = 1): UserMessage {
  return { role: "user", content, timestamp };
}

export function assistant(text: string, calls: string[] = []): AssistantMessage {
  const blocks = calls.map((id) => ({ type: "toolCall" as const, id, name: "look", arguments: { at: id } }));
  return {
    role: "assistant",
    content: [{ type: "text", text }, ...blocks],
    provider: "scripted",
    modelId: "scripted-1",
    usage: usage(1, 1),
    stopReason: calls.length > 0 ? "toolUse" : "stop",
    timestamp: 2,
  };
}

export function toolResult(toolCallId: string, text: string): ToolResultMessage {
  return {
    role: "toolResult",
    toolCallId,
    toolName: "look",
    content: [{ type: "text", text }],
    isError: false,
    timestamp: 3,
  };
}

/** Makes user messages of about `tokens` tokens each: a token is four ASCII characters, and a message has four more. */
export function long(count: number, tokens: number): Message[] {
  return Array.from({ length: count }, (_, index) => user(`${index} `.padEnd((tokens - 4) * 4, "x"), index));
}

export function texts(messages: Message[]): string[] {
  return messages.map(({ content }) =>
    typeof content === "string"
      ? content
      : content.map((block) => (block.type === "text" ? block.text : block.type)).join(" "),
  );
}

/** Reads an iterator to its end. */
export async function all<T>(iterator: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const value of iterator) {
    found.push(value);
  }
  return found;
}

/** Expects a call to fail with a code, and returns the error. */
export async function failure(call: Promise<unknown>, code: string): Promise<TreeholdError> {
  const error = await call.then(
    (value) => expect.fail(`it succeeded with ${JSON.stringify(value)}`),
    (error: unknown) => error,
  );
  expect(error).toBeInstanceOf(TreeholdError);
  expect((error as TreeholdError).code).toBe(code);
  return error as TreeholdError;
}

/** Stands between a client and the server, and loses requests or answers. */
export class BadNetwork {
  baseUrl = "";
  /** How many of the next answers are lost. The server has handled their requests. */
  loseAnswers = 0;
  /** How many of the next connections are cut at once. */
  cutConnections = 0;
  /** How many bytes with an answer arrived or were lost. */
  answers = 0;
  /** Whether answers are held back for ever. */
  isSilent = false;
  readonly #sockets = new Set<Socket>();
  readonly #server = createServer((near) => this.#connected(near));

  static async before(target: string): Promise<BadNetwork> {
    const network = new BadNetwork(new URL(target));
    await new Promise<void>((done) => network.#server.listen(0, "127.0.0.1", done));
    const address = network.#server.address();
    network.baseUrl = `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
    return network;
  }

  constructor(readonly target: URL) {}

  async close(): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    await new Promise((done) => this.#server.close(done));
  }

  #connected(near: Socket): void {
    if (this.cutConnections > 0) {
      this.cutConnections -= 1;
      near.destroy();
      return;
    }
    const far = connect(Number(this.target.port), this.target.hostname);
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      this.#sockets.add(socket);
      socket.on("error", () => other.destroy());
      socket.on("close", () => {
        this.#sockets.delete(socket);
        other.destroy();
      });
    }
    near.on("data", (bytes) => far.write(bytes));
    far.on("data", (bytes) => {
      this.answers += 1;
      if (this.isSilent) {
        return;
      }
      if (this.loseAnswers > 0) {
        this.loseAnswers -= 1;
        near.destroy();
      } else {
        near.write(bytes);
      }
    });
  }
}
