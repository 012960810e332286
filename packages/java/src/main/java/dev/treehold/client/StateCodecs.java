package dev.treehold.client;

import java.util.Objects;

/**
 * The codecs of all types that a store keeps.
 *
 * <p>With Jackson:
 *
 * <pre>{@code
 * ObjectMapper mapper = new ObjectMapper();
 * StateCodecs codecs = StateCodecs.of(mapper::writeValueAsString, mapper::readValue);
 * }</pre>
 *
 * <p>With Gson:
 *
 * <pre>{@code
 * Gson gson = new Gson();
 * StateCodecs codecs = StateCodecs.of(gson::toJson, gson::fromJson);
 * }</pre>
 */
public interface StateCodecs {
    /**
     * Returns the codec of a type.
     *
     * @param type the type; for a save, the class of the value
     * @param <T> the type
     * @return its codec
     * @throws IllegalArgumentException if there is none
     */
    <T> StateCodec<T> codec(Class<T> type);

    /** Writes values of any type. */
    @FunctionalInterface
    interface Encoder {
        /**
         * Writes a value.
         *
         * @param value the value
         * @return the text of one JSON value
         * @throws Exception if it cannot be written
         */
        String encode(Object value) throws Exception;
    }

    /** Reads values of any type. */
    @FunctionalInterface
    interface Decoder {
        /**
         * Reads a value.
         *
         * @param json the text of one JSON value
         * @param type the type
         * @param <T> the type
         * @return the value
         * @throws Exception if it cannot be read
         */
        <T> T decode(String json, Class<T> type) throws Exception;
    }

    /**
     * Uses one library for all types.
     *
     * @param encoder writes values
     * @param decoder reads values
     * @return the codecs
     */
    static StateCodecs of(Encoder encoder, Decoder decoder) {
        Objects.requireNonNull(encoder, "encoder");
        Objects.requireNonNull(decoder, "decoder");
        return new StateCodecs() {
            @Override
            public <T> StateCodec<T> codec(Class<T> type) {
                return new StateCodec<>() {
                    @Override
                    public String encode(T value) throws Exception {
                        return encoder.encode(value);
                    }

                    @Override
                    public T decode(String json) throws Exception {
                        return decoder.decode(json, type);
                    }
                };
            }
        };
    }

    /**
     * Returns the codecs that need no library: {@link JsonText}, {@link Json}, and the plain values that {@link Json#from} converts
     * ({@link java.util.Map}, {@link java.util.List}, strings, numbers, booleans).
     *
     * @return the codecs
     */
    static StateCodecs json() {
        return of(
                value -> value instanceof JsonText text ? text.text() : Json.from(value).toText(),
                new Decoder() {
                    @Override
                    public <T> T decode(String json, Class<T> type) {
                        Object value;
                        if (type == JsonText.class) {
                            value = new JsonText(json);
                        } else if (Json.class.isAssignableFrom(type)) {
                            value = Json.parse(json);
                        } else {
                            value = Json.parse(json).plain();
                        }
                        return type.cast(value);
                    }
                });
    }

    /**
     * Returns these codecs with another one for a type and its subtypes.
     *
     * @param type the type
     * @param codec its codec
     * @param <A> the type
     * @return the codecs
     */
    default <A> StateCodecs with(Class<A> type, StateCodec<A> codec) {
        Objects.requireNonNull(type, "type");
        Objects.requireNonNull(codec, "codec");
        StateCodecs others = this;
        return new StateCodecs() {
            @Override
            public <T> StateCodec<T> codec(Class<T> wanted) {
                if (!type.isAssignableFrom(wanted)) {
                    return others.codec(wanted);
                }
                return new StateCodec<>() {
                    @Override
                    public String encode(T value) throws Exception {
                        return codec.encode(type.cast(value));
                    }

                    @Override
                    public T decode(String json) throws Exception {
                        return wanted.cast(codec.decode(json));
                    }
                };
            }
        };
    }
}
