package dev.treehold.client;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;

/** The programs of {@code examples}, as users run them. */
final class ExampleTest {
    @Test
    void call_of_a_process_that_died_is_continued_by_another_one() throws Exception {
        String classes = System.getProperty("java.class.path") + File.pathSeparator + System.getProperty("examples");
        Process example = new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", classes, "StatelessAgent", World.baseUrl())
                .redirectErrorStream(true).start();
        List<String> said = new String(example.getInputStream().readAllBytes(), StandardCharsets.UTF_8).lines().toList();
        String all = String.join("\n", said);
        Check.equal(0, example.waitFor(), all);
        Check.isTrue(said.contains("first dies") && said.contains("second is done"), all);
        Check.isTrue(said.stream().anyMatch(line -> line.startsWith("second has turn") && line.endsWith("finds 3 steps done")), all);
        Check.equal(6L, said.stream().filter(line -> line.contains(" did: ")).count(), all);
    }
}
