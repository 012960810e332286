package dev.treehold.client;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * The request that a running call ends early.
 *
 * @param message what the user says about it: a text, or a message as JSON; null for nothing
 * @param source who asks
 */
public record Interrupt(Json message, Source source) {
    /** Who asks that a call ends. */
    public enum Source {
        /** The user. */
        USER,
        /** The system, because it shuts down. */
        SYSTEM
    }

    /**
     * Makes an interrupt.
     *
     * @param message what the user says about it: a text, or a message as JSON; null for nothing
     * @param source who asks
     */
    public Interrupt {
        Objects.requireNonNull(source, "source");
        message = message instanceof Json.Null ? null : message;
    }

    /**
     * Makes an interrupt by the user without a message.
     *
     * @return the interrupt
     */
    public static Interrupt byUser() {
        return new Interrupt(null, Source.USER);
    }

    /**
     * Makes an interrupt by the user.
     *
     * @param message what the user says
     * @return the interrupt
     */
    public static Interrupt byUser(String message) {
        return new Interrupt(Json.of(message), Source.USER);
    }

    /**
     * Returns the message if it is a text.
     *
     * @return the text; empty without a message and for one of another form
     */
    public Optional<String> text() {
        return message instanceof Json.Str text ? Optional.of(text.value()) : Optional.empty();
    }

    Json toJson() {
        Map<String, Json> fields = new LinkedHashMap<>();
        if (message != null) {
            fields.put("message", message);
        }
        fields.put("source", Json.of(source == Source.USER ? "user" : "system"));
        return new Json.Obj(fields);
    }

    static Optional<Interrupt> of(Answer answer, Json value) {
        if (value instanceof Json.Null) {
            return Optional.empty();
        }
        if (!(value instanceof Json.Obj fields)) {
            throw answer.unreadable("has an interrupt that is not an object", null);
        }
        String source = answer.optionalString(fields, "source");
        return Optional.of(new Interrupt(fields.members().get("message"), "system".equals(source) ? Source.SYSTEM : Source.USER));
    }
}
