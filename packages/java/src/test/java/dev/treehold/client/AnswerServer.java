package dev.treehold.client;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;

/** A server that gives answers as a test says. */
final class AnswerServer implements AutoCloseable {
    /** Gives an answer. */
    @FunctionalInterface
    interface Handler {
        void handle(HttpExchange exchange, int number) throws IOException;
    }

    /** A request that arrived. */
    record Seen(String method, String target, com.sun.net.httpserver.Headers headers, String body) {
        String header(String name) {
            return headers.getFirst(name);
        }
    }

    final List<Seen> seen = new CopyOnWriteArrayList<>();
    private final HttpServer server;
    private volatile boolean isLast;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    AnswerServer(Handler handler) throws IOException {
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setExecutor(threads);
        server.createContext("/", exchange -> {
            String body;
            try (InputStream input = exchange.getRequestBody()) {
                body = new String(input.readAllBytes(), StandardCharsets.UTF_8);
            }
            int number;
            synchronized (seen) {
                seen.add(new Seen(exchange.getRequestMethod(), exchange.getRequestURI().toString(), exchange.getRequestHeaders(), body));
                number = seen.size();
            }
            handler.handle(exchange, number);
            if (isLast) {
                new Thread(this::close).start();
            }
        });
        server.start();
    }

    static void answer(HttpExchange exchange, int status, String body, String... headers) throws IOException {
        answer(exchange, status, body.getBytes(StandardCharsets.UTF_8), headers);
    }

    static void answer(HttpExchange exchange, int status, byte[] body, String... headers) throws IOException {
        for (int at = 0; at < headers.length; at += 2) {
            exchange.getResponseHeaders().set(headers[at], headers[at + 1]);
        }
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        if (body.length > 0) {
            exchange.getResponseBody().write(body);
        }
        exchange.close();
    }

    /** Answers as RFC 9457 says. */
    static void problem(HttpExchange exchange, int status, String code, String... headers) throws IOException {
        exchange.getResponseHeaders().set("content-type", "application/problem+json");
        String body = "{\"type\":\"about:blank\",\"status\":" + status + ",\"code\":\"" + code
                + "\",\"detail\":\"said by the test\",\"trace_id\":\"trace-1\"}";
        answer(exchange, status, body, headers);
    }

    /** Closes the server once it has answered a request. Later connections are refused. */
    void closeAfterNextAnswer() {
        isLast = true;
    }

    String baseUrl() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}
