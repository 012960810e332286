//! `mcp`: serves the tree to an MCP client over standard input and output.

use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::stdin_is_terminal;
use crate::cli::signal;
use crate::config::{Config, RouteType};
use crate::mcp::{McpOptions, McpServer, McpTools};
use crate::{Error, ErrorKind, VfsPathBuf};
use clap::Args;
use futures::FutureExt;

/// Serve the tree over MCP on standard input and output
///
/// Clients such as Claude Code start this command themselves. Each call loads the latest state of its thread and saves the thread
/// before it answers. A call that names no thread uses the thread of `--thread`. Without `--thread`, each project gets a thread
/// named after its `/workspace` directory; the name is printed on standard error at the start.
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
    /// `default`: the ten file tools. `ro`: the file tools that only read. `memory`: only the memory tool. `rw`: the file tools
    /// and the memory tool. `admin`: `rw` and the history of threads. `reference`: the tools of the MCP reference filesystem
    /// server, with its names and answers.
    #[arg(long, value_name = "TOOLS", default_value = "default")]
    tools: McpTools,
    /// Directory that the `reference` tools may access (repeatable) [default: /]
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
            context.out.notice(format_args!("thread `{thread}` is mounted at `/`; `treehold --thread {thread} ls /` lists its files"));
            context.global.thread = Some(thread);
        }
        context.check_mounted_session().await?;
        let options = self.offered.options(&context.config()?)?;
        let server = McpServer::new(context.workspace()?.clone(), options);
        server.check().await?;
        if stdin_is_terminal() {
            context.out.notice("waiting for a client to speak MCP on standard input; an agent host starts this command itself");
        }
        server.serve_stdio(signal::stop().map(drop)).await?;
        Ok(Outcome::Done)
    }
}

impl Offered {
    /// Returns the MCP options for a configuration. Tools take a thread argument if a route leads to the state of a thread.
    pub(crate) fn options(self, config: &Config) -> Result<McpOptions, Failure> {
        let has_threads = config.routes.values().any(|route| route.tier == RouteType::State);
        if !self.allowed.is_empty() && self.tools != McpTools::Reference {
            let message = "`--allow` applies only to the tool set `reference`; add `--tools reference`, or leave `--allow` out";
            return Err(Error::new(ErrorKind::InvalidArgument, message).into());
        }
        let allowed = self.allowed.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>()?;
        let options = McpOptions::new(config.scope()).with_thread_argument(has_threads).with_tools(self.tools).with_allowed(allowed);
        #[cfg(feature = "conformance")]
        let options = options.with_fixtures(self.conformance_fixtures);
        Ok(options)
    }
}
