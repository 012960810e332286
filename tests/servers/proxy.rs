//! A way to a server that counts what goes over it and can break.

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
    /// The request arrives, and nothing comes back on the connection any more, which stays open.
    Silence = 3,
    /// The next request that begins a transaction of PostgreSQL has a slip in it, and the server refuses that part alone.
    Begin = 4,
}

/// A listener on loopback that passes everything on.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// How often a client spoke after the server did, or first.
    turns: AtomicUsize,
    client_spoke: AtomicBool,
    breaks: AtomicUsize,
    /// How many requests pass before the one that breaks.
    passes: AtomicUsize,
    /// How many connections there were and how many of them clients have ended.
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

    /// Returns the round trips since it was asked last.
    pub(crate) fn round_trips(&self) -> usize {
        self.state.client_spoke.store(false, Ordering::SeqCst);
        self.state.turns.swap(0, Ordering::SeqCst)
    }

    /// Breaks the next exchange.
    pub(crate) fn break_next(&self, at: Break) {
        self.state.breaks.store(at as usize, Ordering::SeqCst);
    }

    /// Breaks the exchange after so many.
    pub(crate) fn break_after(&self, passes: usize, at: Break) {
        self.state.passes.store(passes, Ordering::SeqCst);
        self.state.breaks.store(at as usize, Ordering::SeqCst);
    }

    /// Takes back what was to break; tells whether it had not broken.
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

/// Makes `BEGIN` a word that no server knows; tells whether it was there.
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
                    // It is the turn of a later one.
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
                    // The server has hung up: so does the proxy, and waits until the client does.
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
