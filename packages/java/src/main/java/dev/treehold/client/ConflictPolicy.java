package dev.treehold.client;

/** What a save does if another writer changed the state since it was loaded. Tools have run by then, so no policy undoes them. */
public enum ConflictPolicy {
    /** Replaces what the other writer saved. */
    OVERWRITE,
    /** Throws {@link ConcurrentSessionModificationException} and saves nothing. Use it with a {@link SessionTurnGate}. */
    FAIL,
    /**
     * Appends the messages of this call to what the other writer saved, and saves once more. A call that rewrote the messages that it
     * loaded, such as a compaction, cannot be merged, nor can one whose session was deleted: they fail as with {@link #FAIL}.
     */
    APPEND_MERGE
}
