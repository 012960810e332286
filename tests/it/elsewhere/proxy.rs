//! A proxy before a server, which loses answers, cuts connections, and counts bytes.

use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

#[derive(Default)]
struct State {
    /// Whether connections are refused.
    closed: bool,
    /// How many connections lose their first answer.
    lossy: usize,
    open: JoinSet<()>,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    received: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy before the server at a URL.
    pub(crate) async fn start(url: &str) -> Self {
        let target = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, received) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicUsize::new(0)));
        let (shared, counted) = (state.clone(), received.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut state = shared.lock();
                if state.closed {
                    continue;
                }
                let loses = state.lossy > 0;
                state.lossy = state.lossy.saturating_sub(1);
                state.open.spawn(connection(client, target.clone(), loses, counted.clone()));
            }
        });
        Self { address, state, received, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Loses the first answers of the next connections.
    pub(crate) fn lose(&self, connections: usize) {
        self.state.lock().lossy = connections;
    }

    /// Cuts all connections, and refuses new ones while `closed`.
    pub(crate) fn close(&self, closed: bool) {
        let mut state = self.state.lock();
        state.closed = closed;
        state.open = JoinSet::new();
    }

    /// Returns how many bytes of answers passed.
    pub(crate) fn received(&self) -> usize {
        self.received.swap(0, Ordering::SeqCst)
    }
}

async fn connection(client: TcpStream, target: String, loses: bool, counted: Arc<AtomicUsize>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let upward = pass(from_client, to_server, Arc::default());
    if loses {
        let mut from_server = from_server;
        let mut first = [0; 1];
        // The server answered. The client does not learn it.
        tokio::select! {
            () = upward => {}
            _ = from_server.read(&mut first) => {}
        }
        return;
    }
    tokio::join!(upward, pass(from_server, to_client, counted));
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, counted: Arc<AtomicUsize>) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        counted.fetch_add(read, Ordering::SeqCst);
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}
