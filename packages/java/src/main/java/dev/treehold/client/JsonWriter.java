package dev.treehold.client;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes JSON. */
final class JsonWriter {
    private JsonWriter() {}

    static void write(StringBuilder text, Json value) {
        if (value instanceof Json.Obj object) {
            char before = '{';
            for (Map.Entry<String, Json> member : object.members().entrySet()) {
                text.append(before);
                string(text, member.getKey());
                text.append(':');
                write(text, member.getValue());
                before = ',';
            }
            text.append(before == '{' ? "{}" : "}");
        } else if (value instanceof Json.Arr array) {
            char before = '[';
            for (Json item : array.items()) {
                text.append(before);
                write(text, item);
                before = ',';
            }
            text.append(before == '[' ? "[]" : "]");
        } else if (value instanceof Json.Str string) {
            string(text, string.value());
        } else if (value instanceof Json.Num number) {
            text.append(number.literal());
        } else if (value instanceof Json.Bool bool) {
            text.append(bool.value());
        } else {
            text.append("null");
        }
    }

    private static void string(StringBuilder text, String value) {
        text.append('"');
        for (int at = 0; at < value.length(); at += 1) {
            char unit = value.charAt(at);
            switch (unit) {
                case '"' -> text.append("\\\"");
                case '\\' -> text.append("\\\\");
                case '\n' -> text.append("\\n");
                case '\r' -> text.append("\\r");
                case '\t' -> text.append("\\t");
                default -> {
                    // UTF-8 cannot express half of a surrogate pair.
                    if (unit < ' ' || isLone(value, at)) {
                        text.append(String.format("\\u%04x", (int) unit));
                    } else {
                        text.append(unit);
                    }
                }
            }
        }
        text.append('"');
    }

    private static boolean isLone(String value, int at) {
        char unit = value.charAt(at);
        if (Character.isHighSurrogate(unit)) {
            return at + 1 == value.length() || !Character.isLowSurrogate(value.charAt(at + 1));
        }
        return Character.isLowSurrogate(unit) && (at == 0 || !Character.isHighSurrogate(value.charAt(at - 1)));
    }

    static Json from(Object value, int depth) {
        if (value == null) {
            return Json.Null.NULL;
        }
        if (value instanceof Json json) {
            return json;
        }
        if (value instanceof JsonText text) {
            return text.tree();
        }
        if (value instanceof CharSequence || value instanceof Character || value instanceof Enum<?>) {
            return new Json.Str(value.toString());
        }
        if (value instanceof Boolean bool) {
            return new Json.Bool(bool);
        }
        if (value instanceof Number number) {
            return new Json.Num(literal(number));
        }
        if (depth == Json.DEPTH_MAX) {
            throw new IllegalArgumentException("the value nests deeper than " + Json.DEPTH_MAX + " levels; flatten it");
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Json> members = new LinkedHashMap<>();
            map.forEach((name, member) -> {
                if (!(name instanceof String)) {
                    throw new IllegalArgumentException("JSON names members by strings; convert the keys of the map");
                }
                members.put((String) name, from(member, depth + 1));
            });
            return new Json.Obj(members);
        }
        if (value instanceof Iterable<?> iterable) {
            List<Json> items = new ArrayList<>();
            iterable.forEach(item -> items.add(from(item, depth + 1)));
            return new Json.Arr(items);
        }
        throw new IllegalArgumentException(
                "a " + value.getClass().getName() + " has no JSON form here; give the store codecs for it (StateCodecs)");
    }

    private static String literal(Number number) {
        if (number instanceof Double || number instanceof Float) {
            double value = number.doubleValue();
            if (Double.isNaN(value) || Double.isInfinite(value)) {
                throw new IllegalArgumentException("JSON cannot express " + number + "; store null or a string");
            }
            return number.toString();
        }
        if (number instanceof Long || number instanceof Integer || number instanceof Short || number instanceof Byte
                || number instanceof BigInteger || number instanceof BigDecimal) {
            return number.toString();
        }
        throw new IllegalArgumentException("a " + number.getClass().getName() + " has no JSON form; convert it to a long or a BigDecimal");
    }
}
