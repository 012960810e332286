package dev.treehold.client;

import dev.treehold.client.TreeholdException.Facts;

/** Calls codecs and reports their failures. */
final class Codecs {
    private static final StateCodecs JSON = StateCodecs.json();

    private Codecs() {}

    /** Returns the codec of a type. JSON itself needs none of the caller's. */
    static <T> StateCodec<T> of(StateCodecs codecs, Class<T> type) {
        boolean isJson = type == JsonText.class || Json.class.isAssignableFrom(type);
        return (isJson ? JSON : codecs).codec(type);
    }

    /** Writes a value and checks that the codec wrote one value: a list could not be taken apart again otherwise. */
    static <T> JsonText encode(StateCodec<T> codec, T value) {
        String name = value.getClass().getName();
        String text;
        try {
            text = codec.encode(value);
        } catch (Exception cause) {
            throw new IllegalArgumentException("the codec cannot write a " + name + ": " + cause.getMessage(), cause);
        }
        try {
            return new JsonText(text);
        } catch (JsonSyntaxException | NullPointerException cause) {
            throw new IllegalArgumentException("the codec wrote a " + name + " as something other than one JSON value", cause);
        }
    }

    static <T> T decode(StateCodec<T> codec, String where, String json) {
        T value;
        try {
            value = codec.decode(json);
        } catch (Exception cause) {
            throw corrupt(where, cause);
        }
        if (value == null) {
            throw corrupt(where, null);
        }
        return value;
    }

    private static TreeholdException corrupt(String where, Exception cause) {
        String message = "the codec cannot read the stored value; read it as a `JsonText` to see it";
        return TreeholdException.of(new Facts("corrupt", message).withRequest(where).withCause(cause));
    }
}
