export type { FollowOptions, SessionChange, SessionChangeEvent } from "./changes.js";
export { TreeholdClient } from "./client.js";
export type {
  AgentrailSessionStore,
  InspectorDataSource,
  MemoMirrorRefresher,
  OrchestrationPersistence,
  SandboxMemoProvider,
  SessionTraceStore,
  SummarizeFn,
  UserSessionLister,
} from "./contracts.js";
export { TreeholdError, type TreeholdErrorCode, type TreeholdErrorFacts } from "./errors.js";
export { createSessionRef, resolveSessionRef, type SessionName, type SessionRef } from "./ids.js";
export { TreeholdInspector } from "./inspector.js";
export type { Entry, LogOptions, Position } from "./log.js";
export { MemoMirror, type MirrorOptions, type MirrorReport } from "./mirror.js";
export {
  type ClaimOptions,
  type HeldClaim,
  OrchestrationClaim,
  type OrchestrationCommit,
  orchestrationFactory,
  TreeholdOrchestration,
} from "./orchestration.js";
export type { PageOptions } from "./pages.js";
export {
  type Appended,
  type AppendOptions,
  BUDGET_TOKENS,
  COMPACTIONS_MAX,
  type Compaction,
  type SessionStoreOptions,
  TreeholdSessionStore,
  toolResultPath,
} from "./session-store.js";
export { SideWrites, type SideWritesOptions } from "./side-writes.js";
export { TreeholdTraceStore, traceStoreFactory } from "./trace-store.js";
export type { CallOptions, ClientOptions, RetryOptions, WriteOptions } from "./transport.js";
export { TurnWriter } from "./turn-writer.js";
export type * from "./types.js";
