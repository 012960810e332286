//! Request bodies: their bounds, and what happens to incomplete ones.

use super::Served;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Connects and sends the head of a request.
fn begun(served: &Served, head: &str) -> TcpStream {
    let host = served.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("{head}\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Returns the status of the response.
fn status(stream: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default()
}

fn chunk(stream: &mut TcpStream, part: &[u8]) {
    stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).unwrap();
    stream.write_all(part).unwrap();
    stream.write_all(b"\r\n").unwrap();
}

#[test]
fn concurrent_large_uploads_complete_in_less_memory_than_their_total() {
    let served = Served::with(|options| options.with_bodies_bytes_max(8 * MIB).with_upload_bytes_max(4 * MIB));
    std::thread::scope(|scope| {
        for number in 0..12_u8 {
            let served = &served;
            scope.spawn(move || {
                let key = format!("key-{number}");
                // Some with a key, since different code receives those.
                let headers = if number % 2 == 0 { vec![("idempotency-key", key.as_str())] } else { Vec::new() };
                let put = served.send("PUT", &format!("/v1/fs/memories/{number}"), &headers, &vec![number; 3 * MIB + 11]);
                assert_eq!(put.status, 201);
            });
        }
    });
    for number in 0..12_u8 {
        assert!(served.get(&format!("/v1/fs/memories/{number}")).bytes() == vec![number; 3 * MIB + 11]);
    }
    assert_eq!(served.put("/v1/fs/memories/larger", &vec![0; 4 * MIB + 1]).code(), "too_large");
}

#[test]
fn chunked_requests_with_keys_do_not_wait_for_each_other() {
    // Enough memory for the first part of each body, but for the whole of only one.
    let served = Served::with(|options| options.with_bodies_bytes_max(16 * MIB));
    let mut streams: Vec<TcpStream> = (0..40)
        .map(|number| {
            let head = format!("PUT /v1/fs/memories/{number} HTTP/1.1\r\nidempotency-key: {number}\r\ntransfer-encoding: chunked");
            let mut stream = begun(&served, &head);
            chunk(&mut stream, b"begun ");
            stream
        })
        .collect();
    // The last to begin is the first to end.
    for stream in streams.iter_mut().rev() {
        chunk(stream, b"and ended");
        stream.write_all(b"0\r\n\r\n").unwrap();
        assert_eq!(status(stream), 201);
    }
    assert_eq!(served.get("/v1/fs/memories/39").text(), "begun and ended");
}

#[test]
fn cut_body_leaves_no_file_and_no_key() {
    let served = Served::start();
    for (number, head) in [format!("content-length: {}", 2 * MIB), "transfer-encoding: chunked".to_owned()].iter().enumerate() {
        for key in ["", "\r\nidempotency-key: cut"] {
            let mut stream = begun(&served, &format!("PUT /v1/fs/memories/cut HTTP/1.1\r\n{head}{key}"));
            match number {
                0 => stream.write_all(&vec![b'x'; MIB]).unwrap(),
                _ => chunk(&mut stream, &vec![b'x'; MIB]),
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let answered = status(&mut stream);
            assert!(answered == 400 || answered == 0, "{answered}");
            assert_eq!(served.get("/v1/fs/memories/cut").code(), "not_found");
        }
    }
    // The failed request did not consume the key.
    assert_eq!(served.send("PUT", "/v1/fs/memories/cut", &[("idempotency-key", "cut")], b"whole").status, 201);
}
