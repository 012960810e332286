package dev.treehold.client;

/**
 * A value with its version.
 *
 * @param value the value; null if there is none
 * @param version the version; 0 if there is no value, {@link AgentStateStore#UNVERSIONED} in a store without versions
 * @param <T> the class of the value
 */
public record VersionedState<T>(T value, long version) {
    /**
     * Returns whether there is a value.
     *
     * @return whether there is one
     */
    public boolean isPresent() {
        return value != null;
    }
}
