package dev.treehold.client;

import java.net.URI;
import java.net.http.HttpClient;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;

/** The options of a client, checked. */
final class ClientOptions {
    final String baseUrl;
    final Supplier<String> token;
    final Duration timeout;
    final Duration attemptTimeout;
    final int attemptsMax;
    final Duration pause;
    final Duration pauseMax;
    final long answerBytesMax;
    final String tenant;
    final HttpClient http;

    ClientOptions(TreeholdClient.Builder builder) {
        baseUrl = base(builder.baseUrl);
        token = builder.token;
        timeout = positive("timeout", builder.timeout);
        attemptTimeout = positive("attemptTimeout", builder.attemptTimeout);
        attemptsMax = builder.attemptsMax;
        pause = positive("pause", builder.pause);
        pauseMax = positive("pauseMax", builder.pauseMax);
        answerBytesMax = builder.answerBytesMax;
        tenant = builder.tenant;
        http = builder.http;
        if (attemptsMax < 1) {
            throw new IllegalArgumentException("`attemptsMax` is " + attemptsMax + "; a request is sent at least once");
        }
        if (answerBytesMax < 1 || answerBytesMax > Integer.MAX_VALUE - 64) {
            throw new IllegalArgumentException("`answerBytesMax` is " + answerBytesMax + "; it is between 1 and 2 GiB");
        }
        if (http != null && http.followRedirects() != HttpClient.Redirect.NEVER) {
            throw new IllegalArgumentException("the HTTP client follows redirects, which would carry the token to another place");
        }
    }

    /** Returns a random wait before the next attempt; its bound doubles with each attempt. */
    Duration pause(int attempt) {
        long bound = Math.min(pauseMax.toNanos(), pause.toNanos() << Math.min(attempt - 1, 20));
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(Math.max(1, bound)));
    }

    private static Duration positive(String name, Duration duration) {
        if (duration == null || duration.isZero() || duration.isNegative() || duration.compareTo(Duration.ofDays(1)) > 0) {
            throw new IllegalArgumentException("`" + name + "` is " + duration + "; it is over 0 and at most a day");
        }
        return duration;
    }

    /** Checks the address. The message does not repeat it, since it may contain a password. */
    private static String base(String text) {
        String problem = "the address of the server is not such as `https://files.example`, without a user, a query or a fragment";
        URI uri;
        try {
            uri = URI.create(text);
        } catch (IllegalArgumentException | NullPointerException notUri) {
            throw new IllegalArgumentException(problem);
        }
        boolean isHttp = "http".equalsIgnoreCase(uri.getScheme()) || "https".equalsIgnoreCase(uri.getScheme());
        if (!isHttp || uri.getHost() == null || uri.getRawUserInfo() != null || uri.getRawQuery() != null || uri.getRawFragment() != null) {
            throw new IllegalArgumentException(problem);
        }
        return text.replaceAll("/+$", "");
    }
}
