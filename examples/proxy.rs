//! A proxy in front of replicas: each connection goes to the next replica in turn, or to the one after it if that
//! refuses.
//!
//! ```sh
//! cargo run --example proxy -- 127.0.0.1:7777 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003
//! ```
//!
//! It forwards bytes without understanding requests, so it never sends anything twice. A connection that no replica
//! accepted had no effect. After a broken connection, the client retries with the same `Idempotency-Key`.
//! `scripts/replicas.sh` puts it in front of `treehold serve`.

#![allow(clippy::print_stderr, reason = "a separate program, which reports what it does")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// The addresses of the replicas, and whose turn it is. Clones share the list.
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

    /// Replaces a replica that was restarted at another address.
    #[allow(dead_code, reason = "only a test replaces replicas")]
    pub(crate) fn replace(&self, index: usize, place: SocketAddr) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)[index] = place;
    }

    /// Connects to the next replica that accepts; `None` if all refuse.
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

/// Forwards connections forever.
pub(crate) async fn run(listener: TcpListener, replicas: Replicas) {
    while let Ok((mut client, _)) = listener.accept().await {
        let replicas = replicas.clone();
        tokio::spawn(async move {
            let Some(mut replica) = replicas.connect().await else { return };
            // Delaying small packets would only slow requests down.
            let _ = (client.set_nodelay(true), replica.set_nodelay(true));
            // When one side closes, the other is closed too.
            let _ = copy_bidirectional(&mut client, &mut replica).await;
        });
    }
}

#[allow(dead_code, reason = "a test uses the rest")]
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
