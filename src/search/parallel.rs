//! Work on several items at once whose results come back in order.

use std::ops::ControlFlow;

/// Runs `work` on every item, on as many threads as `workers` (1 runs in place, without threads), and gives the results to
/// `sink` in the order of the items. When `sink` breaks, no further item is taken and the call returns soon.
///
/// Blocks: call it from a blocking thread.
pub fn ordered<I: Send, R: Send>(
    items: impl Iterator<Item = I> + Send,
    workers: usize,
    work: impl Fn(I) -> R + Sync,
    sink: impl FnMut(R) -> ControlFlow<()>,
) {
    let _ = (items, workers, work, sink);
    unimplemented!()
}
