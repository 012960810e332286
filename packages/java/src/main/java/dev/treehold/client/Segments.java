package dev.treehold.client;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;

/** Ids as segments of a URL. */
final class Segments {
    /** The segment of the anonymous user. */
    static final String ANONYMOUS = "-";

    private Segments() {}

    /**
     * Checks an id that cannot travel in a URL, and escapes it as one segment. All other ids are checked by the server.
     *
     * @throws IllegalArgumentException for an empty or blank id, {@code .}, {@code ..} and half of a surrogate pair
     */
    static String id(String what, String id) {
        if (id == null || id.isBlank()) {
            throw new IllegalArgumentException("the " + what + " id is " + (id == null ? "null" : "blank") + "; name one");
        }
        if (id.equals(".") || id.equals("..")) {
            // Programs between client and server remove these segments, also when they are escaped.
            throw new IllegalArgumentException("the " + what + " id `" + id + "` cannot be part of a URL; choose another one");
        }
        return encode(what + " id", id);
    }

    /** Returns the segment of a user; null and blank users are the anonymous one. No user's id has the same segment. */
    static String user(String userId) {
        if (userId == null || userId.isBlank()) {
            return ANONYMOUS;
        }
        return userId.equals(ANONYMOUS) ? "%2D" : id("user", userId);
    }

    /** Escapes all but the unreserved characters of RFC 3986. */
    static String encode(String what, String text) {
        byte[] bytes = utf8(what, text);
        StringBuilder encoded = new StringBuilder(bytes.length + 16);
        for (byte one : bytes) {
            char unit = (char) (one & 0xff);
            boolean isPlain = unit >= 'a' && unit <= 'z' || unit >= 'A' && unit <= 'Z' || unit >= '0' && unit <= '9'
                    || unit == '-' || unit == '.' || unit == '_' || unit == '~';
            if (isPlain) {
                encoded.append(unit);
            } else {
                encoded.append('%').append(Character.toUpperCase(Character.forDigit(unit >> 4, 16)))
                        .append(Character.toUpperCase(Character.forDigit(unit & 15, 16)));
            }
        }
        return encoded.toString();
    }

    /** Encodes as UTF-8, which half of a surrogate pair does not have. {@code String.getBytes} would store a question mark. */
    static byte[] utf8(String what, String text) {
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder()
                    .onMalformedInput(CodingErrorAction.REPORT)
                    .onUnmappableCharacter(CodingErrorAction.REPORT)
                    .encode(CharBuffer.wrap(text));
            byte[] exact = new byte[bytes.remaining()];
            bytes.get(exact);
            return exact;
        } catch (CharacterCodingException notUnicode) {
            throw new IllegalArgumentException(
                    "the " + what + " contains half of a surrogate pair; UTF-8 cannot express it", notUnicode);
        }
    }
}
