package dev.treehold.client;

import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.ServerSocket;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** How requests are sent, repeated and given up, against a server that answers as the test says. */
final class TransportTest {
    private static final String SECRET = "thd_secret-token";

    private static TreeholdClient.Builder quick(String baseUrl) {
        return TreeholdClient.builder(baseUrl).token(SECRET).pauses(Duration.ofMillis(1), Duration.ofMillis(2));
    }

    private static TreeholdAgentStateStore states(AnswerServer server) {
        return new TreeholdAgentStateStore(quick(server.baseUrl()).build());
    }

    private static void saved(HttpExchange exchange) throws IOException {
        AnswerServer.answer(exchange, 200, "{\"version\":1}", "etag", "\"1\"");
    }

    @Test
    void save_is_repeated_with_one_key_until_it_is_answered() throws Exception {
        for (int status : new int[] {429, 502, 503, 504}) {
            try (AnswerServer server = new AnswerServer((exchange, number) -> {
                if (number < 4) {
                    AnswerServer.answer(exchange, status, "overloaded");
                } else {
                    saved(exchange);
                }
            })) {
                Check.equal(1L, states(server).save("ada", "s", "k", Json.of(1)));
                Check.equal(4, server.seen.size(), "status " + status);
                Check.equal(1L, server.seen.stream().map(seen -> seen.header("idempotency-key")).distinct().count());
                Check.isTrue(server.seen.get(0).header("idempotency-key") != null, "a save has no key");
            }
        }
    }

    @Test
    void every_change_has_a_key_of_its_own_and_reads_have_none() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            String path = exchange.getRequestURI().getPath();
            String body = path.endsWith(":interrupt") ? "{\"hit\":false}" : "{\"version\":1,\"keys\":[],\"sessions\":[]}";
            AnswerServer.answer(exchange, 200, body, "etag", "\"1\"");
        })) {
            TreeholdAgentStateStore states = states(server);
            states.save("u", "s", "k", Json.of(1));
            states.save("u", "s", "k", List.of());
            states.saveIfVersion("u", "s", "k", Json.of(1), 3);
            states.delete("u", "s");
            states.delete("u", "s", "k");
            states.interrupt("u", "s", Interrupt.byUser());
            states.get("u", "s", "k", Json.class);
            states.exists("u", "s");
            states.listSessionIds("u");
            List<String> keys = server.seen.stream().map(seen -> seen.header("idempotency-key")).toList();
            Check.equal(6L, keys.stream().filter(key -> key != null).distinct().count());
            Check.equal(List.of("GET", "GET", "GET"), server.seen.stream()
                    .filter(seen -> seen.header("idempotency-key") == null).map(AnswerServer.Seen::method).toList());
        }
    }

    @Test
    void conditions_are_headers_by_expected_version() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> saved(exchange))) {
            TreeholdAgentStateStore states = states(server);
            for (long expected : new long[] {-1, 0, 7}) {
                states.saveIfVersion("u", "s", "k", Json.of(1), expected);
            }
            Check.equal(List.of("null null", "null *", "\"7\" null"), server.seen.stream()
                    .map(seen -> seen.header("if-match") + " " + seen.header("if-none-match")).toList());
            Check.fails(IllegalArgumentException.class, () -> states.saveIfVersion("u", "s", "k", Json.of(1), -2));
        }
    }

    @Test
    void every_code_has_its_class_and_its_facts() throws Exception {
        for (String code : TreeholdException.codes()) {
            boolean isTransient = code.equals("request_running");
            try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.problem(exchange, 400, code))) {
                TreeholdAgentStateStore states = new TreeholdAgentStateStore(
                        quick(server.baseUrl()).attemptsMax(isTransient ? 3 : 9).build());
                Check.Work read = () -> states.sessionIds("u", null, 1);
                TreeholdException thrown = null;
                try {
                    read.run();
                } catch (TreeholdException known) {
                    thrown = known;
                }
                Check.equal(code, thrown.code());
                Check.isTrue(thrown.getClass() != TreeholdException.class, code + " has no class");
                Check.equal("said by the test", thrown.getMessage());
                Check.equal(Optional.of("trace-1"), thrown.traceId());
                Check.equal(400, thrown.status().getAsInt());
                Check.equal(Optional.of("GET /v1/state/u"), thrown.request());
                Check.equal(isTransient ? 3 : 1, server.seen.size(), code);
            }
        }
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.problem(exchange, 409, "newer_code"))) {
            TreeholdException thrown = Check.fails(TreeholdException.class, () -> states(server).get("u", "s", "k", Json.class));
            Check.equal("newer_code", thrown.code());
        }
    }

    @Test
    void answer_that_is_not_of_the_server_is_never_an_absent_value() throws Exception {
        Map<Integer, Class<? extends TreeholdException>> expected = Map.of(
                301, TreeholdException.InvalidArgument.class,
                304, TreeholdException.InvalidArgument.class,
                400, TreeholdException.InvalidArgument.class,
                401, TreeholdException.PermissionDenied.class,
                403, TreeholdException.PermissionDenied.class,
                404, TreeholdException.NoSuchRoute.class,
                413, TreeholdException.TooLarge.class,
                500, TreeholdException.Internal.class,
                502, TreeholdException.Unavailable.class);
        for (Map.Entry<Integer, Class<? extends TreeholdException>> one : expected.entrySet()) {
            for (String body : List.of("", "<html>", "{}", "[]", "{\"code\":7}")) {
                try (AnswerServer server = new AnswerServer((exchange, number) ->
                        AnswerServer.answer(exchange, one.getKey(), one.getKey() == 304 ? "" : body, "location", "http://127.0.0.1:1/"))) {
                    String about = one.getKey() + " " + body;
                    Check.fails(one.getValue(), about, () -> states(server).get("u", "s", "k", Json.class));
                    Check.fails(one.getValue(), about, () -> states(server).exists("u", "s"));
                    Check.fails(one.getValue(), about, () -> states(server).getList("u", "s", "k", Json.class));
                }
            }
        }
    }

    @Test
    void answer_that_cannot_be_read_is_corrupt() throws Exception {
        byte[] notUtf8 = {'"', (byte) 0xff, '"'};
        for (byte[] body : List.of(notUtf8, "".getBytes(StandardCharsets.UTF_8), "{".getBytes(StandardCharsets.UTF_8),
                "[[".getBytes(StandardCharsets.UTF_8), "7".getBytes(StandardCharsets.UTF_8), "{\"a\":[]}".getBytes(StandardCharsets.UTF_8),
                "{\"sessions\":[1],\"keys\":[1],\"users\":[1]}".getBytes(StandardCharsets.UTF_8))) {
            try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.answer(exchange, 200, body))) {
                TreeholdAgentStateStore states = states(server);
                List<Check.Work> calls = List.of(
                        () -> states.get("u", "s", "k", Json.class),
                        () -> states.getList("u", "s", "k", Json.class),
                        () -> states.exists("u", "s"),
                        () -> states.listSessionIds("u"),
                        () -> states.users(null, 10),
                        () -> states.interrupt("u", "s", Interrupt.byUser()),
                        () -> TreeholdTurnGate.builder(quick(server.baseUrl()).build()).build().acquire(new TurnKey("u", "s")));
                for (int at = 0; at < calls.size(); at += 1) {
                    String about = "call " + at + " with " + new String(body, StandardCharsets.UTF_8);
                    Check.fails(TreeholdException.Corrupt.class, about, calls.get(at));
                }
            }
        }
    }

    @Test
    void page_that_names_itself_as_the_next_one_ends_the_listing() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) ->
                AnswerServer.answer(exchange, 200, "{\"sessions\":[\"a\"],\"next\":\"a\"}"))) {
            Check.fails(TreeholdException.Corrupt.class, () -> states(server).listSessionIds("u"));
            Check.equal(2, server.seen.size());
        }
    }

    @Test
    void listing_of_too_many_sessions_is_refused() throws Exception {
        AtomicInteger next = new AtomicInteger();
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            String ids = IntStream.range(0, 20_000).mapToObj(at -> "\"" + number + "-" + at + "\"").collect(Collectors.joining(","));
            AnswerServer.answer(exchange, 200, "{\"sessions\":[" + ids + "],\"next\":\"" + next.incrementAndGet() + "\"}");
        })) {
            TreeholdException.TooLarge thrown = Check.fails(TreeholdException.TooLarge.class, () -> states(server).listSessionIds("u"));
            Check.isTrue(thrown.getMessage().contains("sessionIds"), thrown.getMessage());
            Check.equal(6, server.seen.size());
        }
    }

    @Test
    void answer_over_the_limit_is_refused_and_one_at_the_limit_is_read() throws Exception {
        String value = "\"" + "x".repeat(998) + "\"";
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            // Without a length, so that only the bytes themselves are counted.
            exchange.getResponseHeaders().set("etag", "\"1\"");
            exchange.sendResponseHeaders(200, 0);
            exchange.getResponseBody().write(value.getBytes(StandardCharsets.UTF_8));
            exchange.close();
        })) {
            TreeholdAgentStateStore wide = new TreeholdAgentStateStore(quick(server.baseUrl()).answerBytesMax(1_000).build());
            Check.equal(value, wide.get("u", "s", "k", JsonText.class).orElseThrow().text());
            TreeholdAgentStateStore narrow = new TreeholdAgentStateStore(quick(server.baseUrl()).answerBytesMax(999).build());
            Check.fails(TreeholdException.TooLarge.class, () -> narrow.get("u", "s", "k", JsonText.class));
            Check.equal(2, server.seen.size(), "an answer that is too large was asked for again");
        }
    }

    @Test
    void silent_server_ends_with_the_time_of_the_call() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        try (AnswerServer server = new AnswerServer((exchange, number) -> await(end))) {
            TreeholdClient client = quick(server.baseUrl()).timeout(Duration.ofMillis(300)).attemptTimeout(Duration.ofMillis(50)).build();
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
            TreeholdException.Deadline read = Check.fails(TreeholdException.Deadline.class, () -> states.get("u", "s", "k", Json.class));
            Check.isTrue(!read.mayHaveEffect(), "a read has no effect");
            TreeholdException.Deadline write = Check.fails(TreeholdException.Deadline.class, () -> states.save("u", "s", "k", Json.of(1)));
            Check.isTrue(write.mayHaveEffect(), "a save that was sent may have an effect");
            Check.isTrue(server.seen.size() > 2, "the requests were not repeated");
            end.countDown();
        }
    }

    @Test
    void body_that_stops_in_the_middle_ends_with_the_time_of_the_attempt() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            exchange.getResponseHeaders().set("etag", "\"1\"");
            exchange.sendResponseHeaders(200, 100);
            exchange.getResponseBody().write('"');
            exchange.getResponseBody().flush();
            await(end);
        })) {
            TreeholdClient client = quick(server.baseUrl()).attemptsMax(2).attemptTimeout(Duration.ofMillis(50)).build();
            Check.fails(TreeholdException.Deadline.class, () -> new TreeholdAgentStateStore(client).get("u", "s", "k", Json.class));
            Check.equal(2, server.seen.size());
            end.countDown();
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void server_that_is_not_there_is_unavailable_without_an_effect() throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        TreeholdClient client = quick("http://127.0.0.1:" + port).build();
        TreeholdException.Unavailable thrown =
                Check.fails(TreeholdException.Unavailable.class, () -> new TreeholdAgentStateStore(client).save("u", "s", "k", Json.of(1)));
        Check.isTrue(!thrown.mayHaveEffect(), "nothing was sent");
        Check.equal(Optional.of("PUT /v1/state/u/s/k"), thrown.request());
    }

    @Test
    void save_that_may_have_reached_a_server_that_is_gone_may_have_an_effect() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.answer(exchange, 502, "bad gateway"))) {
            server.closeAfterNextAnswer();
            TreeholdClient client = quick(server.baseUrl()).attemptsMax(100).build();
            TreeholdException.Unavailable thrown = Check.fails(
                    TreeholdException.Unavailable.class, () -> new TreeholdAgentStateStore(client).save("u", "s", "k", Json.of(1)));
            Check.equal(OptionalInt.empty(), thrown.status());
            Check.isTrue(thrown.mayHaveEffect(), "the first attempt may have had an effect");
        }
    }

    @Test
    void interrupted_thread_gives_up_and_stays_interrupted() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        CountDownLatch arrived = new CountDownLatch(1);
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            arrived.countDown();
            await(end);
        })) {
            AtomicReference<Throwable> thrown = new AtomicReference<>();
            AtomicReference<Boolean> isInterrupted = new AtomicReference<>();
            Thread thread = new Thread(() -> {
                try {
                    states(server).save("u", "s", "k", Json.of(1));
                } catch (Throwable known) {
                    thrown.set(known);
                }
                isInterrupted.set(Thread.currentThread().isInterrupted());
            });
            thread.start();
            arrived.await();
            thread.interrupt();
            thread.join();
            end.countDown();
            Check.equal(TreeholdException.Interrupted.class, thrown.get().getClass());
            Check.isTrue(((TreeholdException) thrown.get()).mayHaveEffect(), "the save was sent");
            Check.isTrue(isInterrupted.get(), "the interrupt was swallowed");
        }
    }

    @Test
    void full_key_room_sends_the_change_once_without_its_key() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) -> {
            if (exchange.getRequestHeaders().getFirst("idempotency-key") != null) {
                AnswerServer.problem(exchange, 507, "quota_exceeded");
            } else if (number == 2) {
                saved(exchange);
            } else {
                AnswerServer.answer(exchange, 502, "bad gateway");
            }
        })) {
            Check.equal(1L, states(server).save("u", "s", "k", Json.of(1)));
            TreeholdException thrown =
                    Check.fails(TreeholdException.Unavailable.class, () -> states(server).save("u", "s", "k", Json.of(2)));
            Check.isTrue(thrown.mayHaveEffect(), "a gateway does not say what the server did");
            Check.equal(4, server.seen.size(), "a save without a key was repeated");
        }
    }

    @Test
    void conflict_says_the_present_version() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) ->
                AnswerServer.problem(exchange, 412, "conflict", "etag", "\"9\""))) {
            Check.equal(AgentStateStore.UNVERSIONED, states(server).saveIfVersion("u", "s", "k", Json.of(1), 3));
            TreeholdException thrown = Check.fails(TreeholdException.Conflict.class, () -> states(server).save("u", "s", "k", Json.of(1)));
            Check.equal(OptionalLong.of(9), thrown.currentVersion());
        }
    }

    @Test
    void conflict_of_the_data_plane_in_its_own_form_is_a_conflict() throws Exception {
        try (AnswerServer server = new AnswerServer((exchange, number) ->
                AnswerServer.answer(exchange, 409, "{\"error\":\"conflict\",\"currentVersion\":3}"))) {
            TreeholdBaseStore items = new TreeholdBaseStore(quick(server.baseUrl()).build(), "helper");
            Check.isTrue(!items.putIfVersion(List.of("a"), "k", Map.of(), 2), "another version was expected");
            TreeholdException thrown = Check.fails(TreeholdException.Conflict.class, () -> items.put(List.of("a"), "k", Map.of()));
            Check.equal(OptionalLong.of(3), thrown.currentVersion());
        }
        // An idempotency key can be in conflict too, which is no answer about the item.
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.problem(exchange, 409, "outcome_unknown"))) {
            TreeholdBaseStore items = new TreeholdBaseStore(quick(server.baseUrl()).build(), "helper");
            Check.fails(TreeholdException.OutcomeUnknown.class, () -> items.putIfVersion(List.of("a"), "k", Map.of(), 2));
        }
    }

    @Test
    void token_is_sent_and_said_nowhere() throws Exception {
        AtomicInteger calls = new AtomicInteger();
        try (AnswerServer server = new AnswerServer((exchange, number) -> AnswerServer.problem(exchange, 503, "unavailable"))) {
            TreeholdClient client = quick(server.baseUrl()).token(() -> SECRET + calls.incrementAndGet()).attemptsMax(3).build();
            TreeholdAgentStateStore states = new TreeholdAgentStateStore(client);
            TreeholdTurnGate gate = TreeholdTurnGate.builder(client).build();
            List<Check.Work> attempts = List.of(() -> states.save("u", "s", "k", Json.of(1)), () -> gate.acquire(new TurnKey("u", "s")));
            for (Check.Work work : attempts) {
                try {
                    work.run();
                } catch (Exception thrown) {
                    StringWriter trace = new StringWriter();
                    thrown.printStackTrace(new PrintWriter(trace));
                    Check.isTrue(!trace.toString().contains("thd_"), trace.toString());
                }
            }
            // The token is asked for each attempt, as it may have changed.
            Check.equal(List.of(1, 2, 3), server.seen.stream().limit(3)
                    .map(seen -> Integer.valueOf(seen.header("authorization").substring(("Bearer " + SECRET).length()))).toList());
            for (Object said : List.of(client, states, gate, TreeholdClient.builder(server.baseUrl()).token(SECRET))) {
                Check.isTrue(!said.toString().contains("thd_"), said.toString());
            }
        }
        for (String bad : List.of("", SECRET + "\n", SECRET + "é", SECRET + " x")) {
            TreeholdClient client = TreeholdClient.builder("http://127.0.0.1:1").token(bad).build();
            IllegalArgumentException thrown = Check.fails(IllegalArgumentException.class, client::ping);
            Check.isTrue(!thrown.getMessage().contains("thd_"), thrown.getMessage());
        }
    }

    @Test
    void redirect_is_not_followed() throws Exception {
        try (AnswerServer elsewhere = new AnswerServer((exchange, number) -> saved(exchange));
                AnswerServer server = new AnswerServer((exchange, number) ->
                        AnswerServer.answer(exchange, 307, "", "location", elsewhere.baseUrl() + "/"))) {
            Check.fails(TreeholdException.InvalidArgument.class, () -> states(server).save("u", "s", "k", Json.of(1)));
            Check.equal(List.of(), elsewhere.seen);
        }
        HttpClient follows = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.ALWAYS).build();
        Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://127.0.0.1:1").http(follows).build());
    }

    @Test
    void options_outside_their_range_are_refused() {
        for (String address : List.of(
                "", "127.0.0.1:1", "ftp://a", "http://", "http://u:thd_p@a", "http://a?thd_=1", "http://a#thd_", "http://a b")) {
            IllegalArgumentException thrown =
                    Check.fails(IllegalArgumentException.class, address, () -> TreeholdClient.builder(address).build());
            Check.isTrue(!thrown.getMessage().contains("thd_"), thrown.getMessage());
        }
        Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder(null).build());
        TreeholdClient.Builder builder = TreeholdClient.builder("http://127.0.0.1:1/");
        Check.equal("TreeholdClient(http://127.0.0.1:1)", builder.build().toString());
        for (Duration bad : new Duration[] {null, Duration.ZERO, Duration.ofMillis(-1), Duration.ofDays(2)}) {
            Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://a").timeout(bad).build());
            Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://a").attemptTimeout(bad).build());
            Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://a").pauses(bad, Duration.ofDays(1)).build());
        }
        Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://a").attemptsMax(0).build());
        for (long bad : new long[] {0, -1, Integer.MAX_VALUE}) {
            Check.fails(IllegalArgumentException.class, () -> TreeholdClient.builder("http://a").answerBytesMax(bad).build());
        }
    }
}
