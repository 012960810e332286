// The data of an agent host, as its contracts pass it. Messages, envelopes and events may have further fields; they are kept.

import type { SessionRef } from "./ids.js";

/** The cost of a turn, in the host's currency. */
export interface Cost {
  input: number;
  output: number;
  cacheRead: number;
  cacheWrite: number;
  total: number;
}

/** The tokens and cost of a turn. */
export interface Usage {
  inputTokens: number;
  outputTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  totalTokens: number;
  cost: Cost;
}

export interface TextBlock {
  type: "text";
  text: string;
}

export interface ImageBlock {
  type: "image";
  data: string;
  mimeType: string;
}

export interface ThinkingBlock {
  type: "thinking";
  thinking: string;
}

export interface ToolCallBlock {
  type: "toolCall";
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

export interface UserMessage {
  role: "user";
  content: string | (TextBlock | ImageBlock)[];
  /** When it was made, in milliseconds since 1970. */
  timestamp: number;
}

export interface AssistantMessage {
  role: "assistant";
  content: (TextBlock | ThinkingBlock | ToolCallBlock)[];
  provider: string;
  modelId: string;
  usage: Usage;
  stopReason: "stop" | "length" | "toolUse" | "error" | "aborted";
  errorMessage?: string;
  timestamp: number;
}

export interface ToolResultMessage {
  role: "toolResult";
  toolCallId: string;
  toolName: string;
  content: (TextBlock | ImageBlock)[];
  details?: unknown;
  isError: boolean;
  timestamp: number;
}

/** One message of a conversation. Hosts with other kinds of blocks name their own type, see `TreeholdSessionStore`. */
export type Message = UserMessage | AssistantMessage | ToolResultMessage;

/** One line of a list of sessions. */
export interface SessionMeta {
  sessionId: string;
  /** When it was last appended to, in milliseconds since 1970. */
  updatedAt: number;
}

/** The description of a session. */
export interface SessionInfo extends SessionMeta {
  tenantId: string;
  userId: string;
  agentId: string;
  title: string | null;
  /** When it was created, in milliseconds since 1970. */
  createdAt: number;
}

/** How full the model's context was at the last turn. */
export interface SessionContextUsage {
  /** All tokens of the last prompt, including those read from or written to a cache. */
  inputTokens: number;
  outputTokens: number;
  /** The share of 200,000 tokens, in percent. */
  budgetUsedPct: number;
}

/** A turn as the session's events record it. */
export interface SessionTurn {
  /** From 0, without gaps. */
  turnIndex: number;
  inputTokens: number;
  outputTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  updatedAt: number;
}

/** The owner of a memory document. */
export type MemoScope = "session" | "user";

/** The names of memory documents: `NOTES.md` and `TODO.md` of a session, `USER.md` of a user. */
export type MemoName = "NOTES.md" | "TODO.md" | "USER.md";

/** A memory document as a prompt lists it. */
export interface MemoryIndexEntry {
  name: string;
  /** Its path in a sandbox. */
  path: string;
  exists: boolean;
  sizeTokensApprox: number;
  updatedAt: number | null;
  /** From a comment `<!-- summary: … -->` in its first 512 characters. */
  summary: string | null;
}

/** The tasks of a session, as tools read and write them. */
export interface TodoStorage {
  read(): Promise<string | null>;
  write(content: string): Promise<void>;
}

/** The log of a skill that ran as a separate agent. */
export interface SkillLog {
  skillName: string;
  task: string;
  input: string;
  systemPrompt: string;
  messages: unknown[];
  resultText: string;
  startedAt: number;
  finishedAt: number;
}

/** An envelope of a trace. `sequence` starts again with each request of a host; the order of a trace is that of its log. */
export interface TraceEnvelope {
  id: string;
  timestamp: string;
  sequence: number;
  source: "runtime" | "orchestration" | "host";
  event: Record<string, unknown>;
}

export type RunStatus = "running" | "completed" | "failed";
export type AgentStatus = "idle" | "running" | "waiting" | "closing" | "closed";
export type WaitStatus = "pending" | "resolved";
export type WaitMatch = "any" | "all";
export type JobOutcome = "completed" | "failed" | "cancelled" | "timed_out";

/** The work of an agent on some inputs. */
export interface AgentJob {
  jobId: string;
  inputIds: string[];
  outcome: JobOutcome;
  outputText?: string;
  error?: string;
  // biome-ignore lint/suspicious/noExplicitAny: hosts have different records of tool calls.
  toolCalls?: any[];
  completedAt: string;
}

export interface OrchestrationTask {
  id: string;
  runId: string;
  kind: string;
  input: Record<string, unknown>;
  createdAt: string;
}

export interface OrchestrationRun {
  id: string;
  status: RunStatus;
  initialTaskId: string;
  createdAt: string;
  updatedAt: string;
  completedAt?: string;
}

export interface OrchestrationAgent {
  id: string;
  runId: string;
  taskId: string;
  displayName?: string;
  role: string;
  status: AgentStatus;
  createdAt: string;
  updatedAt: string;
  closedAt?: string;
  lastJob?: AgentJob;
}

export interface WaitCondition {
  id: string;
  runId: string;
  agentId: string;
  agentIds?: string[];
  kind: string;
  description: string;
  match?: WaitMatch;
  status: WaitStatus;
  registeredAt: string;
  timeoutAt?: string;
  resolvedAt?: string;
  resolution?: Record<string, unknown>;
}

/** A queued input of an agent. */
export interface AgentInputEnvelope {
  id: string;
  agentId: string;
  payload: Record<string, unknown>;
  queuedAt: string;
}

/** The state of an orchestration up to an event. */
export interface OrchestrationSnapshot {
  runs: Record<string, OrchestrationRun>;
  tasks: Record<string, OrchestrationTask>;
  agents: Record<string, OrchestrationAgent>;
  waits: Record<string, WaitCondition>;
  queuedInputs: AgentInputEnvelope[];
  lastEventId?: string;
}

/** A recovered orchestration: the last checkpoint and the events after it. */
export interface RecoveredOrchestrationState {
  snapshot: OrchestrationSnapshot;
  /** The unfinished waits; empty once every run has ended. */
  pendingWaits: WaitCondition[];
  /** The agents that are not closed; empty once every run has ended. */
  activeAgents: OrchestrationAgent[];
}

interface EventBase {
  eventId: string;
  occurredAt: string;
  runId: string;
}

/** An event of an orchestration. */
export type OrchestrationEvent =
  | (EventBase & { type: "run_started"; initialTask: { id: string; kind: string; input: Record<string, unknown> } })
  | (EventBase & { type: "agent_spawned"; agent: AgentSpawn })
  | (EventBase & {
      type: "agent_input_queued";
      input: { id: string; agentId: string; payload: Record<string, unknown> };
    })
  | (EventBase & {
      type: "agent_input_removed";
      inputId: string;
      agentId: string;
      reason: "delivered" | "agent_closed";
    })
  | (EventBase & { type: "agent_status_changed"; agentId: string; status: AgentStatus })
  | (EventBase & { type: "agent_job_started"; agentId: string; jobId: string; inputIds: string[] })
  | (EventBase & { type: "agent_job_completed"; agentId: string; job: Omit<AgentJob, "completedAt"> })
  | (EventBase & { type: "agent_job_failed"; agentId: string; job: Omit<AgentJob, "completedAt"> })
  | (EventBase & { type: "wait_registered"; wait: WaitRegistration })
  | (EventBase & { type: "wait_resolved"; waitId: string; resolution?: Record<string, unknown> })
  | (EventBase & { type: "agent_closed"; close: { id: string; agentId: string; reason?: string } })
  | (EventBase & { type: "run_completed"; status: "completed" | "failed"; error?: string });

/** The definition of an agent. */
export interface AgentSpawn {
  id: string;
  runId: string;
  taskId?: string;
  displayName?: string;
  role: string;
  chainId?: string;
  depth?: number;
}

/** A wait as it is registered. */
export interface WaitRegistration {
  id: string;
  agentId: string;
  agentIds?: string[];
  kind: string;
  description: string;
  match?: WaitMatch;
  timeoutAt?: string;
}

/** An event of an agent's mailbox. */
export type MailboxEvent =
  | {
      eventId: string;
      type: "input_enqueued";
      agentId: string;
      occurredAt: string;
      inputId: string;
      payload: Record<string, unknown>;
    }
  | { eventId: string; type: "agent_close_requested"; agentId: string; occurredAt: string; reason?: string };

/** How far a mailbox was processed. */
export interface MailboxState {
  processedEventCount: number;
  closeRequested: { reason?: string; occurredAt: string } | null;
}

/** A session as an inspector lists it. */
export interface InspectorSessionItem {
  tenantId: string;
  sessionId: string;
  userId?: string;
  /** When it was last appended to, as an ISO 8601 text. */
  lastActive?: string;
  turns?: number;
  /** The tokens of all prompts and answers. */
  tokens?: number;
  /** `error` if the trace has an error. */
  status?: "idle" | "error";
}

/** A session that was found or created. */
export interface SessionHandle<R extends string = SessionRef> {
  sessionId: string;
  sessionRef: R;
}

/** Which window to compact, and how much of it. */
export interface CompactOptions<M = Message> {
  /** The estimate at which a window is compacted. Default 80,000 tokens. */
  triggerTokens?: number | undefined;
  /** The share of the messages to compact, from 0 to 1. Default 0.5. */
  compactFraction?: number | undefined;
  /** Not used: the server plans from the stored window, so that messages of other writers are never lost. */
  preloadedMessages?: M[] | undefined;
  /** A listing of the sandbox's files, to be included in the summary. */
  workspaceSnapshot?: string | undefined;
}
