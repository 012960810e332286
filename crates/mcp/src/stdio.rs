//! One connection over standard input and output, with one message per line.
//!
//! The stdio transport of `rmcp` silently ignores lines that are not JSON, which leaves the client waiting. This one answers every line as
//! [JSON-RPC](https://www.jsonrpc.org/specification#error_object) requires: -32700 if it cannot be parsed, -32600 if it is not a message or
//! too long, with its `id` if it has one, otherwise `null`. Notifications are never answered. Bodies over HTTP that are no message are
//! refused in the same words.

use super::connection::Connection;
use rmcp::model::ErrorCode;
use rmcp::service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServiceExt};
use serde_json::{Value, json};
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::work;

/// The longest line, in bytes; the same as the default for a request over HTTP.
const LINE_BYTES_MAX: usize = 16 << 20;

/// How many responses may be queued for writing.
const ANSWERS_MAX: usize = 16;

/// Serves until the client closes its end.
pub(super) async fn serve(connection: Connection) -> Result<()> {
    serve_over(connection, tokio::io::stdin(), tokio::io::stdout()).await
}

pub(super) async fn serve_over(
    connection: Connection,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<()> {
    let broken = |error: String| Error::new(ErrorKind::Unavailable, format!("the connection to the MCP client broke: {error}"));
    let running = match connection.serve(Lines::new(input, output, LINE_BYTES_MAX)).await {
        Ok(running) => running,
        // The client closed the connection before its first message.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(broken(error.to_string())),
    };
    running.waiting().await.map(drop).map_err(|error| broken(error.to_string()))
}

/// A transport with one message per line. A single task writes, so that a cancelled wait never truncates or interleaves lines.
struct Lines<R> {
    input: BufReader<R>,
    line_bytes_max: usize,
    /// The part of a line received so far. A cancelled wait does not lose it.
    line: Vec<u8>,
    /// Whether the line is too long and its rest is skipped.
    is_too_long: bool,
    /// An error response that waits to be sent.
    answer: Option<Value>,
    answers: Option<mpsc::Sender<Vec<u8>>>,
    writing: Option<JoinHandle<io::Result<()>>>,
}

/// The content of a line.
enum Line {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    Answer(Value),
    Nothing,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    fn new(input: R, output: impl AsyncWrite + Send + Unpin + 'static, line_bytes_max: usize) -> Self {
        let (answers, waiting) = mpsc::channel(ANSWERS_MAX);
        Self {
            input: BufReader::new(input),
            line_bytes_max,
            line: Vec::new(),
            is_too_long: false,
            answer: None,
            answers: Some(answers),
            writing: Some(tokio::spawn(write(output, waiting))),
        }
    }

    /// Reads to the end of a line. Returns false at the end of the input.
    async fn read(&mut self) -> bool {
        loop {
            let available = match self.input.fill_buf().await {
                Ok([]) => return false,
                Ok(available) => available,
                Err(error) => {
                    tracing::warn!(%error, "standard input cannot be read");
                    return false;
                }
            };
            let end = memchr::memchr(b'\n', available);
            let part = &available[..end.unwrap_or(available.len())];
            if self.is_too_long || self.line.len() + part.len() > self.line_bytes_max {
                self.is_too_long = true;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let taken = part.len() + usize::from(end.is_some());
            self.input.consume(taken);
            if end.is_some() {
                return true;
            }
        }
    }

    /// Parses the line that was read as a message, or returns the error response to it.
    fn taken(&mut self) -> Line {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            let message = format!("a message may have at most {} bytes", self.line_bytes_max);
            return Line::Answer(failure(ErrorCode::INVALID_REQUEST, &message, Value::Null));
        }
        message(&line)
    }
}

fn message(line: &[u8]) -> Line {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if line.iter().all(u8::is_ascii_whitespace) {
        return Line::Nothing;
    }
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return Line::Answer(not_json("line", &error)),
    };
    // What the error response needs if this is not a message.
    let id = id_of(&value);
    let is_notification = value.get("id").is_none() && value.get("method").is_some_and(Value::is_string);
    match serde_json::from_value(value) {
        Ok(message) => Line::Message(Box::new(message)),
        Err(error) if is_notification => {
            tracing::debug!(%error, "an unknown notification was ignored");
            Line::Nothing
        }
        Err(error) => {
            tracing::debug!(%error, "a line is not a message");
            Line::Answer(not_a_message("line", id))
        }
    }
}

/// Returns the error response to a body over HTTP that was refused because it is not a message: -32700 if it is not JSON, otherwise -32600.
#[cfg(feature = "http")]
pub fn refusal(body: &[u8]) -> Value {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => not_a_message("body", id_of(&value)),
        Err(error) => not_json("body", &error),
    }
}

fn not_json(what: &str, error: &serde_json::Error) -> Value {
    failure(ErrorCode::PARSE_ERROR, &format!("the {what} is not JSON: {error}"), Value::Null)
}

fn not_a_message(what: &str, id: Value) -> Value {
    failure(ErrorCode::INVALID_REQUEST, &format!("the {what} is not a message of the protocol"), id)
}

/// Returns the id of a text that may not be a message, or null.
fn id_of(value: &Value) -> Value {
    value.get("id").filter(|id| id.is_string() || id.is_i64() || id.is_u64()).cloned().unwrap_or_default()
}

fn failure(code: ErrorCode, message: &str, id: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code.0, "message": message}})
}

/// Writes complete lines until all senders are dropped.
async fn write(mut output: impl AsyncWrite + Unpin, mut waiting: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(line) = waiting.recv().await {
        output.write_all(&line).await?;
        if waiting.is_empty() {
            output.flush().await?;
        }
    }
    output.flush().await
}

/// Writes a message as a line. A long one is written on a blocking thread.
async fn line_of(message: impl serde::Serialize + Send + 'static) -> io::Result<Vec<u8>> {
    let mut line = work::to_json(message).await.map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is closed")
}

impl<R: AsyncRead + Send + Unpin> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let answers = self.answers.clone();
        async move {
            let line = line_of(item).await?;
            answers.ok_or_else(closed)?.send(line).await.map_err(|_| closed())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            // Keep the response here until the queue has room, so that a cancelled wait does not lose it.
            if self.answer.is_some() {
                let room = self.answers.as_ref()?.reserve().await.ok()?;
                let mut line = self.answer.take()?.to_string().into_bytes();
                line.push(b'\n');
                room.send(line);
            }
            if !self.read().await {
                return None;
            }
            match self.taken() {
                Line::Message(message) => return Some(*message),
                Line::Answer(answer) => self.answer = Some(answer),
                Line::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.answers = None;
        match self.writing.take() {
            Some(writing) => writing.await.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, duplex};

    const LINE_BYTES_MAX: usize = 100;
    const LONG_BYTES_MAX: usize = 1 << 20;
    const PING: &str = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}";

    /// Returns the ids of the messages that are received from an input, and the responses to everything else.
    async fn taken(input: &[u8]) -> (Vec<Value>, Vec<Value>) {
        taken_up_to(LINE_BYTES_MAX, input).await
    }

    async fn taken_up_to(line_bytes_max: usize, input: &[u8]) -> (Vec<Value>, Vec<Value>) {
        let (mut peer, output) = duplex(1 << 16);
        let mut lines = Lines::new(input, output, line_bytes_max);
        let mut ids = Vec::new();
        while let Some(message) = lines.receive().await {
            ids.push(serde_json::to_value(&message).expect("data")["id"].clone());
        }
        lines.close().await.expect("written");
        let mut answers = String::new();
        peer.read_to_string(&mut answers).await.expect("read");
        (ids, answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
    }

    #[tokio::test]
    async fn malformed_line_is_answered_and_next_message_is_received() {
        for (line, code, id) in [
            (&b"not json"[..], -32700, Value::Null),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1,", -32700, Value::Null),
            (b"\xff\xfe", -32700, Value::Null),
            (b"{\"foo\":1}", -32600, Value::Null),
            (b"[]", -32600, Value::Null),
            (b"null", -32600, Value::Null),
            (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600, Value::Null),
            (b"{\"id\":\"x\",\"method\":7}", -32600, json!("x")),
            (&[b' '; LINE_BYTES_MAX + 1], -32600, Value::Null),
            (&[b'x'; 3 * LINE_BYTES_MAX], -32600, Value::Null),
        ] {
            let shown = String::from_utf8_lossy(line);
            let (ids, answers) = taken(&[line, b"\n", PING.as_bytes(), b"\r\n"].concat()).await;
            assert_eq!(ids, [7], "{shown}");
            assert_eq!(answers.len(), 1, "{shown}: {answers:?}");
            assert_eq!((&answers[0]["error"]["code"], &answers[0]["id"]), (&json!(code), &id), "{shown}");
            assert!(answers[0].as_object().expect("an object").contains_key("id"), "{shown}");
        }
    }

    /// JSON that is made to be costly or ambiguous gets one answer, and the connection goes on.
    #[tokio::test]
    async fn hostile_line_is_answered_once_and_next_message_is_received() {
        let call = |arguments: &str| {
            let params = format!("{{\"name\":\"ls\",\"arguments\":{arguments}}}");
            format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{params}}}")
        };
        let deep = [("[", "]"), ("{\"a\":", "}")].map(|(open, close)| format!("{}1{}", open.repeat(50_000), close.repeat(50_000)));
        let unclosed = "[".repeat(500_000);
        let digits = "9".repeat(100_000);
        let id = |id: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}");
        for (line, code) in [
            (deep[0].clone(), -32700),
            (deep[1].clone(), -32700),
            (call(&deep[0]), -32700),
            (call(&format!("{{\"path\":{}}}", deep[1])), -32700),
            (unclosed, -32700),
            // Numbers beyond what 64 bits hold.
            (call(&format!("{{\"limit\":{digits}}}")), -32700),
            (call("{\"limit\":1e999}"), -32700),
            (id(&digits), -32700),
            (id("18446744073709551616"), -32600),
            (id("-9223372036854775809"), -32600),
            (id("null"), -32600),
            (id("{\"a\":1}"), -32600),
            // Text that is not Unicode, and characters that JSON forbids within text.
            (id("\"\\ud800\""), -32700),
            (id("\"a\u{0}b\""), -32700),
            (format!("\u{0}{PING}"), -32700),
            (format!("{PING}{PING}"), -32700),
            (format!("{}{PING}", " ".repeat(LONG_BYTES_MAX)), -32600),
        ] {
            let shown: String = line.chars().take(120).collect();
            let (ids, answers) = taken_up_to(LONG_BYTES_MAX, format!("{line}\n{PING}\n").as_bytes()).await;
            assert_eq!(ids, [7], "{shown}");
            assert_eq!(answers.iter().map(|answer| answer["error"]["code"].clone()).collect::<Vec<_>>(), [code], "{shown}");
        }
        let invalid = [&call("{\"path\":\"")[..], "\n"].concat().into_bytes();
        let invalid = [&invalid[..invalid.len() - 3], b"\xff\xfe\"}}}\n", PING.as_bytes(), b"\n"].concat();
        let (ids, answers) = taken_up_to(LONG_BYTES_MAX, &invalid).await;
        assert_eq!((ids, answers.len(), &answers[0]["error"]["code"]), (vec![json!(7)], 1, &json!(-32700)));
        // An exponent does not make a number a fraction: the id is the whole number 1000.
        let (ids, answers) = taken_up_to(LONG_BYTES_MAX, format!("{}\n{PING}\n", id("1e3")).as_bytes()).await;
        assert_eq!((ids, answers.len()), (vec![json!(1000), json!(7)], 0));
        // If a key occurs twice, the last value counts, both for the message and for its id.
        let twice = "{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"none\",\"method\":\"ping\"}";
        let (ids, answers) = taken_up_to(LONG_BYTES_MAX, format!("{twice}\n{PING}\n").as_bytes()).await;
        assert_eq!((ids, answers.len()), (vec![json!(2), json!(7)], 0));
    }

    #[tokio::test]
    async fn blank_lines_and_notifications_are_not_answered() {
        for line in ["", " ", "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/of-another-time\"}"] {
            let (_, answers) = taken(format!("\u{feff}{line}\n{PING}\n").as_bytes()).await;
            assert!(answers.is_empty(), "{line}: {answers:?}");
        }
        let (ids, answers) = taken(b"{\"jsonrpc\":\"2.0\",\"id\":1").await;
        assert!(ids.is_empty() && answers.is_empty(), "a line without an end is ignored");
    }

    /// A connection waits for messages and other events at once, and cancels one wait for the other.
    #[tokio::test]
    async fn cancelled_receive_loses_nothing() {
        let (mut client, server) = duplex(8);
        let mut lines = Lines::new(server, tokio::io::sink(), LINE_BYTES_MAX);
        let writing = tokio::spawn(async move {
            for part in ["bad\n", &PING[..9], &PING[9..], "\n"] {
                client.write_all(part.as_bytes()).await.expect("written");
            }
        });
        let message = loop {
            let waited = futures::future::select(Box::pin(lines.receive()), Box::pin(tokio::task::yield_now())).await;
            if let futures::future::Either::Left((message, _)) = waited {
                break message.expect("a message");
            }
        };
        assert_eq!(serde_json::to_value(&message).expect("data")["id"], 7);
        writing.await.expect("written");
    }
}
