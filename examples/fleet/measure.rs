//! The runs that predictions are compared with: writers of a real store.

use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold::Result;
use treehold::store::{Batch, Namespace, Store};

/// The bytes of each body.
const BODY_BYTES: usize = 512;

/// What came of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) writers: usize,
    pub(crate) partitions: usize,
    /// The reads before each commit.
    pub(crate) reads: usize,
    pub(crate) commits_per_second: f64,
    /// In seconds.
    pub(crate) p99: f64,
}

/// Has writers put rows, each into one partition and after some reads of rows there. Does not count a short time at the beginning.
pub(crate) async fn measure(store: &Arc<dyn Store>, (writers, partitions, reads): (usize, usize, usize), seconds: f64) -> Result<Measured> {
    let began = Instant::now() + Duration::from_secs_f64(0.3);
    let until = began + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let space = Namespace::new(["fleet", &format!("user-{}", writer % partitions), "notes"])?;
                let mut times = Vec::new();
                for number in 0_usize.. {
                    for read in 1..=reads {
                        store.get(&space, &format!("{writer}/{}", (number + read * 7) % 1_000)).await?;
                    }
                    let key = format!("{writer}/{}", number % 1_000);
                    let started = Instant::now();
                    store.commit(Batch::new().put(&space, key, vec![b'x'; BODY_BYTES])).await?;
                    let ended = Instant::now();
                    if ended > until {
                        break;
                    }
                    if started >= began {
                        times.push((ended - started).as_secs_f64());
                    }
                }
                Ok::<_, treehold::Error>(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("a writer does not panic")?);
    }
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(0.0);
    Ok(Measured { writers, partitions, reads, commits_per_second: times.len() as f64 / seconds, p99 })
}
