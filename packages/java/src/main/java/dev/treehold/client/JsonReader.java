package dev.treehold.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Parses JSON strictly. Each method reads the text from its beginning to its end, so use a reader once. */
final class JsonReader {
    private final String text;
    private int at;

    JsonReader(String text) {
        this.text = Objects.requireNonNull(text, "text");
    }

    /** Reads one value as a tree. */
    Json tree() {
        skipSpace();
        Json value = value(0);
        end();
        return value;
    }

    /** Checks that the text is one value and returns it without the white space around it. */
    String only() {
        skipSpace();
        String only = raw(0);
        end();
        return only;
    }

    /** Reads an array and returns the texts of its items. */
    List<String> items() {
        skipSpace();
        expect('[', "an array begins with `[`");
        List<String> items = new ArrayList<>();
        if (!isClosed(']')) {
            do {
                skipSpace();
                items.add(raw(1));
            } while (isContinued(']'));
        }
        end();
        return items;
    }

    static void checkNumber(String literal) {
        JsonReader reader = new JsonReader(literal);
        reader.skipNumber();
        reader.endExactly();
    }

    private Json value(int depth) {
        switch (peek()) {
            case '{':
                return object(depth + 1);
            case '[':
                return array(depth + 1);
            case '"':
                return new Json.Str(string());
            case 't':
                word("true");
                return new Json.Bool(true);
            case 'f':
                word("false");
                return new Json.Bool(false);
            case 'n':
                word("null");
                return Json.Null.NULL;
            default:
                int from = at;
                skipNumber();
                return new Json.Num(text.substring(from, at));
        }
    }

    private Json object(int depth) {
        checkDepth(depth);
        at += 1;
        Map<String, Json> members = new LinkedHashMap<>();
        if (!isClosed('}')) {
            do {
                int from = memberName();
                String name = string();
                colon();
                if (members.put(name, value(depth)) != null) {
                    throw new JsonSyntaxException("the object has two members of this name", from);
                }
            } while (isContinued('}'));
        }
        return new Json.Obj(members);
    }

    private Json array(int depth) {
        checkDepth(depth);
        at += 1;
        List<Json> items = new ArrayList<>();
        if (!isClosed(']')) {
            do {
                skipSpace();
                items.add(value(depth));
            } while (isContinued(']'));
        }
        return new Json.Arr(items);
    }

    /** Reads one value and returns its text. */
    private String raw(int depth) {
        int from = at;
        skip(depth);
        return text.substring(from, at);
    }

    /** Reads one value without keeping it. */
    private void skip(int depth) {
        switch (peek()) {
            case '{' -> {
                checkDepth(depth + 1);
                at += 1;
                if (!isClosed('}')) {
                    do {
                        memberName();
                        string();
                        colon();
                        skip(depth + 1);
                    } while (isContinued('}'));
                }
            }
            case '[' -> {
                checkDepth(depth + 1);
                at += 1;
                if (!isClosed(']')) {
                    do {
                        skipSpace();
                        skip(depth + 1);
                    } while (isContinued(']'));
                }
            }
            case '"' -> string();
            case 't' -> word("true");
            case 'f' -> word("false");
            case 'n' -> word("null");
            default -> skipNumber();
        }
    }

    private void checkDepth(int depth) {
        if (depth > Json.DEPTH_MAX) {
            throw new JsonSyntaxException("it nests deeper than " + Json.DEPTH_MAX + " levels; flatten it", at);
        }
    }

    /** Moves to the name of a member and returns its offset. */
    private int memberName() {
        skipSpace();
        if (peek() != '"') {
            throw new JsonSyntaxException("the name of a member is a string", at);
        }
        return at;
    }

    private void colon() {
        skipSpace();
        expect(':', "`:` follows the name of a member");
        skipSpace();
    }

    /** Returns whether the array or object ends before its first item. */
    private boolean isClosed(char close) {
        skipSpace();
        if (at < text.length() && text.charAt(at) == close) {
            at += 1;
            return true;
        }
        return false;
    }

    /** Returns whether another item follows. */
    private boolean isContinued(char close) {
        skipSpace();
        char next = peek();
        if (next != ',' && next != close) {
            throw new JsonSyntaxException("`,` or `" + close + "` follows an item", at);
        }
        at += 1;
        return next == ',';
    }

    private String string() {
        at += 1;
        int from = at;
        StringBuilder unescaped = null;
        while (true) {
            char next = peek();
            if (next == '"') {
                String rest = text.substring(from, at);
                at += 1;
                return unescaped == null ? rest : unescaped.append(rest).toString();
            }
            if (next < ' ') {
                throw new JsonSyntaxException("a string holds a control character; escape it", at);
            }
            if (next == '\\') {
                unescaped = (unescaped == null ? new StringBuilder() : unescaped).append(text, from, at);
                at += 1;
                unescaped.append(escaped());
                from = at;
            } else {
                at += 1;
            }
        }
    }

    private char escaped() {
        char kind = peek();
        at += 1;
        switch (kind) {
            case '"', '\\', '/':
                return kind;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                int unit = 0;
                for (int digit = 0; digit < 4; digit += 1) {
                    int value = hex(peek());
                    if (value < 0) {
                        throw new JsonSyntaxException("four hexadecimal digits follow `\\u`", at);
                    }
                    unit = unit * 16 + value;
                    at += 1;
                }
                return (char) unit;
            default:
                throw new JsonSyntaxException("there is no such escape", at - 1);
        }
    }

    private static int hex(char digit) {
        if (digit >= '0' && digit <= '9') {
            return digit - '0';
        }
        if (digit >= 'a' && digit <= 'f') {
            return digit - 'a' + 10;
        }
        return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
    }

    private void skipNumber() {
        if (isAt('-')) {
            at += 1;
        }
        if (isAt('0')) {
            at += 1;
        } else {
            digits();
        }
        if (isAt('.')) {
            at += 1;
            digits();
        }
        if (isAt('e') || isAt('E')) {
            at += 1;
            if (isAt('+') || isAt('-')) {
                at += 1;
            }
            digits();
        }
    }

    private void digits() {
        int from = at;
        while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
            at += 1;
        }
        if (at == from) {
            throw new JsonSyntaxException("a value or a digit is missing", at);
        }
    }

    private void word(String word) {
        if (!text.startsWith(word, at)) {
            throw new JsonSyntaxException("there is no such word", at);
        }
        at += word.length();
    }

    private void expect(char wanted, String otherwise) {
        if (!isAt(wanted)) {
            throw new JsonSyntaxException(otherwise, at);
        }
        at += 1;
    }

    private boolean isAt(char wanted) {
        return at < text.length() && text.charAt(at) == wanted;
    }

    private char peek() {
        if (at >= text.length()) {
            throw new JsonSyntaxException("it ends too early", at);
        }
        return text.charAt(at);
    }

    private void skipSpace() {
        while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
            at += 1;
        }
    }

    private void end() {
        skipSpace();
        endExactly();
    }

    private void endExactly() {
        if (at < text.length()) {
            throw new JsonSyntaxException("more follows the value", at);
        }
    }
}
