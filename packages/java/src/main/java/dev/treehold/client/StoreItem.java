package dev.treehold.client;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * An item of a {@link BaseStore}.
 *
 * @param key its key
 * @param value its value, which cannot be changed
 * @param version 1 for the first save, one more for each save after it
 */
public record StoreItem(String key, Map<String, Object> value, long version) {
    /**
     * Makes an item.
     *
     * @param key its key
     * @param value its value
     * @param version its version
     */
    public StoreItem {
        value = Collections.unmodifiableMap(new LinkedHashMap<>(value));
    }
}
