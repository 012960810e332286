package dev.treehold.client;

import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.function.Function;

/**
 * A request failed. {@link #code} is for programs and stable; the message says what to do. A code without a class of its own, which
 * a later server may have, is a plain {@code TreeholdException}.
 *
 * <p>Neither messages nor causes contain the token.
 */
public class TreeholdException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The codes that have a class. */
    private static final Map<String, Function<Facts, TreeholdException>> CLASSES = Map.ofEntries(
            Map.entry("not_found", NotFound::new),
            Map.entry("already_exists", AlreadyExists::new),
            Map.entry("conflict", Conflict::new),
            Map.entry("invalid_argument", InvalidArgument::new),
            Map.entry("permission_denied", PermissionDenied::new),
            Map.entry("read_only", PermissionDenied::new),
            Map.entry("too_large", TooLarge::new),
            Map.entry("quota_exceeded", QuotaExceeded::new),
            Map.entry("unsupported", Unsupported::new),
            Map.entry("unavailable", Unavailable::new),
            Map.entry("request_running", Unavailable::new),
            Map.entry("deadline", Deadline::new),
            Map.entry("corrupt", Corrupt::new),
            Map.entry("internal", Internal::new),
            Map.entry("no_such_route", NoSuchRoute::new),
            Map.entry("outcome_unknown", OutcomeUnknown::new),
            Map.entry("key_reused", KeyReused::new),
            Map.entry("interrupted", Interrupted::new));

    /** What is known about the failure. */
    private final transient Facts facts;

    TreeholdException(Facts facts) {
        super(facts.message, facts.cause);
        this.facts = facts;
    }

    /** Makes the exception of the class that the code has. */
    static TreeholdException of(Facts facts) {
        return CLASSES.getOrDefault(facts.code, TreeholdException::new).apply(facts);
    }

    /** Returns the codes that have a class of their own. */
    static Iterable<String> codes() {
        return CLASSES.keySet();
    }

    /** What is known about a failure. */
    record Facts(
            String code,
            String message,
            int status,
            boolean mayHaveEffect,
            OptionalLong currentVersion,
            String traceId,
            String request,
            Throwable cause) {
        Facts(String code, String message) {
            this(code, message, 0, false, OptionalLong.empty(), null, null, null);
        }

        Facts withEffect(boolean may) {
            return new Facts(code, message, status, may, currentVersion, traceId, request, cause);
        }

        Facts withCause(Throwable known) {
            return new Facts(code, message, status, mayHaveEffect, currentVersion, traceId, request, known);
        }

        Facts withRequest(String known) {
            return new Facts(code, message, status, mayHaveEffect, currentVersion, traceId, known, cause);
        }
    }

    Facts facts() {
        return facts == null ? new Facts("internal", getMessage()) : facts;
    }

    /**
     * Returns the stable code, such as {@code not_found}.
     *
     * @return the code
     */
    public String code() {
        return facts().code;
    }

    /**
     * Returns the HTTP status.
     *
     * @return the status; empty if no answer arrived or no request was sent
     */
    public OptionalInt status() {
        return facts().status == 0 ? OptionalInt.empty() : OptionalInt.of(facts().status);
    }

    /**
     * Returns whether the change may have taken effect despite the failure.
     *
     * @return false if it certainly did not
     */
    public boolean mayHaveEffect() {
        return facts().mayHaveEffect;
    }

    /**
     * Returns the version that the value has, where the server names it.
     *
     * @return the version of a value that is not the expected one
     */
    public OptionalLong currentVersion() {
        return facts().currentVersion;
    }

    /**
     * Returns the id by which the server's log says more.
     *
     * @return the id, where the server named one
     */
    public Optional<String> traceId() {
        return Optional.ofNullable(facts().traceId);
    }

    /**
     * Returns the method and path of the request.
     *
     * @return such as {@code GET /v1/state/ada/s1}
     */
    public Optional<String> request() {
        return Optional.ofNullable(facts().request);
    }

    /** Nothing exists under this name. */
    public static final class NotFound extends TreeholdException {
        private static final long serialVersionUID = 1L;

        NotFound(Facts facts) {
            super(facts);
        }
    }

    /** Something exists already, and the request was to create it. */
    public static final class AlreadyExists extends TreeholdException {
        private static final long serialVersionUID = 1L;

        AlreadyExists(Facts facts) {
            super(facts);
        }
    }

    /** The value changed since the version that the caller expects, or the turn was lost. */
    public static final class Conflict extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Conflict(Facts facts) {
            super(facts);
        }
    }

    /** The server refuses an id, a key, a value or an option. */
    public static final class InvalidArgument extends TreeholdException {
        private static final long serialVersionUID = 1L;

        InvalidArgument(Facts facts) {
            super(facts);
        }
    }

    /** The token is missing or wrong, or has no right to do this. */
    public static final class PermissionDenied extends TreeholdException {
        private static final long serialVersionUID = 1L;

        PermissionDenied(Facts facts) {
            super(facts);
        }
    }

    /** A value or an answer exceeds a limit. */
    public static final class TooLarge extends TreeholdException {
        private static final long serialVersionUID = 1L;

        TooLarge(Facts facts) {
            super(facts);
        }
    }

    /** The change would exceed a quota. */
    public static final class QuotaExceeded extends TreeholdException {
        private static final long serialVersionUID = 1L;

        QuotaExceeded(Facts facts) {
            super(facts);
        }
    }

    /** The server's store cannot do this. */
    public static final class Unsupported extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Unsupported(Facts facts) {
            super(facts);
        }
    }

    /** The server does not answer or is overloaded, also after the attempts of the client. */
    public static final class Unavailable extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Unavailable(Facts facts) {
            super(facts);
        }
    }

    /** The time of the request ended. */
    public static final class Deadline extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Deadline(Facts facts) {
            super(facts);
        }
    }

    /** What is stored, or what the server answered, cannot be read. It never counts as an absent value. */
    public static final class Corrupt extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Corrupt(Facts facts) {
            super(facts);
        }
    }

    /** A fault of the server. */
    public static final class Internal extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Internal(Facts facts) {
            super(facts);
        }
    }

    /** The server has no such route: the address is wrong, or the server is older than this client. */
    public static final class NoSuchRoute extends TreeholdException {
        private static final long serialVersionUID = 1L;

        NoSuchRoute(Facts facts) {
            super(facts);
        }
    }

    /** The server died during the change and does not know whether it took effect. Read the value before you repeat it. */
    public static final class OutcomeUnknown extends TreeholdException {
        private static final long serialVersionUID = 1L;

        OutcomeUnknown(Facts facts) {
            super(facts);
        }
    }

    /** The idempotency key was used for another request. */
    public static final class KeyReused extends TreeholdException {
        private static final long serialVersionUID = 1L;

        KeyReused(Facts facts) {
            super(facts);
        }
    }

    /** The thread was interrupted during the request. Its interrupt status is set. */
    public static final class Interrupted extends TreeholdException {
        private static final long serialVersionUID = 1L;

        Interrupted(Facts facts) {
            super(facts);
        }
    }
}
