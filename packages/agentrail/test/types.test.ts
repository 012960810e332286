// The classes fit the contracts as hosts declare them, with the hosts' own types. `tsc` checks this file.

import { describe, expectTypeOf, test } from "vitest";
import {
  type AgentrailSessionStore,
  createSessionRef,
  type InspectorDataSource,
  MemoMirror,
  type MemoMirrorRefresher,
  type Message,
  type OrchestrationPersistence,
  orchestrationFactory,
  type SandboxMemoProvider,
  type SessionHandle,
  type SessionMeta,
  type SessionTraceStore,
  type TraceEnvelope,
  TreeholdClient,
  type TreeholdInspector,
  type TreeholdOrchestration,
  TreeholdSessionStore,
  type TreeholdTraceStore,
  traceStoreFactory,
  type UserSessionLister,
} from "../src/index.js";

const client = new TreeholdClient({ baseUrl: "http://127.0.0.1:1" });

/** What a host declares: references that are more than a text, readonly messages with blocks of its own. */
type HostRef = string & { readonly brand: "session" };
interface HostMessage {
  readonly role: "user" | "assistant" | "toolResult";
  readonly content: string | readonly { readonly type: "text" | "hologram"; readonly [field: string]: unknown }[];
}
interface HostUsage {
  readonly inputTokens: number;
}
interface HostStore {
  getOrCreate(
    tenant: string,
    user: string,
    agent: string,
    session?: string,
  ): Promise<{ sessionId: string; sessionRef: HostRef }>;
  loadMessages(tenant: string, session: string, limit?: number): Promise<HostMessage[]>;
  loadMessagesWithBudget(tenant: string, session: string, budget?: number): Promise<HostMessage[]>;
  loadAllMessages(tenant: string, session: string): Promise<HostMessage[]>;
  appendMessages(tenant: string, session: string, messages: HostMessage[]): Promise<void>;
  recordTurn(tenant: string, session: string, usage: HostUsage): Promise<void>;
  compactIfNeeded(
    tenant: string,
    session: string,
    summarizeFn: (messages: HostMessage[]) => Promise<string>,
    options?: {
      triggerTokens?: number;
      compactFraction?: number;
      preloadedMessages?: HostMessage[];
      workspaceSnapshot?: string;
    },
  ): Promise<boolean>;
  readMemoryDocument?(
    tenant: string,
    owner: string,
    scope: "session" | "user",
    name: "NOTES.md" | "TODO.md" | "USER.md",
  ): Promise<string | null>;
  writeToolResultArtifact?(session: HostRef, toolCall: string, content: string): Promise<void>;
  createTodoStorage?(session: HostRef): { read(): Promise<string | null>; write(content: string): Promise<void> };
}

describe("one session store", () => {
  test("implements_three_contracts", () => {
    const store = new TreeholdSessionStore(client);
    expectTypeOf(store).toExtend<AgentrailSessionStore>();
    expectTypeOf(store).toExtend<UserSessionLister>();
    expectTypeOf(store).toExtend<SandboxMemoProvider>();
  });

  test("fits_a_host_with_its_own_types", () => {
    expectTypeOf<TreeholdSessionStore<HostMessage, HostUsage, HostRef>>().toExtend<HostStore>();
    expectTypeOf<TreeholdSessionStore>().not.toExtend<HostStore>();
  });

  test("results_have_the_types_of_the_contracts", () => {
    const store = new TreeholdSessionStore(client);
    expectTypeOf(store.getOrCreate).returns.resolves.toEqualTypeOf<SessionHandle>();
    expectTypeOf(store.loadMessages).returns.resolves.toEqualTypeOf<Message[]>();
    expectTypeOf(store.appendMessages).returns.resolves.toEqualTypeOf<void>();
    expectTypeOf(store.recordTurn).returns.resolves.toEqualTypeOf<void>();
    expectTypeOf(store.compactIfNeeded).returns.resolves.toEqualTypeOf<boolean>();
    expectTypeOf(store.listSessionsByUser).returns.resolves.toEqualTypeOf<SessionMeta[]>();
    expectTypeOf(store.readMemoryDocument).returns.resolves.toEqualTypeOf<string | null>();
    expectTypeOf(store.readToolResultArtifact).returns.resolves.toEqualTypeOf<string | null>();
    expectTypeOf(store.listToolResultArtifactIds).returns.resolves.toEqualTypeOf<string[]>();
  });

  test("wrong_arguments_do_not_compile", () => {
    const store = new TreeholdSessionStore(client);
    const never = () => {
      // @ts-expect-error: the usage of a turn has more fields.
      store.recordTurn("t", "s", { inputTokens: 1 });
      // @ts-expect-error: there is no such role.
      store.appendMessages("t", "s", [{ role: "oracle", content: "a", timestamp: 1 }]);
      // @ts-expect-error: there is no such scope.
      store.readMemoryDocument("t", "s", "global", "NOTES.md");
      // @ts-expect-error: a summary is a text.
      store.compactIfNeeded("t", "s", async () => 7);
    };
    expectTypeOf(never).toBeFunction();
  });
});

test("other_classes_implement_their_contracts", () => {
  expectTypeOf<TreeholdTraceStore>().toExtend<SessionTraceStore>();
  expectTypeOf<TreeholdTraceStore<{ mine: true }>>().toExtend<SessionTraceStore<{ mine: true }>>();
  expectTypeOf<TreeholdOrchestration>().toExtend<OrchestrationPersistence>();
  expectTypeOf<TreeholdOrchestration<HostMessage>>().toExtend<OrchestrationPersistence<HostMessage>>();
  expectTypeOf<TreeholdInspector>().toExtend<InspectorDataSource>();
  expectTypeOf<TreeholdInspector<HostMessage>>().toExtend<InspectorDataSource<HostMessage>>();
  expectTypeOf<MemoMirror>().toExtend<MemoMirrorRefresher>();
  expectTypeOf(new MemoMirror(new TreeholdSessionStore(client))).toEqualTypeOf<MemoMirror>();
});

test("factories_take_the_reference_that_a_store_returns", () => {
  expectTypeOf(traceStoreFactory(client)).parameter(0).toEqualTypeOf<SessionHandle["sessionRef"]>();
  expectTypeOf(orchestrationFactory(client)).parameter(0).toEqualTypeOf<SessionHandle["sessionRef"]>();
  expectTypeOf(traceStoreFactory(client)(createSessionRef("t", "s")).loadEnvelopes).returns.resolves.toEqualTypeOf<
    TraceEnvelope[]
  >();
});

test("tool_results_are_listed_by_the_sandbox_contract_only", () => {
  expectTypeOf<AgentrailSessionStore>().not.toHaveProperty("listToolResultArtifactIds");
  expectTypeOf<SandboxMemoProvider>().toHaveProperty("listToolResultArtifactIds");
  // Both contracts read and write them.
  expectTypeOf<AgentrailSessionStore>().toHaveProperty("readToolResultArtifact");
  expectTypeOf<AgentrailSessionStore>().toHaveProperty("writeToolResultArtifact");
});
