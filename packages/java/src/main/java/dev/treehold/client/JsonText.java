package dev.treehold.client;

/**
 * A JSON value as its exact text: the server stores and returns it byte for byte. White space around it is dropped.
 *
 * @param text the text of one value
 */
public record JsonText(String text) {
    /**
     * Checks the text.
     *
     * @param text the text of one value
     * @throws JsonSyntaxException for text that is not one JSON value or nests deeper than {@link Json#DEPTH_MAX}
     */
    public JsonText {
        text = new JsonReader(text).only();
    }

    /**
     * Reads the value as a tree.
     *
     * @return the value
     * @throws JsonSyntaxException if an object names a member twice
     */
    public Json tree() {
        return Json.parse(text);
    }

    @Override
    public String toString() {
        return text;
    }
}
