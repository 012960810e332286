//! The server under load: many threads, many connections, mixed reads, edits and greps, compared with a handler that
//! does nothing.
//!
//! ```sh
//! cargo bench --all-features --bench serve                                                    # SQLite, a minute
//! TREEHOLD_SERVE_STORE='postgres://postgres@127.0.0.1/postgres?schema=load' cargo bench --all-features --bench serve
//! ```
//!
//! The server and the empty handler each run as a process. One client queries both, writing requests and reading
//! answers and nothing else. The benchmark fails on any unsuccessful answer, and if an acknowledged edit is not present
//! exactly once. `TREEHOLD_SERVE_SECONDS` (60), `_THREADS` (1,000) and `_CONNECTIONS` (64) set the load. As a test it
//! runs for a second.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const FILES: usize = 10;

/// Makes this program the empty handler.
const EMPTY: &str = "TREEHOLD_SERVE_EMPTY";

/// The load on the server.
#[derive(Clone, Copy)]
struct Load {
    seconds: f64,
    /// The duration of each comparison run.
    beside_seconds: f64,
    threads: usize,
    connections: usize,
}

/// One connection, kept open.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::with_capacity(64 << 10) }
    }

    /// Sends a request. Returns the status of its answer, and where in the buffer its body starts.
    async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, usize) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        if method != "GET" {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request).await.unwrap();
        self.buffer.clear();
        let begin = loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the server hung up");
        };
        let head = std::str::from_utf8(&self.buffer[..begin]).unwrap();
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |text| text.parse::<usize>().unwrap());
        while self.buffer.len() < begin + length {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the server hung up");
        }
        (status, begin)
    }
}

/// A server process, killed on drop.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches("/mcp");
        Self { address: address.parse().unwrap(), child }
    }

    /// Returns the resident memory in MiB, on systems that report it.
    fn resident_mib(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let kib: f64 = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().split(' ').next()?.parse().ok()?;
        Some(kib / 1024.0)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The mix of requests, in percent.
#[derive(Clone, Copy)]
struct Mix {
    reads: u64,
    edits: u64,
}

/// The results of one connection: the time in microseconds of each request by kind, and the edits of each thread.
#[derive(Default)]
struct Seen {
    times_us: HashMap<&'static str, Vec<u32>>,
    edits: HashMap<usize, Vec<String>>,
    errors: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (kind, times) in other.times_us {
            self.times_us.entry(kind).or_default().extend(times);
        }
        for (thread, edits) in other.edits {
            self.edits.entry(thread).or_default().extend(edits);
        }
        self.errors.extend(other.errors);
    }

    fn print(&mut self, what: &str, seconds: f64) {
        let mut kinds: Vec<_> = self.times_us.iter_mut().collect();
        kinds.sort_by_key(|(kind, _)| **kind);
        for (kind, times) in kinds {
            times.sort_unstable();
            let at = |share: f64| f64::from(times[((times.len() - 1) as f64 * share) as usize]) / 1000.0;
            let rate = times.len() as f64 / seconds;
            println!("{what:<28} {kind:<6} {:>8} {rate:>8.0}/s  p50 {:>7.2} ms  p99 {:>7.2} ms", times.len(), at(0.5), at(0.99));
        }
    }

    /// Returns the requests per second and the median in microseconds of a kind.
    fn of(&self, kind: &str, seconds: f64) -> (f64, f64) {
        let times = &self.times_us[kind];
        (times.len() as f64 / seconds, f64::from(times[times.len() / 2]))
    }
}

fn content(thread: usize, file: usize) -> String {
    let line = format!("{thread} {file} of what an agent notes: words, and now and then a needle in it\n");
    line.repeat(1 + (thread * 7 + file * 13) % 50)
}

/// Sends requests on one connection until the time is over.
async fn client(address: SocketAddr, number: usize, until: Instant, mix: Option<Mix>, load: Load) -> Seen {
    let mut connection = Connection::open(address).await;
    let (mut seen, mut seed) = (Seen::default(), 0x9E37_79B9_7F4A_7C15_u64 ^ (number as u64 + 1).wrapping_mul(0xD129_0B3B_9E1D_77A5));
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut edits = 0;
    while Instant::now() < until {
        let (thread, file) = (random(load.threads as u64) as usize, random(FILES as u64) as usize);
        let begun = Instant::now();
        let (kind, status) = match mix {
            None => ("empty", connection.ask("GET", "/empty", "", b"").await.0),
            Some(mix) => match random(100) {
                kind if kind < mix.reads => {
                    let path = format!("/v1/threads/t{thread}/fs/notes/{file}.md");
                    ("read", connection.ask("GET", &path, "", b"").await.0)
                }
                kind if kind < mix.reads + mix.edits => {
                    let line = format!("{number}-{edits}");
                    edits += 1;
                    let body = format!("{{\"edits\": [{{\"old\": \"end\\n\", \"new\": \"{line}\\nend\\n\"}}]}}");
                    let path = format!("/v1/threads/t{thread}/fs/log.md");
                    let status = connection.ask("PATCH", &path, "content-type: application/json\r\n", body.as_bytes()).await.0;
                    if status < 300 {
                        seen.edits.entry(thread).or_default().push(line);
                    }
                    ("edit", status)
                }
                _ => {
                    let headers = format!("treehold-thread: t{thread}\r\n");
                    ("grep", connection.ask("GET", "/v1/grep?pattern=needle&path=/notes&limit=20", &headers, b"").await.0)
                }
            },
        };
        let took_us = begun.elapsed().as_micros() as u32;
        seen.times_us.entry(kind).or_default().push(took_us);
        if status >= 300 {
            seen.errors.push(format!("{kind}: {status}"));
        }
    }
    seen
}

/// Sends requests on all connections at once. Returns the results, and the resident memory of each second.
async fn run(served: &Served, seconds: f64, mix: Option<Mix>, load: Load) -> (Seen, Vec<f64>) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let clients: Vec<_> = (0..load.connections).map(|number| tokio::spawn(client(served.address, number, until, mix, load))).collect();
    let mut resident = Vec::new();
    while Instant::now() + Duration::from_secs(1) < until {
        tokio::time::sleep(Duration::from_secs(1)).await;
        resident.extend(served.resident_mib());
    }
    let mut seen = Seen::default();
    for client in clients {
        seen.add(client.await.unwrap());
    }
    (seen, resident)
}

/// Creates the threads. Returns how long that took.
async fn fill(served: &Served, load: Load) -> Duration {
    let begun = Instant::now();
    let makers = (0..load.connections).map(|number| {
        let address = served.address;
        tokio::spawn(async move {
            let mut connection = Connection::open(address).await;
            for thread in (number..load.threads).step_by(load.connections) {
                let write =
                    |path: &str, content: &str| format!("{{\"operation\": \"write\", \"path\": \"{path}\", \"content\": {content:?}}}");
                let mut changes = vec![write("/log.md", "end\n")];
                changes.extend((0..FILES).map(|file| write(&format!("/notes/{file}.md"), &content(thread, file))));
                let body = format!("{{\"changes\": [{}]}}", changes.join(","));
                let headers = format!("treehold-thread: t{thread}\r\ncontent-type: application/json\r\n");
                let (status, at) = connection.ask("POST", "/v1/apply", &headers, body.as_bytes()).await;
                assert_eq!(status, 200, "{}", String::from_utf8_lossy(&connection.buffer[at..]));
            }
        })
    });
    for maker in makers.collect::<Vec<_>>() {
        maker.await.unwrap();
    }
    begun.elapsed()
}

/// Checks that every acknowledged edit is present exactly once and nothing else is. Returns how many edits there are.
async fn nothing_is_lost(served: &Served, seen: &Seen, load: Load) -> usize {
    let mut connection = Connection::open(served.address).await;
    let mut count = 0;
    for thread in 0..load.threads {
        let (status, at) = connection.ask("GET", &format!("/v1/threads/t{thread}/fs/log.md"), "", b"").await;
        assert_eq!(status, 200);
        let text = std::str::from_utf8(&connection.buffer[at..]).unwrap();
        let mut there: Vec<&str> = text.lines().filter(|line| *line != "end").collect();
        let mut edits: Vec<&str> = seen.edits.get(&thread).into_iter().flatten().map(String::as_str).collect();
        there.sort_unstable();
        edits.sort_unstable();
        assert_eq!(there, edits, "the edits of thread {thread}");
        count += edits.len();
    }
    count
}

fn setting<T: std::str::FromStr>(name: &str, usual: T) -> T {
    std::env::var(format!("TREEHOLD_SERVE_{name}")).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Answers every request with an empty body.
fn be_empty() {
    let router = axum::Router::new().route("/empty", axum::routing::get(|| async { "" }));
    Runtime::new().unwrap().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        axum_server::from_tcp(listener.into_std().unwrap()).unwrap().serve(router.into_make_service()).await.unwrap();
    });
}

fn main() {
    if std::env::var_os(EMPTY).is_some() {
        return be_empty();
    }
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let load = match is_bench {
        true => Load {
            seconds: setting("SECONDS", 60.0),
            beside_seconds: 5.0,
            threads: setting("THREADS", 1_000),
            connections: setting("CONNECTIONS", 64),
        },
        false => Load { seconds: 1.0, beside_seconds: 0.2, threads: 20, connections: 8 },
    };
    let home = tempfile::tempdir().unwrap();
    let url = std::env::var("TREEHOLD_SERVE_STORE").unwrap_or_else(|_| "sqlite:{data}/treehold.db".to_owned());
    let engine = url.split(':').next().unwrap_or_default().to_owned();
    let data = home.path().to_str().unwrap();
    std::fs::write(home.path().join("treehold.toml"), format!("data = {data:?}\n[stores.default]\nurl = {url:?}\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_treehold"));
    command.args(["--config", "treehold.toml", "serve", "--listen", "127.0.0.1:0"]).current_dir(home.path());
    let served = Served::start(&mut command);
    let empty = Served::start(Command::new(std::env::current_exe().unwrap()).env(EMPTY, "1"));
    let runtime = Arc::new(Runtime::new().unwrap());
    runtime.block_on(async {
        let took = fill(&served, load).await;
        println!(
            "{engine}: {} threads of {FILES} files made in {:.1} s; {} connections",
            load.threads,
            took.as_secs_f64(),
            load.connections
        );
        let (beside, reads) = (load.beside_seconds, Mix { reads: 100, edits: 0 });
        let one = Load { connections: 1, ..load };
        let mut alone = [Seen::default(), Seen::default()];
        let mut together = [Seen::default(), Seen::default()];
        for (pair, load) in [(&mut alone, one), (&mut together, load)] {
            pair[0].add(run(&empty, beside, None, load).await.0);
            pair[1].add(run(&served, beside, Some(reads), load).await.0);
        }
        for (pair, what) in [(&mut alone, "one connection"), (&mut together, "all connections")] {
            pair[0].print(what, beside);
            pair[1].print(what, beside);
            let ((empty_rate, empty_us), (rate, us)) = (pair[0].of("empty", beside), pair[1].of("read", beside));
            println!("{what}: a read is {:.1} × an empty handler (median), {:.1} × by requests a second", us / empty_us, empty_rate / rate);
        }
        let before = served.resident_mib();
        let (mut seen, resident) = run(&served, load.seconds, Some(Mix { reads: 60, edits: 30 }), load).await;
        seen.print("mixed", load.seconds);
        let of_before: Vec<String> = before.iter().chain(&resident).map(|mib| format!("{mib:.0}")).collect();
        println!("resident MiB, before and each second: {}", of_before.join(" "));
        if let (Some(at), true) = (resident.get(19), resident.len() > 20) {
            let most = resident[19..].iter().copied().fold(0.0, f64::max);
            println!("resident after 20 s: {at:.1} MiB, at most {most:.1} MiB later ({:+.1} %)", (most / at - 1.0) * 100.0);
        }
        let edits = nothing_is_lost(&served, &seen, load).await;
        let errors = [&alone, &together].into_iter().flatten().chain([&seen]).map(|seen| seen.errors.len()).sum::<usize>();
        assert!(errors == 0, "{errors} errors: {:?}", seen.errors.iter().take(5).collect::<Vec<_>>());
        println!("no error; {edits} edits acknowledged, each there once");
    });
}
