package dev.treehold.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Items by namespace and key, against a real server. */
final class BaseStoreTest {
    private static final List<String> TEA = List.of("shop", "tea");

    private static TreeholdBaseStore items() throws Exception {
        return new TreeholdBaseStore(World.client(), World.fresh("agent"));
    }

    @Test
    void item_comes_back_with_all_kinds_of_values() throws Exception {
        TreeholdBaseStore items = items();
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("text", "é\ud83c\udf75\u0000\"");
        value.put("number", 7L);
        value.put("decimal", new BigDecimal("1.10"));
        value.put("list", List.of(true, List.of(), Map.of("a", 1L)));
        value.put("nothing", null);
        Check.equal(null, items.get(TEA, "k"));
        items.put(TEA, "k", value);
        Check.equal(new StoreItem("k", value, 1), items.get(TEA, "k"));
        items.put(TEA, "k", Map.of());
        Check.equal(new StoreItem("k", Map.of(), 2), items.get(TEA, "k"));
        items.delete(TEA, "k");
        items.delete(TEA, "k");
        Check.equal(null, items.get(TEA, "k"));
    }

    @Test
    void version_0_creates_and_another_version_compares() throws Exception {
        TreeholdBaseStore items = items();
        Check.isTrue(!items.putIfVersion(TEA, "k", Map.of(), 1), "there is no item of version 1");
        Check.equal(null, items.get(TEA, "k"));
        Check.isTrue(items.putIfVersion(TEA, "k", Map.of("by", 1), 0), "there is none yet");
        Check.isTrue(!items.putIfVersion(TEA, "k", Map.of("by", 2), 0), "there is one");
        Check.isTrue(items.putIfVersion(TEA, "k", Map.of("by", 3), 1), "it has version 1");
        Check.isTrue(!items.putIfVersion(TEA, "k", Map.of("by", 4), 1), "it has version 2");
        Check.equal(new StoreItem("k", Map.of("by", 3L), 2), items.get(TEA, "k"));
        Check.fails(IllegalArgumentException.class, () -> items.putIfVersion(TEA, "k", Map.of(), -1));
    }

    @Test
    void eight_threads_of_compare_and_set_lose_nothing() throws Exception {
        TreeholdBaseStore items = items();
        int threads = 8;
        int rounds = 10;
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> all = new ArrayList<>();
        for (int at = 0; at < threads; at += 1) {
            all.add(pool.submit(() -> {
                for (int round = 0; round < rounds; ) {
                    StoreItem seen = items.get(TEA, "k");
                    long count = seen == null ? 0 : (Long) seen.value().get("count");
                    round += items.putIfVersion(TEA, "k", Map.of("count", count + 1), seen == null ? 0 : seen.version()) ? 1 : 0;
                }
            }));
        }
        for (Future<?> one : all) {
            one.get();
        }
        pool.shutdown();
        Check.equal(new StoreItem("k", Map.of("count", (long) threads * rounds), (long) threads * rounds), items.get(TEA, "k"));
    }

    @Test
    void search_finds_a_namespace_and_those_beneath_it_in_order() throws Exception {
        TreeholdBaseStore items = items();
        List<List<String>> namespaces = List.of(List.of("a"), List.of("a", "b"), List.of("a", "b", "c"), List.of("ab"), List.of("a/b"));
        for (List<String> namespace : namespaces) {
            for (String key : List.of("2", "1", "/", "a:b")) {
                items.put(namespace, key, Map.of("at", namespace, "key", key));
            }
        }
        Check.equal(12, items.search(List.of("a"), 100, 0).size());
        Check.equal(8, items.search(List.of("a", "b"), 100, 0).size());
        Check.equal(4, items.search(List.of("a/b"), 100, 0).size());
        Check.equal(20, items.search(List.of(), 100, 0).size());
        Check.equal(List.of(), items.search(List.of("b"), 100, 0));
        List<StoreItem> paged = new ArrayList<>();
        for (int offset = 0; offset < 12; offset += 5) {
            paged.addAll(items.search(List.of("a"), 5, offset));
        }
        Check.equal(items.search(List.of("a"), 100, 0), paged);
        Check.fails(IllegalArgumentException.class, () -> items.search(List.of(), 0, 0));
        Check.fails(IllegalArgumentException.class, () -> items.search(List.of(), 1, -1));
        Check.equal(List.of(), items().search(List.of(), 100, 0), "an agent sees the items of another");
    }

    /** The server ends a page of large items early. A caller that pages by offset would take the short list for the last one. */
    @Test
    void search_returns_as_many_items_as_asked_for_however_large_they_are() throws Exception {
        TreeholdBaseStore items = items();
        String text = "x".repeat(900_000);
        for (int number = 0; number < 12; number += 1) {
            items.put(List.of("large"), "k" + (10 + number), Map.of("text", text));
        }
        List<String> keys = items.search(List.of("large"), 100, 0).stream().map(StoreItem::key).toList();
        Check.equal(List.of("k10", "k11", "k12", "k13", "k14", "k15", "k16", "k17", "k18", "k19", "k20", "k21"), keys);
        Check.equal(keys.subList(1, 11), items.search(List.of("large"), 10, 1).stream().map(StoreItem::key).toList());
    }

    @Test
    void random_keys_and_namespaces_are_kept_or_refused() throws Exception {
        TreeholdBaseStore items = items();
        Random random = new Random(Long.getLong("seed", 1L));
        Map<List<String>, Map<String, Object>> model = new HashMap<>();
        for (int round = 0; round < 150; round += 1) {
            List<String> namespace = new ArrayList<>(List.of("root"));
            for (int depth = random.nextInt(3); depth > 0; depth -= 1) {
                namespace.add(JsonTest.text(random));
            }
            String key = JsonTest.text(random);
            Map<String, Object> value = Map.of("round", (long) round);
            List<String> at = new ArrayList<>(namespace);
            at.add("key " + key);
            try {
                items.put(namespace, key, value);
                model.put(at, value);
            } catch (IllegalArgumentException | TreeholdException.InvalidArgument refused) {
                Check.isTrue(!model.containsKey(at), "refused once and kept once: " + at);
            }
        }
        Check.isTrue(model.size() > 40, "too few were kept: " + model.size());
        model.forEach((at, value) -> {
            List<String> namespace = at.subList(0, at.size() - 1);
            Check.equal(value, items.get(namespace, at.get(at.size() - 1).substring(4)).value(), at.toString());
        });
        Check.equal(model.size(), items.search(List.of("root"), 1000, 0).size());
    }

    @Test
    void value_over_the_limit_is_too_large() throws Exception {
        TreeholdBaseStore items = items();
        items.put(TEA, "k", Map.of("kept", true));
        Check.fails(TreeholdException.TooLarge.class, () -> items.put(TEA, "k", Map.of("x", "x".repeat(1 << 20))));
        Check.equal(1L, items.get(TEA, "k").version());
        for (String bad : new String[] {null, "", " "}) {
            Check.fails(IllegalArgumentException.class, () -> items.get(TEA, bad));
            Check.fails(IllegalArgumentException.class, () -> items.put(TEA, bad, Map.of()));
            Check.fails(IllegalArgumentException.class, () -> items.delete(TEA, bad));
            Check.fails(IllegalArgumentException.class, () -> new TreeholdBaseStore(World.client(), bad));
        }
    }
}
