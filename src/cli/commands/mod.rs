//! The commands: one file each, or one directory per family.

use crate::cli::args::Command;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};

pub(crate) mod cat;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod find;
pub(crate) mod glob;
pub(crate) mod grep;
pub(crate) mod ls;
#[cfg(feature = "mcp")]
pub(crate) mod mcp;
pub(crate) mod memory;
#[cfg(unix)]
pub(crate) mod mirror;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod overlay;
pub(crate) mod patch;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod search;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod stat;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod timeline;
#[cfg(feature = "serve")]
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod write;

/// Runs a command.
pub(crate) async fn run(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    match command {
        Command::Ls(ls) => ls.run(context).await,
        Command::Tree(tree) => tree.run(context).await,
        Command::Cat(cat) => cat.run(context).await,
        Command::Head(head) => head.run(context).await,
        Command::Stat(stat) => stat.run(context).await,
        Command::Find(find) => find.run(context).await,
        Command::Glob(glob) => glob.run(context).await,
        Command::Grep(grep) => grep.run(context).await,
        Command::Search(search) => search.run(context).await,
        Command::Diff(diff) => diff.run(context).await,
        Command::Write(write) => write.run(context).await,
        Command::Append(append) => append.run(context).await,
        Command::Edit(edit) => edit.run(context).await,
        Command::Patch(patch) => patch.run(context).await,
        Command::Rm(rm) => rm.run(context).await,
        Command::Mv(mv) => mv.run(context).await,
        Command::Cp(cp) => cp.run(context).await,
        Command::Mkdir(mkdir) => mkdir.run(context).await,
        Command::Timeline(timeline) => timeline.run(context).await,
        Command::Watch(watch) => watch.run(context).await,
        #[cfg(unix)]
        Command::Mirror(mirror) => mirror.run(context).await,
        Command::Run(run) => run.run(context).await,
        Command::Tools(tools) => tools.run(context),
        #[cfg(feature = "mcp")]
        Command::Mcp(mcp) => mcp.run(context).await,
        #[cfg(feature = "serve")]
        Command::Serve(serve) => serve.run(context).await,
        #[cfg(feature = "serve")]
        Command::Token(token) => token.run(context).await,
        Command::Checkpoint(checkpoint) => checkpoint.run(context).await,
        Command::Thread(thread) => thread.run(context).await,
        Command::Session(session) => session.run(context).await,
        Command::State(state) => state.run(context).await,
        Command::Trace(trace) => trace.run(context).await,
        Command::Overlay(overlay) => overlay.run(context).await,
        Command::Memory(memory) => memory.run(context).await,
        Command::Store(store) => store.run(context).await,
        Command::Config(config) => config.run(context),
        Command::Doctor(doctor) => doctor.run(context).await,
        Command::Completions(completions) => completions.run(context),
        Command::Man(man) => man.run(context),
    }
}
