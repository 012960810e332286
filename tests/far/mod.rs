//! A small remote server for tests: serves a tree in the format of `treehold::wire` over hand-written HTTP/1.1, so that a test can drop an
//! answer, replace it, or close the connection.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use treehold::backend::BackendExt as _;
use treehold::ops::ApplyOptions;
use treehold::wire::{
    ApplyReply, ApplyRequest, CapabilitiesReply, ChangeRecord, GlobRequest, GrepRequest, LsRequest, Problem, ReadRequest, RequestFault,
    SearchRequest, StatRequest,
};
use treehold::{Backend, Error, Result, VfsPath};

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// The response.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: vec![("content-type".to_owned(), media_type.to_owned())], body: body.into() }
    }

    pub(crate) fn json(value: &impl serde::Serialize) -> Self {
        Self::new(200, "application/json", serde_json::to_vec(value).unwrap())
    }

    pub(crate) fn problem(error: &Error) -> Self {
        let problem = Problem::new(error);
        Self::new(problem.status, "application/problem+json", serde_json::to_vec(&problem).unwrap())
    }

    /// Returns the problem of a request whose first attempt is still running.
    pub(crate) fn request_running() -> Self {
        let problem = Problem::of_request(RequestFault::RequestRunning, "the first request with this key is still running");
        Self::new(problem.status, "application/problem+json", serde_json::to_vec(&problem).unwrap())
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// The fate of a request.
pub(crate) enum Fate {
    /// The tree answers.
    Served,
    /// The tree processes it, but the answer is lost.
    AnswerLost,
    /// It is lost before it reaches the tree.
    Lost,
    /// A given response is sent instead.
    Answered(Reply),
    /// The answer begins and never ends.
    Endless(Reply),
}

type Decide = dyn Fn(&Request) -> Fate + Send + Sync;

/// A remote server on a loopback port.
pub(crate) struct FarSide {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for FarSide {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FarSide {
    pub(crate) async fn serve(tree: Arc<dyn Backend>, decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let far = Arc::new(Far { tree, decide: Box::new(decide), requests: requests.clone(), answers: Mutex::default() });
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let far = far.clone();
                connections.spawn(async move { far.connection(stream).await });
            }
        });
        Self { address, requests, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests since the last call, except those about capabilities, as `METHOD PATH`.
    pub(crate) fn take(&self) -> Vec<String> {
        let taken = std::mem::take(&mut *self.requests.lock());
        let told = taken.iter().filter(|request| !request.path.ends_with("/capabilities"));
        told.map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

struct Far {
    tree: Arc<dyn Backend>,
    decide: Box<Decide>,
    requests: Arc<Mutex<Vec<Request>>>,
    /// The answers, by idempotency key.
    answers: Mutex<HashMap<String, Reply>>,
}

impl Far {
    async fn connection(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = request(&mut stream).await {
            self.requests.lock().push(request.clone());
            let reply = match (self.decide)(&request) {
                Fate::Lost => return,
                Fate::Served => self.answer(&request).await,
                Fate::AnswerLost => {
                    self.answer(&request).await;
                    return;
                }
                Fate::Answered(reply) => reply,
                Fate::Endless(reply) => {
                    let head = head(&reply, None);
                    if stream.write_all(head.as_bytes()).await.is_err() {
                        return;
                    }
                    while stream.write_all(&reply.body).await.is_ok() {}
                    return;
                }
            };
            let mut bytes = head(&reply, Some(reply.body.len())).into_bytes();
            bytes.extend_from_slice(&reply.body);
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, request: &Request) -> Reply {
        let key = request.headers.get("idempotency-key");
        if let Some(reply) = key.and_then(|key| self.answers.lock().get(key).cloned()) {
            return reply;
        }
        let reply = match self.of_tree(request).await {
            Ok(reply) => reply,
            Err(error) => Reply::problem(&error),
        };
        if let Some(key) = key {
            self.answers.lock().insert(key.clone(), reply.clone());
        }
        reply
    }

    async fn of_tree(&self, request: &Request) -> Result<Reply> {
        let body = || request.body.as_slice();
        let name = request.path.strip_prefix("/v1/").unwrap();
        Ok(match name {
            "capabilities" => Reply::json(&CapabilitiesReply::new(self.tree.capabilities(), Vec::new())),
            "stat" => {
                let asked: StatRequest = serde_json::from_slice(body()).unwrap();
                Reply::json(&self.tree.stat(&asked.path, &asked.options()).await?)
            }
            "ls" => {
                let asked: LsRequest = serde_json::from_slice(body()).unwrap();
                Reply::json(&self.tree.ls(&asked.path.clone(), &asked.options()?).await?)
            }
            "glob" => {
                let asked: GlobRequest = serde_json::from_slice(body()).unwrap();
                Reply::json(&self.tree.glob(&asked.path.clone(), &asked.options()?).await?)
            }
            "grep" => {
                let asked: GrepRequest = serde_json::from_slice(body()).unwrap();
                Reply::json(&self.tree.grep(&asked.path.clone(), &asked.options()?).await?)
            }
            "search" => {
                let asked: SearchRequest = serde_json::from_slice(body()).unwrap();
                Reply::json(&self.tree.search(&asked.path.clone(), &asked.options()?).await?)
            }
            "apply" => {
                let asked: ApplyRequest = serde_json::from_slice(body()).unwrap();
                let changes = asked.changes.into_iter().map(ChangeRecord::into_change).collect::<Result<Vec<_>>>()?;
                let options = ApplyOptions::new().with_allow_partial(asked.allow_partial).with_refuse_links(asked.refuse_links);
                Reply::json(&ApplyReply::new(self.tree.apply(&changes, &options).await?))
            }
            file => {
                let path = decoded(file.strip_prefix("fs").unwrap());
                let fields: serde_json::Map<_, _> = request
                    .query
                    .split('&')
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(name, value)| (name.to_owned(), serde_json::from_str(value).unwrap()))
                    .collect();
                let asked: ReadRequest = serde_json::from_value(fields.into()).unwrap();
                let read = self.tree.read(&VfsPath::parse(&path)?, &asked.options()?).await?;
                let mut reply = Reply::new(200, "application/octet-stream", read.content.to_vec())
                    .with("etag", format!("\"{}\"", read.version))
                    .with("treehold-size", read.size_bytes);
                if let Some(at) = read.modified_at {
                    reply = reply.with("treehold-modified-at", at);
                }
                if let Some(window) = read.window {
                    reply = reply.with("treehold-window", format!("{},{},{}", window.offset, window.lines, window.total_lines));
                }
                reply
            }
        })
    }
}

fn head(reply: &Reply, length: Option<usize>) -> String {
    let mut head = format!("HTTP/1.1 {} Told\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match length {
        Some(length) => head.push_str(&format!("content-length: {length}\r\n\r\n")),
        None => head.push_str("connection: close\r\n\r\n"),
    }
    head
}

async fn request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers: HashMap<String, String> =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), headers, body })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match first {
            b'%' => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Returns a tree with a few files, some of which are private.
pub(crate) async fn small_tree() -> Arc<dyn Backend> {
    let tree = treehold::StateBackend::new();
    for (path, content) in
        [("/w/a.md", "one\ntwo needle\n"), ("/w/d/b.md", "needle\n"), ("/w/secret/c.md", "needle\n"), ("/other.md", "needle\n")]
    {
        tree.write(path, content).await.unwrap();
    }
    Arc::new(tree)
}
