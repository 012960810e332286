//! A proxy before replicas: each connection goes to the next replica in turn, or to the one after it when that refuses.
//!
//! ```sh
//! cargo run --example proxy -- 127.0.0.1:7777 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003
//! ```
//!
//! It passes bytes on and knows nothing of requests, so nothing is ever sent twice by it: a connection that no replica took had no effect, and
//! one that breaks off is the client's to ask again about, with the same `Idempotency-Key`. `scripts/replicas.sh` puts it before
//! `stratafs serve`.

#![allow(clippy::print_stderr, reason = "a program of its own, which says what it does")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Where replicas are, and whose turn it is. Clones are one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replicas {
    places: Arc<Mutex<Vec<SocketAddr>>>,
    turn: Arc<AtomicUsize>,
}

impl Replicas {
    /// Makes the list.
    pub(crate) fn new(places: Vec<SocketAddr>) -> Self {
        Self { places: Arc::new(Mutex::new(places)), turn: Arc::default() }
    }

    /// Puts a replica that was started again in its place.
    #[allow(dead_code, reason = "the program knows of no new places, a test does")]
    pub(crate) fn replace(&self, index: usize, place: SocketAddr) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)[index] = place;
    }

    /// Connects to the next replica that takes a connection; none when all refuse.
    async fn connect(&self) -> Option<TcpStream> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for step in 0..places.len() {
            if let Ok(stream) = TcpStream::connect(places[(first + step) % places.len()]).await {
                return Some(stream);
            }
        }
        None
    }
}

/// Passes connections on, for ever.
pub(crate) async fn run(listener: TcpListener, replicas: Replicas) {
    while let Ok((mut client, _)) = listener.accept().await {
        let replicas = replicas.clone();
        tokio::spawn(async move {
            let Some(mut replica) = replicas.connect().await else { return };
            // What waits for more before it is sent only makes requests slow.
            let _ = (client.set_nodelay(true), replica.set_nodelay(true));
            // One that breaks off on either side ends on the other too.
            let _ = copy_bidirectional(&mut client, &mut replica).await;
        });
    }
}

#[allow(dead_code, reason = "a test takes the rest")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addresses = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
    let Some((listen, replicas)) = addresses.split_first().filter(|(_, replicas)| !replicas.is_empty()) else {
        return Err("usage: proxy LISTEN REPLICA [REPLICA ...], each an address and a port".into());
    };
    let listener = TcpListener::bind(listen).await?;
    eprintln!("http://{}", listener.local_addr()?);
    tokio::select! {
        () = run(listener, Replicas::new(replicas.to_vec())) => Ok(()),
        stopped = tokio::signal::ctrl_c() => Ok(stopped?),
    }
}
