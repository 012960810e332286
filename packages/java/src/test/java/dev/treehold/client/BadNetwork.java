package dev.treehold.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands between a client and the server, and loses connections and answers. */
final class BadNetwork implements AutoCloseable {
    /** How many of the next answers are lost, each with its connection. The server has handled their requests. */
    final AtomicInteger answersToLose = new AtomicInteger();
    /** How many of the next connections are cut at once. */
    final AtomicInteger connectionsToCut = new AtomicInteger();
    /** How many answers were lost. */
    final AtomicInteger answersLost = new AtomicInteger();
    private final URI target;
    private final ServerSocket server = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();

    BadNetwork(String target) throws IOException {
        this.target = URI.create(target);
        start("accept", this::accept);
    }

    String baseUrl() {
        return "http://127.0.0.1:" + server.getLocalPort();
    }

    private static void start(String name, Check.Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception closed) {
                // The other side has closed the connection, as tests have it.
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() throws IOException {
        while (true) {
            Socket near = server.accept();
            if (take(connectionsToCut)) {
                near.close();
                continue;
            }
            Socket far = new Socket(target.getHost(), target.getPort());
            sockets.add(near);
            sockets.add(far);
            start("requests", () -> copy(near, far, false));
            start("answers", () -> copy(far, near, true));
        }
    }

    private void copy(Socket from, Socket to, boolean isAnswer) throws IOException {
        byte[] bytes = new byte[1 << 16];
        try (from; to) {
            InputStream input = from.getInputStream();
            OutputStream output = to.getOutputStream();
            int count;
            while ((count = input.read(bytes)) >= 0) {
                if (isAnswer && take(answersToLose)) {
                    answersLost.incrementAndGet();
                    return;
                }
                output.write(bytes, 0, count);
            }
        } finally {
            sockets.remove(from);
            sockets.remove(to);
        }
    }

    private static boolean take(AtomicInteger left) {
        return left.getAndUpdate(count -> Math.max(0, count - 1)) > 0;
    }

    @Override
    public void close() throws IOException {
        server.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }
}
