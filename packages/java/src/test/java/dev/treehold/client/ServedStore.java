package dev.treehold.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** A store in a fresh directory, and the process that serves it. */
final class ServedStore implements AutoCloseable {
    private final Path directory;
    private final int port;
    private Process process;

    ServedStore() throws IOException {
        directory = Files.createTempDirectory("treehold-java-");
        Files.createDirectories(directory.resolve("tree"));
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
    }

    String baseUrl() {
        return "http://127.0.0.1:" + port;
    }

    /** Starts the server, also again after {@link #kill}, and waits until it listens. */
    ServedStore start(String... options) throws IOException {
        String binary = System.getenv("TREEHOLD");
        if (binary == null) {
            throw new IllegalStateException("TREEHOLD does not name the treehold binary; run scripts/java.sh");
        }
        List<String> command = new ArrayList<>(List.of(binary, "serve", "--listen", "127.0.0.1:" + port));
        command.addAll(List.of(options));
        ProcessBuilder builder = new ProcessBuilder(command).directory(directory.resolve("tree").toFile());
        builder.environment().put("TREEHOLD_DATA", directory.resolve("data").toString());
        builder.environment().put("HOME", directory.toString());
        Path log = directory.resolve("log");
        builder.redirectError(ProcessBuilder.Redirect.appendTo(log.toFile()));
        process = builder.start();
        BufferedReader said = process.inputReader();
        if (said.readLine() == null) {
            throw new IOException("treehold serve ended: " + Files.readString(log));
        }
        return this;
    }

    /** Ends the process without warning. */
    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    /** Runs a command of the binary on the store and returns what it prints. */
    String run(String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(System.getenv("TREEHOLD")));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command).directory(directory.resolve("tree").toFile());
        builder.environment().put("TREEHOLD_DATA", directory.resolve("data").toString());
        builder.environment().put("HOME", directory.toString());
        builder.redirectError(directory.resolve("log").toFile());
        Process ran = builder.start();
        String said = new String(ran.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
        if (ran.waitFor() != 0) {
            throw new IOException(command + " failed: " + Files.readString(directory.resolve("log")));
        }
        return said;
    }

    @Override
    public void close() {
        try {
            if (process != null) {
                kill();
            }
            try (Stream<Path> files = Files.walk(directory)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        } catch (IOException | InterruptedException problem) {
            System.out.println("a directory was not removed: " + problem);
        }
    }
}
