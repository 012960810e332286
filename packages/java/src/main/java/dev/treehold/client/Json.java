package dev.treehold.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * A JSON value (RFC 8259) as an immutable tree. Objects keep the order of their members, and numbers keep their digits.
 *
 * <p>A value whose exact text matters is a {@link JsonText}.
 */
public sealed interface Json {
    /** How deep arrays and objects may nest, as on the server. */
    int DEPTH_MAX = 100;

    /**
     * Parses one value.
     *
     * @param text the text of one value, with optional white space around it
     * @return the value
     * @throws JsonSyntaxException for any other text, for an object that names a member twice, and for nesting deeper than
     *     {@link #DEPTH_MAX}
     */
    static Json parse(String text) {
        return new JsonReader(text).tree();
    }

    /**
     * Writes the value without white space.
     *
     * @return the text
     */
    default String toText() {
        StringBuilder text = new StringBuilder();
        JsonWriter.write(text, this);
        return text.toString();
    }

    /**
     * Makes a string, or null.
     *
     * @param value the characters, or null
     * @return the value
     */
    static Json of(String value) {
        return value == null ? Null.NULL : new Str(value);
    }

    /**
     * Makes a number.
     *
     * @param value the number
     * @return the value
     */
    static Json of(long value) {
        return new Num(Long.toString(value));
    }

    /**
     * Makes a boolean.
     *
     * @param value the boolean
     * @return the value
     */
    static Json of(boolean value) {
        return new Bool(value);
    }

    /**
     * Converts plain Java values: null, strings, booleans, numbers, lists, maps with string keys, and values of this type.
     *
     * @param value the value
     * @return the same value as JSON
     * @throws IllegalArgumentException for a value of another class, for NaN and infinities, and for nesting deeper than
     *     {@link #DEPTH_MAX}
     */
    static Json from(Object value) {
        return JsonWriter.from(value, 0);
    }

    /**
     * Converts to plain Java values: null, {@link String}, {@link Boolean}, {@link Long} or {@link BigDecimal}, {@link List},
     * {@link Map}.
     *
     * @return the plain value; its lists and maps cannot be changed
     */
    Object plain();

    /** The value {@code null}. */
    record Null() implements Json {
        static final Null NULL = new Null();

        @Override
        public Object plain() {
            return null;
        }

        @Override
        public String toString() {
            return toText();
        }
    }

    /**
     * A boolean.
     *
     * @param value the boolean
     */
    record Bool(boolean value) implements Json {
        @Override
        public Object plain() {
            return value;
        }

        @Override
        public String toString() {
            return toText();
        }
    }

    /**
     * A number. Two numbers are equal if their literals are.
     *
     * @param literal the number as JSON writes it
     */
    record Num(String literal) implements Json {
        /**
         * Makes a number of its literal.
         *
         * @param literal the number as JSON writes it
         * @throws JsonSyntaxException for text that is not a JSON number
         */
        public Num {
            JsonReader.checkNumber(literal);
        }

        /**
         * Returns the number exactly.
         *
         * @return the number
         * @throws NumberFormatException if its exponent is beyond that of {@link BigDecimal}
         */
        public BigDecimal decimal() {
            return new BigDecimal(literal);
        }

        @Override
        public Object plain() {
            try {
                return Long.valueOf(literal);
            } catch (NumberFormatException notLong) {
                return decimal();
            }
        }

        @Override
        public String toString() {
            return toText();
        }
    }

    /**
     * A string.
     *
     * @param value its characters
     */
    record Str(String value) implements Json {
        /**
         * Makes a string.
         *
         * @param value its characters
         */
        public Str {
            Objects.requireNonNull(value, "value");
        }

        @Override
        public Object plain() {
            return value;
        }

        @Override
        public String toString() {
            return toText();
        }
    }

    /**
     * An array.
     *
     * @param items its items
     */
    record Arr(List<Json> items) implements Json {
        /**
         * Makes an array.
         *
         * @param items its items
         */
        public Arr {
            items = List.copyOf(items);
        }

        @Override
        public Object plain() {
            List<Object> plain = new ArrayList<>(items.size());
            items.forEach(item -> plain.add(item.plain()));
            return Collections.unmodifiableList(plain);
        }

        @Override
        public String toString() {
            return toText();
        }
    }

    /**
     * An object.
     *
     * @param members its members, in order
     */
    record Obj(Map<String, Json> members) implements Json {
        /**
         * Makes an object.
         *
         * @param members its members, in order
         */
        public Obj {
            Map<String, Json> copy = new LinkedHashMap<>(members);
            copy.forEach((name, value) -> {
                Objects.requireNonNull(name, "the name of a member");
                Objects.requireNonNull(value, "the value of a member");
            });
            members = Collections.unmodifiableMap(copy);
        }

        /**
         * Returns a member.
         *
         * @param name its name
         * @return its value; empty if there is none
         */
        public Optional<Json> get(String name) {
            return Optional.ofNullable(members.get(name));
        }

        /**
         * Returns this object with one member set. A member of the same name keeps its place.
         *
         * @param name its name
         * @param value its value
         * @return the new object
         */
        public Obj with(String name, Json value) {
            Map<String, Json> changed = new LinkedHashMap<>(members);
            changed.put(name, value);
            return new Obj(changed);
        }

        @Override
        public Object plain() {
            Map<String, Object> plain = new LinkedHashMap<>();
            members.forEach((name, value) -> plain.put(name, value.plain()));
            return Collections.unmodifiableMap(plain);
        }

        @Override
        public String toString() {
            return toText();
        }
    }
}
