package dev.treehold.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

final class JsonTest {
    private static final String[] WRONG = {
        "", " ", "{", "}", "[", "]", "[1,]", "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{'a':1}", "{1:1}", "tru",
        "True",
        "nul", "NaN", "Infinity", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "0x1", "1_0", "\"", "\"\\\"", "\"\\x\"", "\"\\u12\"",
        "\"\\u12g4\"", "\"\t\"", "\"\n\"", "\"\u0000\"", "1 2", "[] []", "\ufeff1", "/**/1", "1//", "\u00a01", "[1", "{\"a\":1", "\u0661",
    };

    private static final String[] RIGHT = {
        "0", "-0", "1.0", "1e2", "1E+2", "-1.5e-300", "12345678901234567890123", "\"\"", "\"a\\u0000b\"", "\"\\ud83c\\udf75\"", "\"\\/\"",
        "\"\ud83c\udf75\"", "\"\u2028\u007f\"", "[]", "{}", "[[],{}]", "{\"\":{\"\":[]}}", "true", "false", "null",
        "{ \"z\" : 1 , \"a\":[ 2 ] }",
    };

    @Test
    void parser_refuses_what_is_not_one_value() {
        for (String text : WRONG) {
            Check.fails(JsonSyntaxException.class, text, () -> Json.parse(text));
            Check.fails(JsonSyntaxException.class, text, () -> new JsonText(text));
            Check.fails(JsonSyntaxException.class, text, () -> new JsonReader("[" + text + "]x").items());
        }
    }

    @Test
    void text_survives_with_its_spaces_numbers_and_order() {
        for (String text : RIGHT) {
            Check.equal(text, new JsonText(" \t\r\n" + text + "\n ").text());
            Json tree = Json.parse(text);
            Check.equal(tree, Json.parse(tree.toText()), text);
            Check.equal(List.of(text, text), new JsonReader(" [ " + text + " , " + text + " ] ").items());
        }
        Check.equal("{\"z\":1.0,\"a\":1e2,\"n\":12345678901234567890123}",
                Json.parse("{ \"z\": 1.0, \"a\": 1e2, \"n\": 12345678901234567890123 }").toText());
    }

    @Test
    void every_cut_of_a_document_is_refused() {
        String text = "{\"a\":[1.5e3,\"x\\u00e9\\n\",null,true,{\"b\":[]}],\"c\":-0}";
        for (int end = 0; end < text.length(); end += 1) {
            String cut = text.substring(0, end);
            Check.fails(JsonSyntaxException.class, cut, () -> Json.parse(cut));
        }
    }

    @Test
    void object_with_a_member_twice_is_text_but_no_tree() {
        String text = "{\"a\":1,\"\\u0061\":2}";
        Check.equal(text, new JsonText(text).text());
        Check.fails(JsonSyntaxException.class, () -> Json.parse(text));
    }

    @Test
    void nesting_is_bounded_in_every_direction() {
        for (String[] brackets : new String[][] {{"[", "]"}, {"{\"a\":", "}"}}) {
            String deepest = brackets[0].repeat(Json.DEPTH_MAX) + "1" + brackets[1].repeat(Json.DEPTH_MAX);
            String deeper = brackets[0] + deepest + brackets[1];
            Check.equal(deepest, Json.parse(deepest).toText());
            Check.equal(deepest, Json.from(Json.parse(deepest).plain()).toText());
            Check.fails(JsonSyntaxException.class, () -> Json.parse(deeper));
            Check.fails(JsonSyntaxException.class, () -> new JsonText(deeper));
            Check.fails(JsonSyntaxException.class, () -> new JsonText("[".repeat(1_000_000)));
        }
        List<Object> endless = new ArrayList<>();
        endless.add(endless);
        Check.fails(IllegalArgumentException.class, () -> Json.from(endless));
    }

    @Test
    void random_values_come_back() {
        long seed = Long.getLong("seed", 1L);
        Random random = new Random(seed);
        for (int round = 0; round < 2_000; round += 1) {
            Json value = value(random, 0);
            String about = "seed " + seed + ", round " + round;
            Check.equal(value, Json.parse(value.toText()), about);
            Check.equal(value.toText(), new JsonText(value.toText()).text(), about);
            // Half of a surrogate pair is written as an escape, so the text is always Unicode.
            Segments.utf8("text", value.toText());
        }
    }

    @Test
    void random_bytes_never_break_the_parser() {
        Random random = new Random(Long.getLong("seed", 1L));
        String alphabet = "{}[]\",:\\u0019eE+-. truefalsn\n\ud83c\udf75\u0000";
        for (int round = 0; round < 20_000; round += 1) {
            StringBuilder text = new StringBuilder();
            for (int length = random.nextInt(12); length > 0; length -= 1) {
                text.append(alphabet.charAt(random.nextInt(alphabet.length())));
            }
            boolean isText = accepts(() -> new JsonText(text.toString()));
            boolean isTree = accepts(() -> Json.parse(text.toString()));
            Check.isTrue(isText || !isTree, "only the tree accepts: " + text);
        }
    }

    private static boolean accepts(Runnable parse) {
        try {
            parse.run();
            return true;
        } catch (JsonSyntaxException refused) {
            return false;
        }
    }

    @Test
    void plain_values_keep_their_meaning() {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("text", "é\u0001\ud83c");
        map.put("long", Long.MIN_VALUE);
        map.put("decimal", new BigDecimal("1.10"));
        map.put("nothing", null);
        map.put("list", List.of(true, List.of(), Map.of()));
        Check.equal(map, Json.from(map).plain());
        Check.equal(map, Json.parse(Json.from(map).toText()).plain());
        for (Object bad : new Object[] {Double.NaN, Double.POSITIVE_INFINITY, Float.NaN, new Object(), Map.of(1, 2), new int[0]}) {
            Check.fails(IllegalArgumentException.class, String.valueOf(bad), () -> Json.from(bad));
        }
    }

    private static Json value(Random random, int depth) {
        switch (random.nextInt(depth > 4 ? 4 : 6)) {
            case 0:
                return Json.parse("null");
            case 1:
                return Json.of(random.nextBoolean());
            case 2:
                return Json.from(random.nextBoolean() ? (Number) random.nextLong() : (Number) random.nextGaussian());
            case 3:
                return Json.of(text(random));
            case 4:
                List<Json> items = new ArrayList<>();
                for (int count = random.nextInt(4); count > 0; count -= 1) {
                    items.add(value(random, depth + 1));
                }
                return new Json.Arr(items);
            default:
                Map<String, Json> members = new LinkedHashMap<>();
                for (int count = random.nextInt(4); count > 0; count -= 1) {
                    members.put(text(random), value(random, depth + 1));
                }
                return new Json.Obj(members);
        }
    }

    static String text(Random random) {
        StringBuilder text = new StringBuilder();
        for (int length = random.nextInt(6); length > 0; length -= 1) {
            switch (random.nextInt(4)) {
                case 0 -> text.append((char) random.nextInt(0x80));
                case 1 -> text.append((char) random.nextInt(0x10000));
                case 2 -> text.appendCodePoint(0x1f300 + random.nextInt(200));
                default -> text.append("\"\\/:%-.~".charAt(random.nextInt(8)));
            }
        }
        return text.toString();
    }
}
