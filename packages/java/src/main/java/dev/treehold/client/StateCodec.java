package dev.treehold.client;

/**
 * Converts the values of one type to JSON and back.
 *
 * @param <T> the type
 */
public interface StateCodec<T> {
    /**
     * Writes a value.
     *
     * @param value the value, never null
     * @return the text of one JSON value
     * @throws Exception if it cannot be written; the store reports an {@link IllegalArgumentException} and saves nothing
     */
    String encode(T value) throws Exception;

    /**
     * Reads a value.
     *
     * @param json the text as it was saved
     * @return the value, never null
     * @throws Exception if it cannot be read; the store reports {@link TreeholdException.Corrupt}, never an absent value
     */
    T decode(String json) throws Exception;
}
