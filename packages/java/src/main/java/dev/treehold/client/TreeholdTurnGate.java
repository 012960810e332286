package dev.treehold.client;

import dev.treehold.client.TreeholdException.Facts;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * The turns of one agent's sessions on a treehold server: across all processes, one call of a session runs at a time, in the order
 * of arrival.
 *
 * <pre>{@code
 * SessionTurnGate gate = TreeholdTurnGate.builder(client).build();
 * try (TurnLease turn = gate.acquire(new TurnKey("ada", "s1"))) {
 *     AgentStateStore mine = states.during(turn);
 *     // … load, run, turn.check() between the steps, save …
 * }
 * }</pre>
 *
 * <p>If the server cannot be reached, no turn is given: a gate of this process alone would let two processes run one session.
 */
public final class TreeholdTurnGate implements SessionTurnGate {
    /** The longest time that one request waits for a turn. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(10);

    /** How long the first request waits. It is short, so that the caller soon has a ticket, which keeps its place if an answer is lost. */
    private static final Duration FIRST_WAIT = Duration.ofMillis(1);

    private static final System.Logger LOG = System.getLogger(TreeholdTurnGate.class.getName());

    private final TreeholdClient client;
    private final String agent;
    private final String owner;
    private final Duration waitMax;
    private final Duration renewEvery;

    private TreeholdTurnGate(Builder builder) {
        client = builder.client;
        agent = builder.agent;
        owner = builder.owner;
        waitMax = builder.waitMax;
        renewEvery = builder.renewEvery;
    }

    /**
     * Begins a gate.
     *
     * @param client the connection, which the caller closes
     * @return its options
     */
    public static Builder builder(TreeholdClient client) {
        return new Builder(client);
    }

    @Override
    public TurnLease acquire(TurnKey key) throws InterruptedException, TurnBusyException {
        return acquire(key, waitMax);
    }

    /**
     * Takes the turn of a session within a time.
     *
     * @param key the session
     * @param wait how long to wait for earlier calls, at most a day; zero takes the turn only if it is free
     * @return the turn
     * @throws InterruptedException if the thread is interrupted while it waits
     * @throws TurnBusyException if the turn did not come within the time
     */
    public TurnLease acquire(TurnKey key, Duration wait) throws InterruptedException, TurnBusyException {
        return acquire(key, wait, ticket -> { });
    }

    /** Takes the turn, and passes the ticket on once the caller has its place in the queue. */
    TurnLease acquire(TurnKey key, Duration wait, Consumer<String> queued) throws InterruptedException, TurnBusyException {
        Objects.requireNonNull(key, "key");
        long end = System.nanoTime() + checkedWait("wait", wait).toNanos();
        String ticket = null;
        try {
            while (true) {
                Duration left = Duration.ofNanos(Math.max(0, end - System.nanoTime()));
                Duration bound = ticket == null ? FIRST_WAIT : WAIT_MAX;
                Duration step = left.compareTo(bound) < 0 ? left : bound;
                Answer answer = ask(key, step, ticket);
                Json.Obj fields = answer.object();
                if (answer.status() != 202) {
                    Lease lease = new Lease(key, answer.string(fields, "token"), answer.number(fields, "fence", 0));
                    ticket = null;
                    lease.renewInBackground();
                    return lease;
                }
                boolean isFirst = ticket == null;
                ticket = answer.string(fields, "ticket");
                if (isFirst) {
                    queued.accept(ticket);
                }
                if (step.equals(left)) {
                    throw new TurnBusyException(key);
                }
            }
        } catch (TreeholdException.Unavailable busy) {
            if (busy.status().orElse(0) == 409) {
                throw (TurnBusyException) new TurnBusyException(key).initCause(busy);
            }
            throw busy;
        } catch (TreeholdException.Interrupted interrupted) {
            Thread.interrupted();
            throw (InterruptedException) new InterruptedException("interrupted while waiting for a turn").initCause(interrupted);
        } finally {
            if (ticket != null) {
                leave(key, ticket);
            }
        }
    }

    private static Duration checkedWait(String what, Duration wait) {
        if (wait.isNegative() || wait.compareTo(Duration.ofDays(1)) > 0) {
            throw new IllegalArgumentException("`" + what + "` is " + wait + "; it is between 0 and a day");
        }
        return wait;
    }

    private Answer ask(TurnKey key, Duration wait, String ticket) {
        Map<String, Json> fields = fields(key);
        fields.put("wait_ms", Json.of(wait.toMillis()));
        fields.put("owner", Json.of(owner));
        if (ticket != null) {
            fields.put("ticket", Json.of(ticket));
        }
        Duration attempt = wait.plus(client.attemptTimeout());
        Call call = Call.change("POST", "/v1/turns:acquire")
                .withJson(new Json.Obj(fields).toText())
                .withTimeouts(wait.plus(client.timeout()), attempt);
        // If the first answer is lost, its key finds the turn or the ticket again; later the ticket does. With a key, the server would go
        // on waiting for a client that went away.
        return client.send(ticket == null ? call : call.withoutKey());
    }

    /** Leaves the queue, so that later callers need not wait until the ticket ends. */
    private void leave(TurnKey key, String ticket) {
        Map<String, Json> fields = fields(key);
        fields.put("token", Json.of(ticket));
        inBackground(() -> release(fields));
    }

    private void release(Map<String, Json> fields) {
        try {
            client.send(Call.change("POST", "/v1/turns:release").withJson(new Json.Obj(fields).toText()).withoutKey());
        } catch (TreeholdException failed) {
            LOG.log(System.Logger.Level.WARNING, "a turn was not freed and ends with its lease: " + failed.getMessage());
        }
    }

    private void inBackground(Runnable work) {
        try {
            client.renewals().execute(work);
        } catch (RejectedExecutionException closed) {
            LOG.log(System.Logger.Level.DEBUG, "the client is closed; a turn ends with its lease");
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>It takes the turn for a moment if it is free, so it needs the right to write, and two processes that ask at the same moment may
     * both see the other one.
     */
    @Override
    public boolean isRunning(TurnKey key) {
        Objects.requireNonNull(key, "key");
        try {
            Answer answer = ask(key, Duration.ZERO, null);
            Map<String, Json> fields = fields(key);
            fields.put("token", Json.of(answer.string(answer.object(), "token")));
            release(fields);
            return false;
        } catch (TreeholdException.Unavailable busy) {
            if (busy.status().orElse(0) == 409) {
                return true;
            }
            throw busy;
        }
    }

    private Map<String, Json> fields(TurnKey key) {
        Map<String, Json> fields = new LinkedHashMap<>();
        fields.put("agent", Json.of(agent));
        fields.put("user", Json.of(key.userId()));
        fields.put("session", Json.of(key.sessionId()));
        return fields;
    }

    /** Returns the agent and the address of the server. */
    @Override
    public String toString() {
        return "TreeholdTurnGate(" + agent + ", " + client + ")";
    }

    /** A turn that this process holds. */
    private final class Lease implements TurnLease {
        private final TurnKey key;
        private final String token;
        private final long fence;
        private final CompletableFuture<Interrupt> interrupted = new CompletableFuture<>();
        private final CompletableFuture<Void> lost = new CompletableFuture<>();
        private Future<?> renewal;
        private boolean isClosed;

        Lease(TurnKey key, String token, long fence) {
            this.key = key;
            this.token = token;
            this.fence = fence;
        }

        synchronized void renewInBackground() {
            long every = renewEvery.toNanos();
            try {
                renewal = client.renewals().scheduleWithFixedDelay(this::renewQuietly, every, every, TimeUnit.NANOSECONDS);
            } catch (RejectedExecutionException closed) {
                close();
                throw TreeholdException.of(new Facts("unavailable", "the client is closed; make another one").withCause(closed));
            }
        }

        private void renewQuietly() {
            try {
                check();
            } catch (TurnLostException | TreeholdException.Interrupted known) {
                // The loss is reported to the call; only the end of the client interrupts a renewal.
                LOG.log(System.Logger.Level.DEBUG, known.getMessage());
            } catch (RuntimeException failed) {
                // The turn stays ours until another call takes it, and its token keeps late saves out.
                LOG.log(System.Logger.Level.WARNING, "a turn was not renewed: " + failed.getMessage());
            }
        }

        @Override
        public Optional<Interrupt> check() {
            if (isLost()) {
                throw new TurnLostException(key, null);
            }
            Map<String, Json> fields = fields(key);
            fields.put("token", Json.of(token));
            try {
                Answer answer = client.send(Call.change("POST", "/v1/turns:renew").withJson(new Json.Obj(fields).toText()).withoutKey());
                Json seen = answer.object().get("interrupt").orElse(Json.Null.NULL);
                Interrupt.of(answer, seen).ifPresent(interrupted::complete);
            } catch (TreeholdException.Conflict | TreeholdException.NotFound taken) {
                lose();
                throw new TurnLostException(key, taken);
            }
            return interrupt();
        }

        private synchronized void lose() {
            if (!isClosed) {
                lost.complete(null);
            }
            stopRenewal();
        }

        private synchronized void stopRenewal() {
            if (renewal != null) {
                renewal.cancel(false);
            }
        }

        @Override
        public void close() {
            synchronized (this) {
                stopRenewal();
                if (isClosed) {
                    return;
                }
                isClosed = true;
            }
            if (!isLost()) {
                Map<String, Json> fields = fields(key);
                fields.put("token", Json.of(token));
                // An interrupted thread cannot send, and the next call must not wait for the lease.
                boolean wasInterrupted = Thread.interrupted();
                release(fields);
                if (wasInterrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public TurnKey key() {
            return key;
        }

        @Override
        public String token() {
            return token;
        }

        @Override
        public long fence() {
            return fence;
        }

        @Override
        public Optional<Interrupt> interrupt() {
            return Optional.ofNullable(interrupted.getNow(null));
        }

        @Override
        public boolean isLost() {
            return lost.isDone();
        }

        @Override
        public CompletionStage<Interrupt> whenInterrupted() {
            return interrupted.minimalCompletionStage();
        }

        @Override
        public CompletionStage<Void> whenLost() {
            return lost.minimalCompletionStage();
        }

        /** Returns the session and the number of the turn, without its token. */
        @Override
        public String toString() {
            return "TurnLease(" + key + ", " + fence + ")";
        }
    }

    /** The options of a gate. */
    public static final class Builder {
        private final TreeholdClient client;
        private String agent = TreeholdAgentStateStore.DEFAULT_AGENT;
        private String owner = "java-" + UUID.randomUUID();
        private Duration waitMax = Duration.ofSeconds(30);
        private Duration renewEvery = Duration.ofSeconds(5);

        private Builder(TreeholdClient client) {
            this.client = Objects.requireNonNull(client, "client");
        }

        /**
         * Sets the agent.
         *
         * @param value its id, by default {@link TreeholdAgentStateStore#DEFAULT_AGENT}
         * @return this
         */
        public Builder agent(String value) {
            Segments.id("agent", value);
            agent = value;
            return this;
        }

        /**
         * Sets the name of this process, for operators.
         *
         * @param value the name, by default a random one
         * @return this
         */
        public Builder owner(String value) {
            owner = Objects.requireNonNull(value, "value");
            return this;
        }

        /**
         * Sets how long {@link TreeholdTurnGate#acquire(TurnKey)} waits for earlier calls.
         *
         * @param value the time, by default 30 seconds; zero takes a turn only if it is free
         * @return this
         */
        public Builder waitMax(Duration value) {
            waitMax = checkedWait("waitMax", value);
            return this;
        }

        /**
         * Sets how often a turn is renewed. An interrupt is seen after this time, or with the next {@link TurnLease#check}.
         *
         * @param value the time, by default 5 seconds and at most 20
         * @return this
         */
        public Builder renewEvery(Duration value) {
            if (value.isNegative() || value.isZero() || value.compareTo(Duration.ofSeconds(20)) > 0) {
                throw new IllegalArgumentException("`renewEvery` is " + value + "; it is over 0 and at most 20 seconds");
            }
            renewEvery = value;
            return this;
        }

        /**
         * Makes the gate.
         *
         * @return the gate
         */
        public TreeholdTurnGate build() {
            return new TreeholdTurnGate(this);
        }
    }
}
