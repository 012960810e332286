import dev.treehold.client.TreeholdBaseStore;
import dev.treehold.client.TreeholdClient;
import io.agentscope.harness.agent.filesystem.remote.store.BaseStore;
import io.agentscope.harness.agent.filesystem.remote.store.StoreItem;
import java.util.List;
import java.util.Map;

/** Items on a treehold server for file systems of AgentScope, as its own store. Copy this class into your program. */
public final class TreeholdItems implements BaseStore {
    private final TreeholdBaseStore items;

    /**
     * Opens the items of an agent.
     *
     * @param client the connection, which the caller closes
     * @param agent the name of the agent
     */
    public TreeholdItems(TreeholdClient client, String agent) {
        items = new TreeholdBaseStore(client, agent);
    }

    @Override
    public StoreItem get(List<String> namespace, String key) {
        dev.treehold.client.StoreItem found = items.get(namespace, key);
        return found == null ? null : item(found);
    }

    @Override
    public void put(List<String> namespace, String key, Map<String, Object> value) {
        items.put(namespace, key, value);
    }

    // The interface has a default body, which saves nothing.
    @Override
    public boolean putIfVersion(List<String> namespace, String key, Map<String, Object> value, long expectedVersion) {
        return items.putIfVersion(namespace, key, value, expectedVersion);
    }

    @Override
    public List<StoreItem> search(List<String> namespace, int limit, int offset) {
        return items.search(namespace, limit, offset).stream().map(TreeholdItems::item).toList();
    }

    @Override
    public void delete(List<String> namespace, String key) {
        items.delete(namespace, key);
    }

    private static StoreItem item(dev.treehold.client.StoreItem found) {
        return new StoreItem(found.key(), found.value(), found.version());
    }
}
