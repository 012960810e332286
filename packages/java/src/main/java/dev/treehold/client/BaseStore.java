package dev.treehold.client;

import java.util.List;
import java.util.Map;

/**
 * Items by namespace and key. It has the operations of the base store of AgentScope.
 *
 * <p>A namespace is a list of segments, which are never joined: {@code [a/b]} and {@code [a, b]} are different namespaces.
 */
public interface BaseStore {
    /**
     * Returns an item.
     *
     * @param namespace its namespace
     * @param key its key
     * @return the item, or null
     */
    StoreItem get(List<String> namespace, String key);

    /**
     * Saves an item, whatever is there.
     *
     * @param namespace its namespace
     * @param key its key
     * @param value its value: strings, numbers, booleans, nulls, lists and maps
     */
    void put(List<String> namespace, String key, Map<String, Object> value);

    /**
     * Saves an item if the stored one has a version. The comparison and the save are one step.
     *
     * @param namespace its namespace
     * @param key its key
     * @param value its value
     * @param expectedVersion the version that the caller has seen; 0 if there must be no item
     * @return whether it was saved
     */
    boolean putIfVersion(List<String> namespace, String key, Map<String, Object> value, long expectedVersion);

    /**
     * Returns the items of a namespace and of those beneath it, in the order of namespaces and keys.
     *
     * @param namespace the namespace; an empty one holds all items
     * @param limit how many at most
     * @param offset how many to leave out
     * @return the items
     */
    List<StoreItem> search(List<String> namespace, int limit, int offset);

    /**
     * Removes an item. Removing an absent one is no error.
     *
     * @param namespace its namespace
     * @param key its key
     */
    void delete(List<String> namespace, String key);
}
