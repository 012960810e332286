//! A TCP proxy of a server that counts exchanges and can break them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Where the next exchange breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Break {
    /// The request does not arrive.
    Request = 1,
    /// The request arrives and its answer does not.
    Answer = 2,
    /// The request arrives, but the connection stays open without any answer.
    Silence = 3,
    /// The next request that begins a PostgreSQL transaction is misspelled, so the server refuses that part alone.
    Begin = 4,
}

/// A listener on loopback that forwards everything.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The number of client messages that follow a server message or open a connection: the round trips.
    turns: AtomicUsize,
    client_spoke: AtomicBool,
    breaks: AtomicUsize,
    /// How many requests pass before the one that breaks.
    passes: AtomicUsize,
    /// The number of connections so far, and of those that clients have closed.
    connections: AtomicUsize,
    ended: AtomicUsize,
    /// The ports by which the server knows the connections.
    ports: std::sync::Mutex<Vec<u16>>,
}

impl Proxy {
    /// Starts a proxy of a server.
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), state: Arc::default() };
        let state = proxy.state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                state.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(pass(client, server, state.clone()));
            }
        });
        proxy
    }

    /// Returns the round trips since the last call.
    pub(crate) fn round_trips(&self) -> usize {
        self.state.client_spoke.store(false, Ordering::SeqCst);
        self.state.turns.swap(0, Ordering::SeqCst)
    }

    /// Breaks the next exchange.
    pub(crate) fn break_next(&self, at: Break) {
        self.state.breaks.store(at as usize, Ordering::SeqCst);
    }

    /// Breaks the exchange after this many others.
    pub(crate) fn break_after(&self, passes: usize, at: Break) {
        self.state.passes.store(passes, Ordering::SeqCst);
        self.state.breaks.store(at as usize, Ordering::SeqCst);
    }

    /// Cancels the planned break; returns whether it had not happened yet.
    pub(crate) fn mend(&self) -> bool {
        self.state.breaks.swap(0, Ordering::SeqCst) != 0
    }

    /// Returns the ports by which the server knows the connections, old ones included.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.state.ports.lock().unwrap().clone()
    }

    /// Waits until the clients have ended all their connections.
    pub(crate) async fn all_ended(&self) {
        while self.state.ended.load(Ordering::SeqCst) < self.state.connections.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

/// Misspells `BEGIN` so that no server accepts it; returns whether it occurred.
fn misspell(request: &mut [u8]) -> bool {
    let place = request.windows(6).position(|word| word == b"BEGIN ");
    if let Some(place) = place {
        request[place + 4] = b'M';
    }
    place.is_some()
}

async fn pass(mut client: TcpStream, server: SocketAddr, state: Arc<State>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    state.ports.lock().unwrap().push(server.local_addr().unwrap().port());
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (mut swallows, mut is_silent, mut is_over) = (false, false, false);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(count @ 1..) = read else { break };
                if !state.client_spoke.swap(true, Ordering::SeqCst) {
                    state.turns.fetch_add(1, Ordering::SeqCst);
                }
                let passes = state.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                if passes && state.breaks.load(Ordering::SeqCst) != 0 {
                    // A later exchange breaks instead.
                } else if state.breaks.load(Ordering::SeqCst) == Break::Begin as usize {
                    if misspell(&mut from_client[..count]) {
                        state.breaks.store(0, Ordering::SeqCst);
                    }
                } else {
                    match state.breaks.swap(0, Ordering::SeqCst) {
                        at if at == Break::Request as usize => break,
                        at => {
                            swallows |= at == Break::Answer as usize;
                            is_silent |= at == Break::Silence as usize;
                        }
                    }
                }
                if server.write_all(&from_client[..count]).await.is_err() {
                    break;
                }
            }
            read = server.read(&mut from_server), if !is_over => {
                state.client_spoke.store(false, Ordering::SeqCst);
                match read {
                    Ok(1..) if is_silent => {}
                    Ok(count @ 1..) if !swallows => {
                        if client.write_all(&from_server[..count]).await.is_err() {
                            break;
                        }
                    }
                    Ok(1..) => break,
                    // The server has closed the connection: the proxy closes its side too, and waits for the client to do the same.
                    _ => {
                        is_over = true;
                        let _ = client.shutdown().await;
                    }
                }
            }
        }
    }
    drop(client);
    state.ended.fetch_add(1, Ordering::SeqCst);
}
