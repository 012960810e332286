package dev.treehold.client;

/** The text is not one JSON value. */
public final class JsonSyntaxException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    /** Where the text is wrong. */
    private final int offset;

    /**
     * Makes the error. Its message does not quote the text, which may be a secret.
     *
     * @param message what is wrong
     * @param offset where, in UTF-16 units from the beginning
     */
    JsonSyntaxException(String message, int offset) {
        super("the JSON is not valid at offset " + offset + ": " + message);
        this.offset = offset;
    }

    /**
     * Returns where the text is wrong.
     *
     * @return UTF-16 units from the beginning
     */
    public int offset() {
        return offset;
    }
}
