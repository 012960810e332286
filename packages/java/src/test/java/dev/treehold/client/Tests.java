package dev.treehold.client;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;

/** Runs the tests whose names contain one of the arguments; all without arguments. */
public final class Tests {
    private static final int LIMIT_SECONDS = 120;

    private static final List<Class<?>> CLASSES = List.of(
            JsonTest.class,
            IdsTest.class,
            TransportTest.class,
            StateStoreTest.class,
            ConflictTest.class,
            TurnGateTest.class,
            AccessTest.class,
            BaseStoreTest.class,
            RestartTest.class,
            ExampleTest.class);

    private Tests() {}

    public static void main(String[] wanted) throws Exception {
        int passed = 0;
        List<String> failed = new ArrayList<>();
        for (Class<?> type : CLASSES) {
            for (Method method : type.getDeclaredMethods()) {
                String name = type.getSimpleName() + "." + method.getName();
                boolean isWanted = wanted.length == 0 || Stream.of(wanted).anyMatch(name::contains);
                if (!method.isAnnotationPresent(Test.class) || !isWanted) {
                    continue;
                }
                Throwable problem = run(type, method);
                if (problem == null) {
                    passed += 1;
                } else {
                    failed.add(name);
                    System.out.println("FAILED " + name);
                    problem.printStackTrace(System.out);
                }
            }
        }
        World.stop();
        System.out.println("test result: " + passed + " passed, " + failed.size() + " failed");
        failed.stream().sorted(Comparator.naturalOrder()).forEach(name -> System.out.println("  " + name));
        if (passed == 0) {
            System.out.println("no test ran");
        }
        System.exit(passed == 0 || !failed.isEmpty() ? 1 : 0);
    }

    private static Throwable run(Class<?> type, Method method) throws Exception {
        CompletableFuture<Throwable> ended = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                var constructor = type.getDeclaredConstructor();
                constructor.setAccessible(true);
                method.setAccessible(true);
                method.invoke(constructor.newInstance());
                ended.complete(null);
            } catch (InvocationTargetException thrown) {
                ended.complete(thrown.getCause());
            } catch (Throwable thrown) {
                ended.complete(thrown);
            }
        }, method.getName());
        thread.setDaemon(true);
        thread.start();
        try {
            return ended.get(LIMIT_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException hanging) {
            AssertionError error = new AssertionError("it did not end within " + LIMIT_SECONDS + " seconds");
            error.setStackTrace(thread.getStackTrace());
            return error;
        } catch (ExecutionException impossible) {
            return impossible;
        }
    }
}
