//! One connection on standard input and output.

use super::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio;

/// Serves until the client closes its side.
pub(super) async fn serve(connection: Connection) -> Result<()> {
    let broken = |error: String| Error::new(ErrorKind::Unavailable, format!("the connection to the MCP client broke: {error}"));
    let running = match connection.serve(stdio()).await {
        Ok(running) => running,
        // A client that closes before it says anything has nothing to be told.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(broken(error.to_string())),
    };
    running.waiting().await.map(drop).map_err(|error| broken(error.to_string()))
}
