//! The memory that a server uses for large files and answers, measured from outside.

use crate::cli::{Home, binary};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The size of the test file.
const FILE_BYTES: usize = 160 << 20;

/// A server in its own process.
struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(home: &Home) -> Self {
        let mut command = Command::new(binary());
        // The requests of one user wait for each other, on a busy machine for minutes.
        let config = home.work().join("memory.toml");
        std::fs::write(&config, "[serve]\ndeadline = \"10m\"\n").unwrap();
        command.arg("--config").arg(config).args(["serve", "--listen", "127.0.0.1:0"]).current_dir(home.work()).stdout(Stdio::piped());
        command.env("TREEHOLD_DATA", home.data()).env("HOME", home.data());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap().to_owned();
        Self(child, address)
    }

    /// Returns the peak memory of the process in bytes.
    fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    fn get(&self, path: &str, range: &str) -> (u16, usize) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{range}\r\n"))
    }

    fn post(&self, path: &str, body: &str) -> (u16, usize) {
        let head = format!("Host: localhost\r\nConnection: close\r\nContent-Length: {}\r\nContent-Type: application/json", body.len());
        self.send(&format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n{body}"))
    }

    /// Sends a request and returns the status and the size of the body, which is read as fast as possible and discarded.
    fn send(&self, request: &str) -> (u16, usize) {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(900))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body_bytes = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return (status.split(' ').nth(1).unwrap().parse().unwrap(), body_bytes),
                count => body_bytes += count,
            }
        }
    }
}

#[test]
fn reads_of_a_large_file_use_memory_for_parts_only() {
    const MIB: u64 = 1 << 20;
    let home = Home::new();
    // Write the file in a separate process.
    let line = [vec![b'x'; 1_023], vec![b'\n']].concat();
    home.command(&["write", "/memories/large", "-"])
        .timeout(Duration::from_secs(300))
        .write_stdin(line.repeat(FILE_BYTES / 1_024))
        .assert()
        .code(0);
    let server = Server::start(&home);
    assert_eq!(server.get("/v1/fs/memories/none", "").0, 404);
    let idle = server.peak_bytes();
    let file = "/v1/fs/memories/large";
    for (path, range, status, size) in [
        (format!("{file}?byte_offset={}&byte_limit=10", FILE_BYTES - 20), "", 200, 10),
        (file.to_owned(), "Range: bytes=-10\r\n", 206, 10),
        (format!("{file}?offset=100000&limit=2"), "", 200, 2_048),
        (file.to_owned(), "", 200, FILE_BYTES),
    ] {
        assert_eq!(server.get(&path, range), (status, size), "{path} {range}");
        let grown = server.peak_bytes() - idle;
        assert!(grown < 48 * MIB, "{path} {range} took {} MiB", grown / MIB);
    }
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| assert_eq!(server.get(file, ""), (200, FILE_BYTES)));
        }
    });
    let grown = server.peak_bytes() - idle;
    // Two parts of 5 MiB each, plus what the allocator keeps of earlier parts.
    assert!(grown < 12 * 48 * MIB, "twelve at once took {} MiB", grown / MIB);
}

/// A match that spans a whole file makes a long answer.
#[test]
fn long_answers_to_one_user_use_memory_for_some_of_them_only() {
    const MIB: u64 = 1 << 20;
    let home = Home::new();
    let text = "a line that says nothing\n".repeat(4 << 20 >> 5);
    for number in 0..4 {
        std::fs::write(home.work().join(format!("{number}.txt")), &text).unwrap();
    }
    let server = Server::start(&home);
    let grep = r#"{"pattern": "nothing\\n.*\\n.*s", "regex": true, "multiline": true, "path": "/workspace"}"#;
    let (status, size) = server.post("/v1/grep", grep);
    assert!(status == 200 && size > 4 << 20, "{status} {size}");
    let one = server.peak_bytes();
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| assert_eq!(server.post("/v1/grep", grep), (200, size)));
        }
    });
    let grown = server.peak_bytes() - one;
    assert!(grown < 192 * MIB, "40 answers of {} MiB took {} MiB", size >> 20, grown / MIB);
}
