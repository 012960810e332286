package dev.treehold.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * The items of one agent on a treehold server.
 *
 * <p>All methods throw {@link TreeholdException} if a request fails.
 */
public final class TreeholdBaseStore implements BaseStore {
    private static final String ITEM = "/api/v1/dp/kv/item";

    /** The most items of one page. The server may end a page earlier, once its items are large together. */
    private static final int PAGE_MAX = 1_000;

    private final TreeholdClient client;
    private final String agentName;
    private final String space;

    /**
     * Opens the items of an agent in the space {@code default}.
     *
     * @param client the connection, which the caller closes
     * @param agentName the name of the agent
     */
    public TreeholdBaseStore(TreeholdClient client, String agentName) {
        this(client, agentName, "default");
    }

    /**
     * Opens the items of an agent.
     *
     * @param client the connection, which the caller closes
     * @param agentName the name of the agent
     * @param space the space of the agent: the {@code namespace} of the data plane
     */
    public TreeholdBaseStore(TreeholdClient client, String agentName, String space) {
        this.client = Objects.requireNonNull(client, "client");
        this.agentName = required("agent", agentName);
        this.space = required("space", space);
    }

    @Override
    public StoreItem get(List<String> namespace, String key) {
        try {
            Answer answer = client.send(item(Call.get(ITEM), namespace, key));
            return item(answer, answer.object());
        } catch (TreeholdException.NotFound absent) {
            return null;
        }
    }

    @Override
    public void put(List<String> namespace, String key, Map<String, Object> value) {
        save(namespace, key, value, null);
    }

    @Override
    public boolean putIfVersion(List<String> namespace, String key, Map<String, Object> value, long expectedVersion) {
        if (expectedVersion < 0) {
            throw new IllegalArgumentException("the expected version is " + expectedVersion + "; it is 0 or a version");
        }
        try {
            save(namespace, key, value, expectedVersion);
            return true;
        } catch (TreeholdException.Conflict conflict) {
            return false;
        }
    }

    @Override
    public List<StoreItem> search(List<String> namespace, int limit, int offset) {
        if (limit < 1 || offset < 0) {
            throw new IllegalArgumentException(
                    "the limit is " + limit + " and the offset " + offset + "; a limit is at least 1, an offset 0");
        }
        List<StoreItem> items = new ArrayList<>();
        String cursor = null;
        do {
            Call call = at(Call.get("/api/v1/dp/kv/search"), namespace).with("limit", Math.min(limit - items.size(), PAGE_MAX));
            Answer answer = client.send(cursor == null ? call.with("offset", offset) : call.with("cursor", cursor));
            Json.Obj page = answer.object();
            for (Json value : answer.array(page, "items").items()) {
                if (!(value instanceof Json.Obj fields)) {
                    throw answer.unreadable("has an item that is not an object", null);
                }
                items.add(item(answer, fields));
            }
            cursor = answer.next(page, cursor);
        } while (cursor != null && items.size() < limit);
        return items;
    }

    @Override
    public void delete(List<String> namespace, String key) {
        client.send(item(Call.change("DELETE", ITEM), namespace, key));
    }

    /** Returns the agent and the address of the server. */
    @Override
    public String toString() {
        return "TreeholdBaseStore(" + space + "/" + agentName + ", " + client + ")";
    }

    private void save(List<String> namespace, String key, Map<String, Object> value, Long expectedVersion) {
        Map<String, Json> fields = new LinkedHashMap<>();
        fields.put("agentName", Json.of(agentName));
        fields.put("namespace", Json.of(space));
        fields.put("namespaceSegments", Json.from(namespace));
        fields.put("key", Json.of(required("key", key)));
        fields.put("value", Json.from(Objects.requireNonNull(value, "value")));
        if (expectedVersion != null) {
            fields.put("expectedVersion", Json.of(expectedVersion));
        }
        client.send(Call.change("PUT", ITEM).withJson(new Json.Obj(fields).toText()));
    }

    private Call item(Call call, List<String> namespace, String key) {
        return at(call, namespace).with("key", required("key", key));
    }

    private Call at(Call call, List<String> namespace) {
        call.with("agentName", agentName).with("namespace", space);
        namespace.forEach(segment -> call.with("ns", Objects.requireNonNull(segment, "a segment of the namespace")));
        return call;
    }

    private static StoreItem item(Answer answer, Json.Obj fields) {
        if (!(fields.get("value").orElse(Json.Null.NULL) instanceof Json.Obj value)) {
            throw answer.unreadable("has an item whose value is not an object", null);
        }
        Map<String, Object> plain = new LinkedHashMap<>();
        value.members().forEach((name, member) -> plain.put(name, member.plain()));
        return new StoreItem(answer.string(fields, "key"), plain, answer.number(fields, "version", 1));
    }

    private static String required(String what, String text) {
        if (text == null || text.isBlank()) {
            throw new IllegalArgumentException("the " + what + " is " + (text == null ? "null" : "blank") + "; name one");
        }
        return text;
    }
}
