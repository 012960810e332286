//! `mcp`: serves the tree to an MCP client over standard input and output.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::signal;
use clap::Args;
use treehold::config::{Config, RouteType};
use treehold::mcp::{McpOptions, McpServer, McpTools};
use treehold::{Error, ErrorKind, VfsPathBuf};

/// Serve the tree to an MCP client on standard input and output
///
/// A client such as Claude Code starts this command by itself. Each call works on the thread as it was saved last, and saves
/// it before the answer; a call that names no thread is about the one of `--thread`. Without it each project has a thread of its own:
/// that of the directory at `/workspace`, which is told on standard error at the start.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  claude mcp add files -- treehold mcp
  treehold --thread project-x mcp")]
pub(crate) struct Mcp {
    #[command(flatten)]
    offered: Offered,
}

/// What a server offers.
#[derive(Debug, Args)]
pub(crate) struct Offered {
    /// Tools to offer: default, reference, memory, ro, rw or admin
    ///
    /// `default` are the ten file tools, `ro` those of them that change nothing, `memory` is the memory tool alone, `rw` both, `admin` also
    /// the history of threads. `reference` are the tools of the reference filesystem server, answering as it does.
    #[arg(long, value_name = "TOOLS", default_value = "default")]
    tools: McpTools,
    /// Directory that the tools of `reference` reach; may be repeated [default: /]
    #[arg(long = "allow", value_name = "PATH")]
    allowed: Vec<String>,
    /// Offer the fixtures of the protocol's conformance suites too
    #[cfg(feature = "conformance")]
    #[arg(long, hide = true)]
    conformance_fixtures: bool,
}

impl Mcp {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let config = context.config()?;
        if !config.names_thread() {
            let thread = config.project_thread(&config.scope())?;
            context.out.notice(format_args!("thread `{thread}` stands at `/`; `treehold --thread {thread} ls /` shows it"));
            context.global.thread = Some(thread);
        }
        let options = self.offered.options(&context.config()?)?;
        let server = McpServer::new(context.workspace()?.clone(), options);
        server.check().await?;
        server.serve_stdio(signal::stop()).await?;
        Ok(Outcome::Done)
    }
}

impl Offered {
    /// Returns the MCP options for a configuration. Tools take a thread argument if a route leads to the state of a thread.
    pub(crate) fn options(self, config: &Config) -> Result<McpOptions, Failure> {
        let has_threads = config.routes.values().any(|route| route.tier == RouteType::State);
        if !self.allowed.is_empty() && self.tools != McpTools::Reference {
            let message = "--allow is about the tools of the set `reference`; add --tools reference, or leave --allow out";
            return Err(Error::new(ErrorKind::InvalidArgument, message).into());
        }
        let allowed = self.allowed.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>()?;
        let options = McpOptions::new(config.scope()).with_thread_argument(has_threads).with_tools(self.tools).with_allowed(allowed);
        #[cfg(feature = "conformance")]
        let options = options.with_fixtures(self.conformance_fixtures);
        Ok(options)
    }
}
