// The six storage contracts of an agent host, and the duty to refresh mirrors. Methods have the names, arguments and results that hosts
// such as Agentrail expect.

import type { SessionRef } from "./ids.js";
import type {
  CompactOptions,
  InspectorSessionItem,
  MailboxEvent,
  MailboxState,
  MemoScope,
  Message,
  OrchestrationEvent,
  OrchestrationSnapshot,
  RecoveredOrchestrationState,
  SessionHandle,
  SessionMeta,
  SkillLog,
  TodoStorage,
  TraceEnvelope,
  Usage,
} from "./types.js";

/** Makes a summary of messages, usually by asking a model. */
export type SummarizeFn<M = Message> = (messages: M[]) => Promise<string>;

/** The conversations of a host. */
export interface AgentrailSessionStore<M = Message, U = Usage, R extends string = SessionRef> {
  getOrCreate(tenantId: string, userId: string, agentId: string, sessionId?: string): Promise<SessionHandle<R>>;
  loadMessages(tenantId: string, sessionId: string, limit?: number): Promise<M[]>;
  loadMessagesWithBudget(tenantId: string, sessionId: string, tokenBudget?: number): Promise<M[]>;
  loadAllMessages(tenantId: string, sessionId: string): Promise<M[]>;
  appendMessages(tenantId: string, sessionId: string, messages: M[]): Promise<void>;
  recordTurn(tenantId: string, sessionId: string, usage: U): Promise<void>;
  compactIfNeeded(
    tenantId: string,
    sessionId: string,
    summarizeFn: SummarizeFn<M>,
    options?: CompactOptions<M>,
  ): Promise<boolean>;
  readMemoryDocument?(tenantId: string, ownerId: string, scope: MemoScope, name: string): Promise<string | null>;
  writeMemoryDocument?(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    content: string,
  ): Promise<void>;
  appendMemoryDocument?(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    content: string,
  ): Promise<void>;
  readToolResultArtifact?(sessionRef: R, toolCallId: string): Promise<string | null>;
  writeToolResultArtifact?(sessionRef: R, toolCallId: string, content: string): Promise<void>;
  createTodoStorage?(sessionRef: R): TodoStorage;
  persistSkillSubAgentLog?(sessionRef: R, entry: SkillLog): Promise<void>;
  ping?(): Promise<void>;
}

/** The sessions of a user. */
export interface UserSessionLister {
  listSessionsByUser(tenantId: string, userId: string): Promise<SessionMeta[]>;
}

/** The trace of one session. */
export interface SessionTraceStore<E = TraceEnvelope> {
  appendEnvelope(envelope: E): Promise<void>;
  loadEnvelopes(): Promise<E[]>;
}

/** The orchestration of one session. */
export interface OrchestrationPersistence<M = Message> {
  appendEvent(event: OrchestrationEvent): Promise<void>;
  loadEvents(): Promise<OrchestrationEvent[]>;
  loadSnapshot(): Promise<OrchestrationSnapshot | null>;
  writeCheckpoint(snapshot: OrchestrationSnapshot): Promise<void>;
  recoverState(): Promise<RecoveredOrchestrationState>;
  appendMailboxEvent(agentId: string, event: MailboxEvent): Promise<void>;
  loadMailboxEvents(agentId: string): Promise<MailboxEvent[]>;
  loadMailboxState(agentId: string): Promise<MailboxState>;
  writeMailboxState(agentId: string, state: MailboxState): Promise<void>;
  loadAgentHistory(agentId: string): Promise<M[]>;
  writeAgentHistory(agentId: string, messages: M[]): Promise<void>;
}

/** The data of an inspector. No method changes anything. */
export interface InspectorDataSource<M = Message, E = TraceEnvelope> {
  listSessions(): Promise<InspectorSessionItem[]>;
  loadMessages(tenantId: string, sessionId: string): Promise<M[]>;
  loadTraceEnvelopes(tenantId: string, sessionId: string): Promise<E[]>;
  loadOrchestrationState(tenantId: string, sessionId: string): Promise<RecoveredOrchestrationState | null>;
  loadOrchestrationEvents(tenantId: string, sessionId: string): Promise<OrchestrationEvent[]>;
}

/** The memory documents and tool results of sessions, for a sandbox. */
export interface SandboxMemoProvider<R extends string = SessionRef> {
  readMemoryDocument(tenantId: string, ownerId: string, scope: MemoScope, name: string): Promise<string | null>;
  writeMemoryDocument(
    tenantId: string,
    ownerId: string,
    scope: MemoScope,
    name: string,
    content: string,
  ): Promise<void>;
  listToolResultArtifactIds(sessionRef: R): Promise<string[]>;
  readToolResultArtifact(sessionRef: R, toolCallId: string): Promise<string | null>;
  writeToolResultArtifact(sessionRef: R, toolCallId: string, content: string): Promise<void>;
}

/** Brings a change that the host made into running sandboxes. A manager of sandboxes implements it, and so does `MemoMirror`. */
export interface MemoMirrorRefresher {
  /** Refreshes one file of a session's sandbox, such as `/workspace/memo/session/NOTES.md`. Does nothing without a sandbox. */
  refreshMemoMirror(sessionId: string, containerPath: string, content: string): Promise<void>;
  /** Refreshes a user's document in all running sandboxes of the user. */
  refreshUserMemoMirrorForAllSessions(tenantId: string, userId: string, name: string, content: string): Promise<void>;
}
