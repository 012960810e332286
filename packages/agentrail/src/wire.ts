// Generated from the server's /openapi.json by scripts/wire.mjs; do not edit.

export interface paths {
    "/v1/inspector/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the sessions that the caller may use */
        get: operations["inspectSessions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the sessions of a user, newest first */
        get: operations["listSessions"];
        put?: never;
        /** Finds or creates a session */
        post: operations["openSession"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Describes a session */
        get: operations["getSession"];
        put?: never;
        post?: never;
        /** Removes a session with everything in it */
        delete: operations["deleteSession"];
        options?: never;
        head?: never;
        /** Sets or removes the title of a session */
        patch: operations["changeSession"];
        trace?: never;
    };
    "/v1/sessions/{session}/compaction": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Returns the messages to summarise, if it is time */
        get: operations["planCompaction"];
        put?: never;
        /** Replaces messages of the window with a summary */
        post: operations["applyCompaction"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Streams changes of a session as server-sent events */
        get: operations["followSession"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Returns a session as files */
        get: operations["exportSession"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/import": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Creates a session from files */
        post: operations["importSession"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/memo/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads a memory document of a session */
        get: operations["readMemo"];
        /** Writes a memory document of a session */
        put: operations["writeMemo"];
        /** Appends to a memory document of a session */
        post: operations["appendMemo"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/memory-index": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Describes the memory documents */
        get: operations["getMemoryIndex"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads messages of a session */
        get: operations["listMessages"];
        put?: never;
        /** Appends messages, with or without a turn */
        post: operations["appendMessages"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/checkpoint": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the checkpoint of an orchestration */
        get: operations["getOrchestrationCheckpoint"];
        /** Replaces the checkpoint of an orchestration */
        put: operations["putOrchestrationCheckpoint"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/claim": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Renews the lease of a claim */
        put: operations["renewOrchestrationClaim"];
        /** Claims an orchestration for a manager */
        post: operations["claimOrchestration"];
        /** Ends the lease of a claim */
        delete: operations["releaseOrchestrationClaim"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/commit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Writes events, checkpoint and mailboxes, all or none */
        post: operations["commitOrchestration"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the events of an orchestration */
        get: operations["listOrchestrationEvents"];
        put?: never;
        /** Appends an event of an orchestration */
        post: operations["appendOrchestrationEvent"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/histories/{agent}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the history of an agent */
        get: operations["getAgentHistory"];
        /** Replaces the history of an agent */
        put: operations["putAgentHistory"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/mailboxes/{agent}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the events of a mailbox */
        get: operations["listMailboxEvents"];
        put?: never;
        /** Appends an event to a mailbox */
        post: operations["appendMailboxEvent"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/mailboxes/{agent}/state": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the state of a mailbox */
        get: operations["getMailboxState"];
        /** Replaces the state of a mailbox */
        put: operations["putMailboxState"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/orchestration/state": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Recovers the state of an orchestration */
        get: operations["recoverOrchestration"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/skill-logs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Stores the log of a skill */
        post: operations["storeSkillLog"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/tool-results": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the tool calls whose full results are kept */
        get: operations["listToolResults"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/tool-results/{tool_call}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the full result of a tool call */
        get: operations["readToolResult"];
        /** Keeps the full result of a tool call */
        put: operations["writeToolResult"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/trace": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads the trace of a session */
        get: operations["readTrace"];
        put?: never;
        /** Appends an envelope to the trace */
        post: operations["appendTrace"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sessions/{session}/turns": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Lists the turns of a session, oldest first */
        get: operations["listTurns"];
        put?: never;
        /** Records a turn */
        post: operations["recordTurn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/user-memo/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Reads a memory document of a user */
        get: operations["readUserMemo"];
        /** Writes a memory document of a user */
        put: operations["writeUserMemo"];
        /** Appends to a memory document of a user */
        post: operations["appendUserMemo"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description Sessions that the caller may see. */
        InspectedSessions: {
            /** @description The cursor of the next page; absent on the last page. */
            cursor?: string | null;
            /** @description The sessions: those of one user newest first, those of several users by tenant and id. */
            sessions: components["schemas"]["InspectedSession"][];
        };
        /** @description One session as an inspector lists it. */
        InspectedSession: {
            /** @description When it was last appended to, as an ISO 8601 text. */
            lastActive?: string | null;
            /** @description The session. */
            sessionId: string;
            /** @description Whether its trace has an error. */
            status: components["schemas"]["InspectedStatus"];
            /** @description The tenant. */
            tenantId: string;
            /**
             * Format: uint64
             * @description The tokens of all prompts and answers.
             */
            tokens?: number | null;
            /**
             * Format: uint64
             * @description How many turns it has.
             */
            turns?: number | null;
            /** @description The user. */
            userId?: string | null;
        };
        /**
         * @description The state of a session as an inspector shows it.
         *
         *     `idle`: The trace has no error.
         *
         *     `error`: The trace has an error.
         * @enum {string}
         */
        InspectedStatus: "idle" | "error";
        /** @description Sessions of a user. */
        SessionsReply: {
            /** @description The cursor of the next page; absent on the last page. */
            cursor?: string | null;
            /** @description The sessions, newest first. */
            sessions: components["schemas"]["SessionMeta"][];
        };
        /** @description One line of a list of sessions. */
        SessionMeta: {
            /** @description The session. */
            sessionId: string;
            /**
             * Format: int64
             * @description When it was last appended to, in milliseconds since 1970.
             */
            updatedAt: number;
        };
        /** @description The session to find or create. */
        OpenSession: {
            /** @description The agent that the user talks to. An existing session keeps its own. */
            agent_id: string;
            /**
             * @description The id. A new random one if absent.
             * @default null
             */
            session_id?: string | null;
        };
        /** @description A session that was found or created. */
        OpenedSession: {
            /** @description The id. */
            sessionId: string;
            /** @description The session with its tenant, as one opaque text. */
            sessionRef: string;
        };
        /** @description A session with its last turn and its version. */
        SessionDescription: {
            /** @description The agent that the user talks to. */
            agentId: string;
            /**
             * Format: int64
             * @description When it was created, in milliseconds since 1970.
             */
            createdAt: number;
            /** @description How full the model's context was at the last turn; `None` before the first turn. */
            lastContextUsage: components["schemas"]["SessionContextUsage"] | null;
            /** @description The session. */
            sessionId: string;
            /** @description The tenant that it belongs to. */
            tenantId: string;
            /** @description The title, if set. */
            title: string | null;
            /**
             * Format: int64
             * @description When it was last appended to, in milliseconds since 1970.
             */
            updatedAt: number;
            /** @description The user that it belongs to. */
            userId: string;
        };
        /** @description How full the model's context was at the last turn. */
        SessionContextUsage: {
            /**
             * Format: uint64
             * @description The sum of both as a share of `CONTEXT_TOKENS`, in percent, rounded.
             */
            budgetUsedPct: number;
            /**
             * Format: uint64
             * @description All tokens of the last prompt, including those read from or written to a cache.
             */
            inputTokens: number;
            /**
             * Format: uint64
             * @description Tokens of the last answer.
             */
            outputTokens: number;
        };
        /** @description What to change about a session. */
        ChangeSession: {
            /** @description The new title; `null` removes it. */
            title?: string | null;
        };
        /** @description What is to be compacted. */
        CompactionReply: {
            /** @description The plan; `null` if there is nothing to do. */
            plan: components["schemas"]["CompactionPlan"] | null;
        };
        /** @description The messages to summarise. */
        CompactionPlan: {
            /**
             * Format: uint64
             * @description How many messages to summarise.
             */
            count: number;
            /** @description The messages: the summary at the beginning of the window, if it has one, and those after it. */
            messages: components["schemas"]["Message"][];
            /**
             * Format: uint64
             * @description The estimate of the messages in tokens.
             */
            tokens: number;
            /** @description The window. */
            window: components["schemas"]["SessionWindow"];
        };
        /** @description one message of a conversation; further fields are kept */
        Message: {
            /** @description a text, or a list of blocks */
            content: string | {
                /** @description such as `text`, `image`, `thinking` and `toolCall` */
                type: string;
            }[];
            /**
             * @description its author
             * @enum {string}
             */
            role: "user" | "assistant" | "toolResult";
            /** @description when it was made, in milliseconds since 1970 */
            timestamp?: number | null;
            /** @description the call that a `toolResult` answers */
            toolCallId?: string | null;
        };
        /** @description The window of a session: the summary of an archive, then the messages from a position on. */
        SessionWindow: {
            /**
             * @description The archive whose summary is the first message; `None` before the first compaction.
             * @default null
             */
            archive: string | null;
            /**
             * Format: uint64
             * @description The position that the next message gets.
             */
            end: number;
            /**
             * Format: uint64
             * @description The position of the first message after the summary.
             */
            from: number;
            /** @description An id of the session's log. A session that is created again after its deletion has another one. */
            log: string;
            /**
             * Format: uint64
             * @description The estimate of the window in tokens.
             */
            tokens: number;
        };
        /** @description A summary that replaces the first messages of a window. */
        ApplyCompaction: {
            /**
             * Format: uint64
             * @description How many messages the summary replaces: `count` of the plan.
             */
            count: number;
            /** @description The summary, of at most 256 KiB. */
            summary: string;
            /** @description The window of the plan. */
            window: components["schemas"]["SessionWindow"];
            /**
             * @description A listing of the sandbox's files to add to the summary, of at most 256 KiB.
             * @default null
             */
            workspace_snapshot?: string | null;
        };
        /** @description A compaction that was made. */
        CompactionDone: {
            /** @description The archive of the messages, such as `0001`. */
            archive_id: string;
            /**
             * Format: uint64
             * @description How many messages the summary replaces.
             */
            messages: number;
            /**
             * Format: uint64
             * @description The estimate of the window after, in tokens.
             */
            tokens_after: number;
            /**
             * Format: uint64
             * @description The estimate of the window before, in tokens.
             */
            tokens_before: number;
        };
        /** @description Something that changed in a session. */
        SessionChange: {
            /**
             * Format: uint64
             * @description The position after the last one.
             */
            end: number;
            /**
             * Format: uint64
             * @description The position of the first one.
             */
            from: number;
            /** @constant */
            kind: "messages";
        } | {
            /**
             * Format: uint64
             * @description The index after the last one.
             */
            end: number;
            /**
             * Format: uint64
             * @description The index of the first one.
             */
            from: number;
            /** @constant */
            kind: "turns";
        } | {
            /** @description The newest archive, such as `0001`. */
            archive_id: string;
            /** @constant */
            kind: "compaction";
        } | {
            /** @constant */
            kind: "description";
        } | {
            /** @description The position after which they stand. */
            after: components["schemas"]["Version"];
            /** @constant */
            kind: "trace";
        } | {
            /** @description The position after which they stand. */
            after: components["schemas"]["Version"];
            /** @constant */
            kind: "orchestration";
        } | {
            /** @constant */
            kind: "memo";
            /** @description Its name. */
            name: string;
        } | {
            /** @constant */
            kind: "tool_results";
        } | {
            /** @constant */
            kind: "deleted";
        };
        /** @description what a conditional change compares */
        Version: string;
        /** @description The files of a session. */
        SessionFilesRecord: {
            /** @description Contents by path beneath the directory of the session. */
            files: {
                [key: string]: string;
            };
        };
        /** @description What an import read, and what it could not read. */
        ImportReport: {
            /** @description The lines and files that it could not read. */
            damaged: components["schemas"]["DamagedLine"][];
            /**
             * Format: uint64
             * @description How many events, envelopes and events of mailboxes it read.
             */
            events: number;
            /**
             * Format: uint64
             * @description How many messages it read, including those of archives.
             */
            messages: number;
        };
        /** @description A line, or a file, that could not be read. */
        DamagedLine: {
            /** @description The file beneath the directory of the session. */
            file: string;
            /**
             * Format: uint
             * @description The line, from 1; `None` for the whole file.
             */
            line: number | null;
            /** @description The error. */
            reason: string;
        };
        /** @description The memory documents of a session and its user. */
        MemoryIndex: {
            /** @description The documents, whether or not they exist. */
            documents: components["schemas"]["MemoryIndexEntry"][];
        };
        /** @description A memory document as a prompt lists it. */
        MemoryIndexEntry: {
            /** @description Whether it exists. */
            exists: boolean;
            /** @description Its name. */
            name: string;
            /** @description Its path in a sandbox. */
            path: string;
            /**
             * Format: uint64
             * @description The estimate of its tokens, by its size.
             */
            sizeTokensApprox: number;
            /** @description The summary that the document states. */
            summary: string | null;
            /**
             * Format: int64
             * @description When it was last written, in milliseconds since 1970.
             */
            updatedAt: number | null;
        };
        /** @description Messages of a session. */
        MessagesReply: {
            /** @description The messages, oldest first. */
            messages: components["schemas"]["Message"][];
            /**
             * Format: uint64
             * @description The `from` of the next page of the log; absent on the last page.
             */
            next?: number | null;
            /** @description The window of the session. */
            window: components["schemas"]["SessionWindow"];
        };
        /** @description Messages to append, all or none. */
        AppendMessages: {
            /** @description The messages, in order. */
            messages: components["schemas"]["Message"][];
            /**
             * @description A turn to record in the same commit.
             * @default null
             */
            usage?: components["schemas"]["TurnUsage"] | null;
        };
        /** @description The tokens and costs of one turn. */
        TurnUsage: {
            /**
             * Format: uint64
             * @description Tokens of the prompt that came from a cache.
             * @default 0
             */
            cacheReadTokens?: number;
            /**
             * Format: uint64
             * @description Tokens that were written to a cache.
             * @default 0
             */
            cacheWriteTokens?: number;
            /**
             * @description The cost of the turn.
             * @default {
             *       "cacheRead": 0,
             *       "cacheWrite": 0,
             *       "input": 0,
             *       "output": 0,
             *       "total": 0
             *     }
             */
            cost?: components["schemas"]["Cost"];
            /**
             * Format: uint64
             * @description Tokens of the prompt that did not come from a cache.
             * @default 0
             */
            inputTokens?: number;
            /**
             * Format: uint64
             * @description Tokens of the answer.
             * @default 0
             */
            outputTokens?: number;
            /**
             * Format: uint64
             * @description All tokens, as the host counts them.
             * @default 0
             */
            totalTokens?: number;
        };
        /** @description The cost of a turn, in the host's currency. */
        Cost: {
            /**
             * Format: double
             * @description The cost of reads from a cache.
             * @default 0
             */
            cacheRead?: number;
            /**
             * Format: double
             * @description The cost of writes to a cache.
             * @default 0
             */
            cacheWrite?: number;
            /**
             * Format: double
             * @description The cost of the prompt.
             * @default 0
             */
            input?: number;
            /**
             * Format: double
             * @description The cost of the answer.
             * @default 0
             */
            output?: number;
            /**
             * Format: double
             * @description The sum.
             * @default 0
             */
            total?: number;
        };
        /** @description What an append did. */
        AppendReply: {
            /** @description The positions of the messages in the session's log. */
            positions: components["schemas"]["Range_of_uint64"];
            /**
             * Format: uint64
             * @description The index of the recorded turn, from 0; absent without a turn.
             */
            turn_index?: number | null;
        };
        Range_of_uint64: {
            /** Format: uint64 */
            end: number;
            /** Format: uint64 */
            start: number;
        };
        /** @description The checkpoint of an orchestration. */
        CheckpointReply: {
            /** @description The checkpoint; `null` before the first. */
            snapshot: components["schemas"]["OrchestrationSnapshot"] | null;
        };
        /** @description the state of an orchestration up to an event */
        OrchestrationSnapshot: {
            /** @description the agents by id */
            agents?: Record<string, never>;
            /** @description the last event that the state includes */
            lastEventId?: string | null;
            /** @description the queued inputs, in order */
            queuedInputs?: Record<string, never>[];
            /** @description the runs by id */
            runs?: Record<string, never>;
            /** @description the tasks by id */
            tasks?: Record<string, never>;
            /** @description the waits by id */
            waits?: Record<string, never>;
        };
        /** @description A checkpoint to write. */
        WriteCheckpoint: {
            /** @description The checkpoint. */
            snapshot: components["schemas"]["OrchestrationSnapshot"];
        };
        /** @description A claim on an orchestration. */
        ClaimRequest: {
            /** @description The name of the manager: 1 to 255 bytes without control characters. A manager with the same name can claim again. */
            holder: string;
            /**
             * Format: uint64
             * @description How long nobody else can claim it, in seconds: 1 to 3,600. Default 30.
             * @default 30
             */
            lease_seconds?: number;
        };
        /** @description A claim that holds. */
        ClaimReply: {
            /** @description The claim: the value of the header `Treehold-Claim` of the writes that depend on it. */
            claim: components["schemas"]["Version"];
        };
        /** @description Rows of an orchestration to write in one commit. */
        CommitRequest: {
            /**
             * @description The state that includes them.
             * @default null
             */
            checkpoint?: components["schemas"]["OrchestrationSnapshot"] | null;
            /**
             * @description Events, in order.
             * @default []
             */
            events?: components["schemas"]["OrchestrationEvent"][];
            /**
             * @description The histories of agents.
             * @default []
             */
            histories?: components["schemas"]["HistoryOf"][];
            /**
             * @description Events of mailboxes.
             * @default []
             */
            mailbox_events?: components["schemas"]["MailboxEventOf"][];
            /**
             * @description The states of mailboxes.
             * @default []
             */
            mailbox_states?: components["schemas"]["MailboxStateOf"][];
        };
        /** @description an event of an orchestration; the fields of its type follow */
        OrchestrationEvent: {
            /** @description the id, unique in the session */
            eventId: string;
            /** @description when it occurred */
            occurredAt: string;
            /** @description the run that it belongs to */
            runId?: string;
            /** @description such as `run_started` or `agent_spawned` */
            type: string;
        };
        /** @description The history of an agent. */
        HistoryOf: {
            /** @description The agent. */
            agent: string;
            /** @description Its messages. */
            messages: unknown[];
        };
        /** @description An event of an agent's mailbox. */
        MailboxEventOf: {
            /** @description The agent. */
            agent: string;
            /** @description The event. */
            event: components["schemas"]["MailboxEvent"];
        };
        /** @description an event of a mailbox; the fields of its type follow */
        MailboxEvent: {
            /** @description the agent */
            agentId: string;
            /** @description the id */
            eventId: string;
            /** @description when it occurred */
            occurredAt: string;
            /** @description `input_enqueued` or `agent_close_requested` */
            type: string;
        };
        /** @description The state of an agent's mailbox. */
        MailboxStateOf: {
            /** @description The agent. */
            agent: string;
            /** @description The state. */
            state: components["schemas"]["MailboxState"];
        };
        /** @description how much of a mailbox was processed */
        MailboxState: {
            /** @description the request to close the agent */
            closeRequested?: Record<string, never> | null;
            /** @description how many events were processed */
            processedEventCount?: number;
        };
        /** @description A page of events. */
        OrchestrationEventPage: {
            /** @description The events in order. */
            entries: components["schemas"]["OrchestrationEventEntry"][];
            /** @description Whether more follow. */
            more: boolean;
        };
        /** @description An event with its position. */
        OrchestrationEventEntry: {
            /** @description The event. */
            event: components["schemas"]["OrchestrationEvent"];
            /** @description Its position: positions rise, and are never used twice. */
            position: components["schemas"]["Version"];
        };
        /** @description An event of an orchestration to append. */
        AppendEvent: {
            /** @description The event. */
            event: components["schemas"]["OrchestrationEvent"];
        };
        /** @description The history of an agent. */
        HistoryRecord: {
            /** @description Its messages. */
            messages: unknown[];
        };
        /** @description A page of events. */
        MailboxEventPage: {
            /** @description The events in order. */
            entries: components["schemas"]["MailboxEventEntry"][];
            /** @description Whether more follow. */
            more: boolean;
        };
        /** @description An event with its position. */
        MailboxEventEntry: {
            /** @description The event. */
            event: components["schemas"]["MailboxEvent"];
            /** @description Its position: positions rise, and are never used twice. */
            position: components["schemas"]["Version"];
        };
        /** @description An event of a mailbox to append. */
        AppendMail: {
            /** @description The event. */
            event: components["schemas"]["MailboxEvent"];
        };
        /** @description The state of a mailbox. */
        MailboxStateRecord: {
            /** @description The state. */
            state: components["schemas"]["MailboxState"];
        };
        /** @description a recovered orchestration */
        RecoveredOrchestration: {
            /** @description the agents that are not closed */
            activeAgents: Record<string, never>[];
            /** @description the unfinished waits */
            pendingWaits: Record<string, never>[];
            snapshot: components["schemas"]["OrchestrationSnapshot"];
        };
        /** @description The log of a skill that ran as a separate agent. */
        SkillLog: {
            /**
             * Format: int64
             * @description When it ended, in milliseconds since 1970.
             */
            finishedAt: number;
            /** @description Its input. */
            input: string;
            /** @description Its messages. */
            messages: unknown[];
            /** @description Its answer. */
            resultText: string;
            /** @description The name of the skill. */
            skillName: string;
            /**
             * Format: int64
             * @description When it began, in milliseconds since 1970.
             */
            startedAt: number;
            /** @description Its system prompt. */
            systemPrompt: string;
            /** @description Its task. */
            task: string;
        };
        /** @description A log of a skill that was stored. */
        SkillLogReply: {
            /** @description Its name. */
            name: string;
        };
        /** @description The tool calls whose full results are kept. */
        ToolResultsReply: {
            /** @description The cursor of the next page; absent on the last page. */
            cursor?: string | null;
            /** @description The ids of the calls. */
            ids: string[];
        };
        /** @description A page of a trace. */
        TracePage: {
            /** @description The envelopes in order. */
            entries: components["schemas"]["TraceEntry"][];
            /** @description Whether more follow. */
            more: boolean;
        };
        /** @description An envelope with its position. */
        TraceEntry: {
            /** @description The envelope. */
            envelope: components["schemas"]["EnvelopeFields"];
            /** @description Its position: positions rise, and are never used twice. */
            position: components["schemas"]["Version"];
        };
        /** @description The fields of an envelope that the store reads. */
        EnvelopeFields: {
            /** @description The event. */
            event: components["schemas"]["TraceEventFields"];
            /** @description The id: the source, a time and a number. */
            id: string;
            /**
             * Format: double
             * @description The number that its source gave it.
             */
            sequence: number;
            /** @description Its source: `runtime`, `orchestration` or `host`. */
            source: string;
            /** @description When it was created, as an ISO 8601 text. */
            timestamp: string;
        };
        /** @description The fields of an envelope's event that the store reads. */
        TraceEventFields: {
            /** @description The kind of event. */
            type: string;
        };
        /** @description An envelope to append. */
        AppendEnvelope: {
            /** @description The envelope. */
            envelope: components["schemas"]["EnvelopeFields"];
        };
        /** @description An envelope that was appended. */
        AppendedEnvelope: {
            /** @description Its position; `null` for a kind of event that is never stored, such as the parts of an answer while a model writes it. */
            position: components["schemas"]["Version"] | null;
        };
        /** @description Turns of a session. */
        TurnsReply: {
            /**
             * Format: uint64
             * @description The cursor of the next page; absent on the last page.
             */
            cursor?: number | null;
            /** @description The turns as they were recorded, oldest first. */
            turns: unknown[];
        };
        /** @description A turn to record. */
        RecordTurn: {
            /** @description Its usage. */
            usage: components["schemas"]["TurnUsage"];
        };
        /** @description A recorded turn. */
        TurnReply: {
            /**
             * Format: uint64
             * @description Its index, from 0.
             */
            turn_index: number;
        };
        /** @description An error of the tree or of the request. */
        Problem: {
            /**
             * Format: uint
             * @description How many changes before it took effect nevertheless.
             */
            applied?: number | null;
            /**
             * Format: uint
             * @description Which change of a batch failed, from 0.
             */
            change?: number | null;
            /** @description The stable wire name of the kind. */
            code: string;
            /** @description The current version of a `conflict`. */
            current_version?: components["schemas"]["Version"] | null;
            /** @description What went wrong and what to do about it. */
            detail: string;
            /** @description The state of the request's idempotency key, if the request was rejected because of it. */
            idempotency_key?: components["schemas"]["KeyRecord"] | null;
            /** @description The lines, from 1, of an `ambiguous` error. */
            lines?: number[];
            /**
             * @description Whether the failed change may have taken effect anyway.
             * @default false
             */
            may_have_effect: boolean;
            /** @description What went wrong and what to do. */
            message: string;
            /** @description The operation that failed. */
            operation?: components["schemas"]["OpKind"] | null;
            /** @description The path as the caller wrote it. */
            path?: components["schemas"]["Path"] | null;
            /**
             * Format: uint16
             * @description The HTTP status.
             */
            status: number;
            /** @description A short description of the problem type. */
            title: string;
            /** @description The trace of the request, by which to find it in the server's log: 32 hexadecimal digits. */
            trace_id?: string | null;
            /** @description The problem type as a stable URI: `urn:treehold:error:` followed by the code. */
            type: string;
        };
        /** @description The state of an idempotency key, and how long it lasts. */
        KeyRecord: {
            /**
             * Format: uint64
             * @description The number of seconds until the key can be used again.
             */
            expires_in_seconds: number;
            /** @description The state of the first request with this key. */
            state: components["schemas"]["KeyState"];
        };
        /**
         * @description The state of the first request with an idempotency key.
         *
         *     `running`: It is running.
         *
         *     `done`: It is done, and its response is stored.
         *
         *     `unknown`: Its server died before the response was stored. It may or may not have taken effect.
         * @enum {string}
         */
        KeyState: "running" | "done" | "unknown";
        /**
         * @description The name of an operation, as used by rules, audit rows and errors.
         *
         *     `stat`: Returns the entry of one path.
         *
         *     `read`: Reads content.
         *
         *     `ls`: Lists the children of a directory.
         *
         *     `glob`: Finds paths by pattern.
         *
         *     `grep`: Finds lines by pattern.
         *
         *     `search`: Ranks files by relevance to a query.
         *
         *     `write`: Writes a whole file.
         *
         *     `append`: Appends to a file.
         *
         *     `edit`: Replaces text within a file.
         *
         *     `create_dir`: Creates a directory.
         *
         *     `delete`: Removes a file or directory.
         *
         *     `rename`: Moves a file or directory.
         *
         *     `copy`: Copies a file or directory.
         *
         *     `apply`: Applies several changes as one batch.
         * @enum {string}
         */
        OpKind: "stat" | "read" | "ls" | "glob" | "grep" | "search" | "write" | "append" | "edit" | "create_dir" | "delete" | "rename" | "copy" | "apply";
        /** @description an absolute path */
        Path: string;
    };
    responses: {
        /** @description An error: what went wrong and what to do next */
        Problem: {
            headers: {
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
    };
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    inspectSessions: {
        parameters: {
            query?: {
                /** @description Where the previous page ended: its `cursor`. */
                cursor?: string | null;
                /** @description The most sessions. Default 100. A page may have fewer and still have a `cursor`. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lists the sessions that the caller may use */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["InspectedSessions"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    listSessions: {
        parameters: {
            query?: {
                /** @description Where the previous page ended: its `cursor`. */
                cursor?: string | null;
                /** @description The most sessions. Default 100. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lists the sessions of a user, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionsReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    openSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["OpenSession"];
            };
        };
        responses: {
            /** @description Finds or creates a session */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OpenedSession"];
                };
            };
            /** @description Finds or creates a session */
            201: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OpenedSession"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    getSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description ETag of the known version; the response is 304 if it is unchanged */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Describes a session */
            200: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionDescription"];
                };
            };
            /** @description it is unchanged */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    deleteSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Removes a session with everything in it */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    changeSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description ETag that the target must have */
                "If-Match"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ChangeSession"];
            };
        };
        responses: {
            /** @description Sets or removes the title of a session */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    planCompaction: {
        parameters: {
            query?: {
                /** @description The share of the messages to compact, from 0 to 1. Default 0.5. */
                compact_fraction?: number | null;
                /** @description Whether to compact a window of any size. Default false. */
                force?: boolean;
                /** @description The estimate of the window at which it is compacted. Default 80,000 tokens. */
                trigger_tokens?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Returns the messages to summarise, if it is time */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompactionReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    applyCompaction: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ApplyCompaction"];
            };
        };
        responses: {
            /** @description Replaces messages of the window with a summary */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompactionDone"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    followSession: {
        parameters: {
            query?: {
                /** @description The id of the last event seen, for clients that cannot set the header `Last-Event-ID`. */
                after?: string | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description id of the last event received; the stream continues after it */
                "Last-Event-ID"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description first `open` or `reset`, then one `change` per change, with an event as data */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    exportSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Returns a session as files */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionFilesRecord"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    importSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SessionFilesRecord"];
            };
        };
        responses: {
            /** @description Creates a session from files */
            201: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ImportReport"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    readMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description ETag of the known version; the response is 304 if it is unchanged */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads a memory document of a session */
            200: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description it is unchanged */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    writeMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description ETag that the target must have */
                "If-Match"?: string;
                /** @description `*` creates only, and fails if the target exists */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Writes a memory document of a session */
            204: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    appendMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Appends to a memory document of a session */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    getMemoryIndex: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Describes the memory documents */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MemoryIndex"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    listMessages: {
        parameters: {
            query?: {
                /** @description The messages of this archive, or of the newest with `latest`; `limit` counts from the first. */
                archive?: string | null;
                /** @description The longest tail of the window within so many tokens that separates no tool result from its call. */
                budget_tokens?: number | null;
                /** @description A page of the log from this position on. */
                from?: number | null;
                /** @description Whether to return every message, with each summary replaced by what it summarises. */
                full?: boolean | null;
                /** @description The most messages, from 1 to 1,000, or `all` for the whole window. Default 50. */
                limit?: string | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads messages of a session */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MessagesReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    appendMessages: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AppendMessages"];
            };
        };
        responses: {
            /** @description Appends messages, with or without a turn */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AppendReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    getOrchestrationCheckpoint: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the checkpoint of an orchestration */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CheckpointReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    putOrchestrationCheckpoint: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["WriteCheckpoint"];
            };
        };
        responses: {
            /** @description Replaces the checkpoint of an orchestration */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    renewOrchestrationClaim: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ClaimRequest"];
            };
        };
        responses: {
            /** @description Renews the lease of a claim */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    claimOrchestration: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ClaimRequest"];
            };
        };
        responses: {
            /** @description Claims an orchestration for a manager */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ClaimReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    releaseOrchestrationClaim: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Ends the lease of a claim */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    commitOrchestration: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CommitRequest"];
            };
        };
        responses: {
            /** @description Writes events, checkpoint and mailboxes, all or none */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    listOrchestrationEvents: {
        parameters: {
            query?: {
                /** @description Only entries after this position. */
                after?: components["schemas"]["Version"] | null;
                /** @description The most entries. Default 100. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the events of an orchestration */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OrchestrationEventPage"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    appendOrchestrationEvent: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AppendEvent"];
            };
        };
        responses: {
            /** @description Appends an event of an orchestration */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    getAgentHistory: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the history of an agent */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HistoryRecord"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    putAgentHistory: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["HistoryRecord"];
            };
        };
        responses: {
            /** @description Replaces the history of an agent */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    listMailboxEvents: {
        parameters: {
            query?: {
                /** @description Only entries after this position. */
                after?: components["schemas"]["Version"] | null;
                /** @description The most entries. Default 100. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the events of a mailbox */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MailboxEventPage"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    appendMailboxEvent: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AppendMail"];
            };
        };
        responses: {
            /** @description Appends an event to a mailbox */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    getMailboxState: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the state of a mailbox */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MailboxStateRecord"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    putMailboxState: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description claim that must hold; without it the write does not depend on one */
                "treehold-claim"?: string;
            };
            path: {
                session: string;
                agent: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MailboxStateRecord"];
            };
        };
        responses: {
            /** @description Replaces the state of a mailbox */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    recoverOrchestration: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Recovers the state of an orchestration */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RecoveredOrchestration"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    storeSkillLog: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SkillLog"];
            };
        };
        responses: {
            /** @description Stores the log of a skill */
            201: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SkillLogReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    listToolResults: {
        parameters: {
            query?: {
                /** @description Where the previous page ended: its `cursor`. */
                cursor?: string | null;
                /** @description The most ids. Default 100. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lists the tool calls whose full results are kept */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ToolResultsReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    readToolResult: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description ETag of the known version; the response is 304 if it is unchanged */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
                tool_call: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the full result of a tool call */
            200: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description it is unchanged */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    writeToolResult: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description ETag that the target must have */
                "If-Match"?: string;
                /** @description `*` creates only, and fails if the target exists */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
                tool_call: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Keeps the full result of a tool call */
            204: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    readTrace: {
        parameters: {
            query?: {
                /** @description Only entries after this position. */
                after?: components["schemas"]["Version"] | null;
                /** @description The most entries. Default 100. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads the trace of a session */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TracePage"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    appendTrace: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AppendEnvelope"];
            };
        };
        responses: {
            /** @description Appends an envelope to the trace */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AppendedEnvelope"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    listTurns: {
        parameters: {
            query?: {
                /** @description Where the previous page ended: its `cursor`. */
                cursor?: number | null;
                /** @description The most turns. Default 100. A page may have fewer and still have a `cursor`. */
                limit?: number | null;
            };
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Lists the turns of a session, oldest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TurnsReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    recordTurn: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RecordTurn"];
            };
        };
        responses: {
            /** @description Records a turn */
            200: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TurnReply"];
                };
            };
            default: components["responses"]["Problem"];
        };
    };
    readUserMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description ETag of the known version; the response is 304 if it is unchanged */
                "If-None-Match"?: string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Reads a memory document of a user */
            200: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description it is unchanged */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    writeUserMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
                /** @description ETag that the target must have */
                "If-Match"?: string;
                /** @description `*` creates only, and fails if the target exists */
                "If-None-Match"?: string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Writes a memory document of a user */
            204: {
                headers: {
                    /** @description version of the content */
                    ETag?: string;
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
    appendUserMemo: {
        parameters: {
            query?: never;
            header?: {
                /** @description tenant whose sessions to use; the caller's own by default */
                "treehold-tenant"?: string;
                /** @description user whose sessions to use; the caller's own by default */
                "treehold-user"?: string;
                /** @description makes the change only once, even if the request is repeated with the same key and token within a day */
                "Idempotency-Key"?: string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Appends to a memory document of a user */
            204: {
                headers: {
                    /** @description seconds until the idempotency key expires */
                    "Idempotency-Expires-In"?: string;
                    /** @description `true` if this is the stored response to an earlier request with the idempotency key */
                    "Idempotency-Replayed"?: string;
                    /** @description `done` if the response is stored for the idempotency key */
                    "Idempotency-State"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: components["responses"]["Problem"];
        };
    };
}
