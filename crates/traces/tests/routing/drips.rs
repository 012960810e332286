//! Answers that never end, come byte by byte, stop in the middle, or grow when they are decompressed: each ends with an error in bounded time
//! and memory.

use crate::support::address;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use treehold_core::error::ErrorKind;
use treehold_remote::RemoteOptions;
use treehold_traces::{AddOptions, NewMessage, Peer, Peers, PeersOptions, RemoteTraces, TraceStore};

/// What a server does after its head.
#[derive(Clone)]
enum Body {
    /// Sends these bytes, and then closes the connection.
    Cut(Vec<u8>),
    /// Sends these bytes, and then nothing.
    Stall(Vec<u8>),
    /// Sends this byte again and again.
    Drip(u8),
}

/// Returns a store of traces on a server that answers each request with a head and a body.
async fn served(head: &'static str, body: Body, patience: Duration) -> (RemoteTraces, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = body.clone();
            open.push(tokio::spawn(async move {
                let mut asked = Vec::new();
                while !asked.windows(4).any(|end| end == b"\r\n\r\n") && stream.read_buf(&mut asked).await.is_ok_and(|read| read > 0) {}
                stream.write_all(head.as_bytes()).await?;
                match body {
                    Body::Cut(bytes) => stream.write_all(&bytes).await,
                    Body::Stall(bytes) => {
                        stream.write_all(&bytes).await?;
                        std::future::pending().await
                    }
                    Body::Drip(byte) => loop {
                        stream.write_all(&[byte]).await?;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    },
                }
            }));
        }
    });
    (on(&url, patience), task)
}

fn on(url: &str, timeout: Duration) -> RemoteTraces {
    let peer = Peer::new("one", url, false).expect("loopback");
    let options = PeersOptions::new().with_remote(RemoteOptions::new().with_timeouts(timeout, timeout).with_attempts_max(1));
    RemoteTraces::new(Peers::new([peer], options).expect("one name"))
}

#[tokio::test]
async fn answer_that_does_not_end_is_given_up() {
    const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
    const PART: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n";
    const ABSENT: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 1000\r\n\r\n";
    const LONG: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000000000\r\n\r\n";
    let unfinished = || br#"{"trace_id": "x", "task": ""#.to_vec();
    for (head, body, kind) in [
        ("", Body::Stall(Vec::new()), ErrorKind::Deadline),
        ("HTTP/1.1 200 OK\r\nx-", Body::Drip(b'x'), ErrorKind::Deadline),
        (JSON, Body::Drip(b' '), ErrorKind::Deadline),
        (PART, Body::Stall(unfinished()), ErrorKind::Deadline),
        (ABSENT, Body::Drip(b' '), ErrorKind::Deadline),
        (PART, Body::Cut(unfinished()), ErrorKind::Unavailable),
        ("", Body::Cut(b"garbage\r\n\r\n".to_vec()), ErrorKind::Unavailable),
        // Its length alone is enough to refuse it.
        (LONG, Body::Stall(b"{".to_vec()), ErrorKind::TooLarge),
    ] {
        let patience = if kind == ErrorKind::Deadline { Duration::from_millis(300) } else { Duration::from_secs(60) };
        let (traces, task) = served(head, body, patience).await;
        let error = traces.get_trace(&address("@one/x")).await.expect_err(head);
        assert_eq!(error.kind(), kind, "{head}: {error}");
        // Whether a change was made is not known, and a repeated one would need the same key.
        let change = traces.add_messages(&address("@one/x"), vec![NewMessage::text("user", "hi")], &AddOptions::new()).await;
        let error = change.expect_err(head);
        assert!(error.kind() == kind && error.may_have_effect(), "{head}: {error:?}");
        task.abort();
    }
}

/// Bits as the deflate format packs them (RFC 1951): the lowest bit of each byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    /// Appends a Huffman code, whose highest bit comes first.
    fn code(&mut self, code: u32, length: u32) {
        for at in (0..length).rev() {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = u8::from(code >> at & 1 == 1) << (self.used % 8);
            *self.bytes.last_mut().expect("a byte") |= bit;
            self.used += 1;
        }
    }
}

/// Makes a gzip stream of spaces: 158 bytes for each byte of it, without an end.
fn bomb(bytes: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    // The last block, with the fixed codes.
    bits.code(0b1, 1);
    bits.code(0b10, 2);
    bits.code(0x30 + u32::from(b' '), 8);
    for _ in 0..bytes / 258 {
        // The previous byte, 258 times.
        bits.code(0b1100_0101, 8);
        bits.code(0, 5);
    }
    [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff][..], &bits.bytes].concat()
}

#[tokio::test]
async fn answer_that_grows_when_it_is_decompressed_is_cut() {
    let bomb = bomb(1 << 30);
    assert!(bomb.len() < 10 << 20, "{}", bomb.len());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n";
    let (traces, task) = served(head, Body::Cut(bomb), Duration::from_secs(60)).await;
    let error = traces.get_trace(&address("@one/x")).await.expect_err("over a gibibyte");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    task.abort();
}
