//! Repeats a change that lost a race.

use crate::backoff::LostRaces;
use crate::error::{Error, ErrorKind, Result};

/// Counts the attempts of one change. Each reads the rows that it depends on, and commits on the condition that they are unchanged.
#[derive(Debug, Default)]
pub struct Attempts(LostRaces);

impl Attempts {
    /// Starts to count.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits after a lost race: a random pause that grows with the attempts.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), without an effect, after 1,000 lost races.
    pub async fn lost(&mut self) -> Result<()> {
        if !self.0.lost().await {
            let message = "other writers were faster every time; try again later";
            return Err(Error::new(ErrorKind::Unavailable, message).without_effect());
        }
        Ok(())
    }
}
