//! `serve`: the tree over HTTP.

use super::mcp::Offered;
use crate::context::{Context, unread};
use crate::exit::{Failure, Outcome};
use crate::signal;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use stratafs::mcp::{HttpLimits, McpServer};
use stratafs::serve::{HttpServer, ServeOptions, Token};

/// Serve the tree over HTTP: to MCP clients at /mcp
///
/// A call is about the thread that its URL names (/mcp/t/THREAD), else its header Stratafs-Thread, else its argument `thread_id`, else
/// the one of --thread. Whoever reaches the address may read and write, so an address that others reach needs a token.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  stratafs serve
  claude mcp add --transport http files http://127.0.0.1:7777/mcp
  stratafs serve --listen 0.0.0.0:7777 --token-file token --allow-host files.example.com")]
pub(crate) struct Serve {
    /// Address to listen at; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7777")]
    listen: SocketAddr,
    /// File with the token that requests bring as `Authorization: Bearer`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Host that requests may name, beside those of the loopback device; may be repeated
    #[arg(long = "allow-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Origin of web pages that may send requests, such as https://app.example.com:443; may be repeated
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    #[command(flatten)]
    offered: Offered,
}

impl Serve {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let config = context.config()?;
        let mut limits = HttpLimits::default();
        limits.hosts.extend(self.hosts);
        limits.origins.extend(self.origins);
        let token = match &self.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(file).map_err(|error| unread(&file.display().to_string(), error))?;
                Some(Token::new(&text)?)
            }
            None => None,
        };
        let mcp = McpServer::new(context.workspace()?.clone(), self.offered.options(&config)?);
        let options = ServeOptions::new(self.listen, config.scope()).with_token(token).with_limits(limits);
        let server = HttpServer::bind(mcp, options).await?;
        context.out.line(format_args!("http://{}/mcp", server.address()?))?;
        context.out.flush()?;
        server.run(signal::stop()).await?;
        Ok(Outcome::Done)
    }
}
