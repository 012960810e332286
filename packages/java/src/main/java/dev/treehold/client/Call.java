package dev.treehold.client;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;

/** A request. The methods that begin with {@code with} change it and return it. */
final class Call {
    final String method;
    /** The path beneath the address of the server, with its ids percent-encoded. */
    final String path;
    final Map<String, String> headers = new LinkedHashMap<>();
    private final StringBuilder query = new StringBuilder();
    byte[] body;
    /** The key under which the change is made once, however often it is sent. */
    String idempotencyKey;
    /** Whether repeating it is safe without a key, although it changes something. */
    boolean isIdempotent;
    /** The time for all attempts; null is that of the client. */
    Duration timeout;
    /** The time for one attempt; null is that of the client. */
    Duration attemptTimeout;

    private Call(String method, String path) {
        this.method = method;
        this.path = path;
        this.isIdempotent = method.equals("GET");
    }

    static Call get(String path) {
        return new Call("GET", path);
    }

    /** A change with a key of its own, so that it takes effect once. */
    static Call change(String method, String path) {
        Call call = new Call(method, path);
        call.idempotencyKey = UUID.randomUUID().toString();
        return call;
    }

    Call with(String name, Object value) {
        if (value != null) {
            query.append(query.isEmpty() ? '?' : '&').append(name).append('=').append(Segments.encode(name, value.toString()));
        }
        return this;
    }

    Call withHeader(String name, String value) {
        headers.put(name, value);
        return this;
    }

    Call withJson(String text) {
        body = Segments.utf8("value", text);
        return withHeader("content-type", "application/json");
    }

    Call withTimeouts(Duration all, Duration attempt) {
        timeout = all;
        attemptTimeout = attempt;
        return this;
    }

    /** Marks a change that has the same effect when it is made twice, so that it needs no key. */
    Call withoutKey() {
        isIdempotent = true;
        idempotencyKey = null;
        return this;
    }

    boolean changes() {
        return !method.equals("GET");
    }

    String target() {
        return path + query;
    }

    /** The request for messages: without the query, which may hold the token of a turn. */
    String describe() {
        return method + " " + path;
    }

    @Override
    public String toString() {
        return describe() + (body == null ? "" : " with " + new String(body, StandardCharsets.UTF_8).length() + " characters");
    }
}
