package dev.treehold.client;

import dev.treehold.client.TreeholdException.Facts;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Sends requests, and repeats those that are safe to repeat. */
final class Transport {
    private static final String NOT_ANSWERED = "the server did not answer";

    private final ClientOptions options;
    private final HttpClient http;

    Transport(ClientOptions options) {
        this.options = options;
        // A redirect would carry the token to another place.
        this.http = options.http != null ? options.http : HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(options.attemptTimeout)
                .build();
    }

    /** An attempt that failed. */
    private record Failure(Facts facts, boolean isTransient, Duration retryAfter) {}

    /** Sends a request until it is answered. */
    Answer send(Call call) {
        Duration timeout = call.timeout == null ? options.timeout : call.timeout;
        long end = System.nanoTime() + timeout.toNanos();
        boolean mayHaveEffect = false;
        for (int attempt = 1; ; attempt += 1) {
            Object outcome = attempt(call, end);
            if (outcome instanceof Answer answer) {
                return answer;
            }
            Failure failure = (Failure) outcome;
            Facts facts = failure.facts;
            if (facts.code().equals("quota_exceeded") && call.idempotencyKey != null && !mayHaveEffect) {
                // Perhaps the user has no room for further keys. Without one, the request is sent once.
                call.idempotencyKey = null;
                continue;
            }
            boolean isSafe = call.isIdempotent || call.idempotencyKey != null || !facts.mayHaveEffect();
            long waitNanos = failure.retryAfter != null ? failure.retryAfter.toNanos() : options.pause(attempt).toNanos();
            boolean isTime = System.nanoTime() + waitNanos < end;
            if (!failure.isTransient || !isSafe || attempt >= options.attemptsMax || !isTime) {
                // With a key, the server's own answer counts for all attempts.
                boolean isAnswered = call.idempotencyKey != null && !failure.isTransient;
                throw TreeholdException.of(mayHaveEffect && !isAnswered ? facts.withEffect(true) : facts);
            }
            mayHaveEffect |= facts.mayHaveEffect();
            try {
                TimeUnit.NANOSECONDS.sleep(waitNanos);
            } catch (InterruptedException interrupted) {
                throw interrupted(call, interrupted, mayHaveEffect);
            }
        }
    }

    /** Returns an {@link Answer} or a {@link Failure}. */
    private Object attempt(Call call, long end) {
        HttpRequest request = request(call);
        Duration limit = call.attemptTimeout == null ? options.attemptTimeout : call.attemptTimeout;
        long left = Math.max(TimeUnit.MILLISECONDS.toNanos(1), Math.min(limit.toNanos(), end - System.nanoTime()));
        // `HttpRequest.timeout` ends with the headers; this one covers the body too.
        CompletableFuture<HttpResponse<byte[]>> sent =
                http.sendAsync(request, info -> new BoundedBody(options.answerBytesMax));
        try {
            HttpResponse<byte[]> response = sent.get(left, TimeUnit.NANOSECONDS);
            String text = text(call, response);
            boolean isDone = response.statusCode() >= 200 && response.statusCode() < 300;
            return isDone ? new Answer(call.describe(), response.statusCode(), response.headers(), text) : problem(call, response, text);
        } catch (TimeoutException timeout) {
            sent.cancel(true);
            long millis = TimeUnit.NANOSECONDS.toMillis(left);
            return unanswered(call, "deadline", " within " + millis + " ms; raise the timeout or try again", null);
        } catch (InterruptedException interrupted) {
            sent.cancel(true);
            throw interrupted(call, interrupted, call.changes());
        } catch (ExecutionException failed) {
            return failure(call, failed.getCause());
        }
    }

    private Failure failure(Call call, Throwable cause) {
        for (Throwable known = cause; known != null; known = known.getCause()) {
            if (known instanceof BoundedBody.Exceeded) {
                String message = "the answer has more than " + options.answerBytesMax
                        + " bytes; read it by page, or raise `answerBytesMax` of the client";
                Facts facts = new Facts("too_large", message).withRequest(call.describe()).withEffect(call.changes());
                return new Failure(facts, false, null);
            }
        }
        boolean isUnsent = cause instanceof ConnectException || cause instanceof HttpConnectTimeoutException;
        String code = cause instanceof HttpTimeoutException ? "deadline" : "unavailable";
        String reason = cause.getMessage() == null ? cause.getClass().getSimpleName() : cause.getMessage();
        Failure failure = unanswered(call, code, ": " + reason + "; check that it runs and try again", cause);
        return new Failure(failure.facts.withEffect(call.changes() && !isUnsent), cause instanceof IOException, null);
    }

    private static Failure unanswered(Call call, String code, String reason, Throwable cause) {
        Facts facts = new Facts(code, NOT_ANSWERED + reason).withRequest(call.describe()).withEffect(call.changes()).withCause(cause);
        return new Failure(facts, true, null);
    }

    private static TreeholdException interrupted(Call call, InterruptedException cause, boolean mayHaveEffect) {
        Thread.currentThread().interrupt();
        Facts facts = new Facts("interrupted", "the thread was interrupted during " + call.describe());
        return TreeholdException.of(facts.withRequest(call.describe()).withEffect(mayHaveEffect).withCause(cause));
    }

    /** Makes the request. It is made again for each attempt, since the token may change. */
    private HttpRequest request(Call call) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(options.baseUrl + call.target()));
        request.method(call.method, call.body == null ? BodyPublishers.noBody() : BodyPublishers.ofByteArray(call.body));
        if (!call.headers.containsKey("accept")) {
            request.setHeader("accept", "application/json");
        }
        if (options.tenant != null) {
            request.setHeader("treehold-tenant", Segments.encode("tenant id", options.tenant));
        }
        call.headers.forEach(request::setHeader);
        String token = options.token.get();
        if (token != null) {
            // The JDK's own error would quote the token.
            if (token.isEmpty() || !token.chars().allMatch(unit -> unit > ' ' && unit < 127)) {
                throw new IllegalArgumentException("the token is empty or has characters that a header cannot hold");
            }
            request.setHeader("authorization", "Bearer " + token);
        }
        if (call.idempotencyKey != null) {
            request.setHeader("idempotency-key", call.idempotencyKey);
        }
        return request.build();
    }

    /** Reads a problem (RFC 9457). Something between the client and the server may answer otherwise. */
    private static Failure problem(Call call, HttpResponse<byte[]> response, String text) {
        int status = response.statusCode();
        Json.Obj fields = fields(text);
        boolean isProblem = fields.get("code").orElse(null) instanceof Json.Str;
        // The routes of the data plane name the version of a conflict in their own form.
        boolean isConflict = !isProblem && status == 409 && fields.get("currentVersion").orElse(null) instanceof Json.Num;
        String code = isProblem ? string(fields, "code") : isConflict ? "conflict" : codeOf(status);
        String detail = string(fields, "detail");
        String title = string(fields, "title");
        String message = detail != null ? detail
                : title != null ? title
                : isConflict ? "the item does not have the expected version; read it again"
                : "the server answered with status " + status;
        boolean mayHaveEffect = fields.get("may_have_effect").orElse(null) instanceof Json.Bool known
                ? known.value()
                : call.changes() && status >= 500 && !isProblem;
        Json current = fields.get(isConflict ? "currentVersion" : "current_version").orElse(Json.Null.NULL);
        OptionalLong version = current instanceof Json.Str tag ? version(tag.value())
                : current.plain() instanceof Long number ? OptionalLong.of(number)
                : response.headers().firstValue("etag").map(Transport::version).orElse(OptionalLong.empty());
        Facts facts = new Facts(
                code, message, status, mayHaveEffect, version, string(fields, "trace_id"), call.describe(), null);
        boolean isTransient = status == 429 || status >= 502 && status <= 504 || code.equals("request_running");
        return new Failure(facts, isTransient, retryAfter(response.headers()));
    }

    private static Json.Obj fields(String text) {
        try {
            return Json.parse(text) instanceof Json.Obj object ? object : new Json.Obj(Map.of());
        } catch (JsonSyntaxException notJson) {
            return new Json.Obj(Map.of());
        }
    }

    private static String string(Json.Obj fields, String name) {
        return fields.get(name).orElse(null) instanceof Json.Str string ? string.value() : null;
    }

    private static String codeOf(int status) {
        return switch (status) {
            case 401, 403 -> "permission_denied";
            // `not_found` is about a state, and only the server itself says so.
            case 404 -> "no_such_route";
            case 413 -> "too_large";
            case 429 -> "unavailable";
            default -> status >= 502 ? "unavailable" : status >= 500 ? "internal" : "invalid_argument";
        };
    }

    private static Duration retryAfter(HttpHeaders headers) {
        String seconds = headers.firstValue("retry-after").orElse("");
        return seconds.matches("[0-9]{1,6}") ? Duration.ofSeconds(Long.parseLong(seconds)) : null;
    }

    /** Reads a version, or a tag such as {@code "3"}. */
    static OptionalLong version(String tag) {
        String digits = tag.startsWith("\"") && tag.endsWith("\"") && tag.length() > 2 ? tag.substring(1, tag.length() - 1) : tag;
        return digits.matches("[0-9]{1,18}") ? OptionalLong.of(Long.parseLong(digits)) : OptionalLong.empty();
    }

    private static String text(Call call, HttpResponse<byte[]> response) {
        try {
            return StandardCharsets.UTF_8.newDecoder()
                    .onMalformedInput(CodingErrorAction.REPORT)
                    .onUnmappableCharacter(CodingErrorAction.REPORT)
                    .decode(ByteBuffer.wrap(response.body()))
                    .toString();
        } catch (CharacterCodingException cause) {
            Answer answer = new Answer(call.describe(), response.statusCode(), response.headers(), "");
            throw answer.unreadable("is not UTF-8", cause);
        }
    }
}
