package dev.treehold.client;

import java.net.http.HttpClient;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A connection to a treehold server, shared by the stores and gates of this package. It keeps no state of sessions, and any number
 * of threads can use it.
 *
 * <pre>{@code
 * TreeholdClient client = TreeholdClient.builder("http://127.0.0.1:8080").token(System.getenv("TREEHOLD_TOKEN")).build();
 * AgentStateStore states = new TreeholdAgentStateStore(client);
 * }</pre>
 *
 * <p>A request is repeated, with growing random pauses, while the server does not answer or is overloaded. Each change has an
 * idempotency key, so it takes effect once even if its answer is lost.
 */
public final class TreeholdClient implements AutoCloseable {
    private static final int RENEWING_THREADS = 8;

    private final ClientOptions options;
    private final Transport transport;
    private final ScheduledThreadPoolExecutor renewals;

    private TreeholdClient(ClientOptions options) {
        this.options = options;
        this.transport = new Transport(options);
        this.renewals = new ScheduledThreadPoolExecutor(RENEWING_THREADS, task -> {
            Thread thread = new Thread(task, "treehold-renewals");
            thread.setDaemon(true);
            return thread;
        });
        renewals.setRemoveOnCancelPolicy(true);
        renewals.setKeepAliveTime(10, TimeUnit.SECONDS);
        renewals.allowCoreThreadTimeOut(true);
    }

    /**
     * Begins a client.
     *
     * @param baseUrl the address of the server, such as {@code http://127.0.0.1:8080}
     * @return its options
     */
    public static Builder builder(String baseUrl) {
        return new Builder(baseUrl);
    }

    /**
     * Checks that the server answers and its store is ready.
     *
     * @throws TreeholdException if it does not
     */
    public void ping() {
        send(Call.get("/readyz"));
    }

    Answer send(Call call) {
        return transport.send(call);
    }

    Duration timeout() {
        return options.timeout;
    }

    Duration attemptTimeout() {
        return options.attemptTimeout;
    }

    /** The threads that renew turns. */
    ScheduledThreadPoolExecutor renewals() {
        return renewals;
    }

    /** Ends the renewal of turns. The server frees them when their leases end. */
    @Override
    public void close() {
        renewals.shutdownNow();
    }

    /** Returns the address of the server, without the token. */
    @Override
    public String toString() {
        return "TreeholdClient(" + options.baseUrl + ")";
    }

    /** The options of a client. */
    public static final class Builder {
        final String baseUrl;
        Supplier<String> token = () -> null;
        Duration timeout = Duration.ofSeconds(60);
        Duration attemptTimeout = Duration.ofSeconds(30);
        int attemptsMax = 6;
        Duration pause = Duration.ofMillis(100);
        Duration pauseMax = Duration.ofSeconds(2);
        long answerBytesMax = 64L << 20;
        String tenant;
        HttpClient http;

        private Builder(String baseUrl) {
            this.baseUrl = baseUrl;
        }

        /**
         * Sets the token. A server on loopback may need none.
         *
         * @param value the token, or null
         * @return this
         */
        public Builder token(String value) {
            return token(() -> value);
        }

        /**
         * Sets where the token comes from. It is asked before each attempt.
         *
         * @param value returns the current token, or null
         * @return this
         */
        public Builder token(Supplier<String> value) {
            token = Objects.requireNonNull(value, "value");
            return this;
        }

        /**
         * Sets the time for a request with all its attempts.
         *
         * @param value the time, by default 60 seconds
         * @return this
         */
        public Builder timeout(Duration value) {
            timeout = value;
            return this;
        }

        /**
         * Sets the time for one attempt.
         *
         * @param value the time, by default 30 seconds
         * @return this
         */
        public Builder attemptTimeout(Duration value) {
            attemptTimeout = value;
            return this;
        }

        /**
         * Sets how often a request is sent at most.
         *
         * @param value the number, by default 6; 1 repeats nothing
         * @return this
         */
        public Builder attemptsMax(int value) {
            attemptsMax = value;
            return this;
        }

        /**
         * Sets the pauses between attempts. A pause is random; its bound doubles with each attempt.
         *
         * @param first the bound of the first pause, by default 100 milliseconds
         * @param longest the longest bound, by default 2 seconds
         * @return this
         */
        public Builder pauses(Duration first, Duration longest) {
            pause = first;
            pauseMax = longest;
            return this;
        }

        /**
         * Sets how long an answer may be.
         *
         * @param value the number of bytes, by default 64 MiB
         * @return this
         */
        public Builder answerBytesMax(long value) {
            answerBytesMax = value;
            return this;
        }

        /**
         * Sets the tenant that requests are about, for a token that may act for others. Turns, states and interrupts are its then.
         *
         * @param value the tenant; by default that of the token
         * @return this
         */
        public Builder tenant(String value) {
            Segments.id("tenant", value);
            tenant = value;
            return this;
        }

        /**
         * Sets the HTTP client, for instance one with other certificates or a proxy. It must not follow redirects.
         *
         * @param value the client; by default a new one
         * @return this
         */
        public Builder http(HttpClient value) {
            http = value;
            return this;
        }

        /**
         * Makes the client. It connects with the first request.
         *
         * @return the client
         * @throws IllegalArgumentException for an option outside its range
         */
        public TreeholdClient build() {
            return new TreeholdClient(new ClientOptions(this));
        }
    }
}
