package dev.treehold.client;

import java.util.Objects;

/** What tests expect. */
final class Check {
    private Check() {}

    /** Work that may throw. */
    @FunctionalInterface
    interface Work {
        void run() throws Exception;
    }

    static void equal(Object expected, Object actual) {
        equal(expected, actual, "");
    }

    static void equal(Object expected, Object actual, String about) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError(about + " expected: " + expected + "\n  actual:   " + actual);
        }
    }

    static void isTrue(boolean holds, String about) {
        if (!holds) {
            throw new AssertionError(about);
        }
    }

    /** Expects work to fail with an exception of exactly this class, and returns it. */
    static <E extends Throwable> E fails(Class<E> type, Work work) {
        return fails(type, "", work);
    }

    static <E extends Throwable> E fails(Class<E> type, String about, Work work) {
        try {
            work.run();
        } catch (Throwable thrown) {
            if (thrown.getClass() == type) {
                return type.cast(thrown);
            }
            throw new AssertionError(about + " expected: " + type.getName() + "\n  actual:   " + thrown, thrown);
        }
        throw new AssertionError(about + " did not fail; expected: " + type.getName());
    }
}
