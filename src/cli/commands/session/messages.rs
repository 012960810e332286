//! `session messages`: the messages of a session.

use super::{Owned, no_session, time};
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::sessions::{Block, Content, Json, Message, MessagesView, Role};
use clap::Args;

/// Print messages of a session, oldest first
///
/// Prints the newest messages of the window: those that a model would receive. Compacted messages are in archives; `--full`,
/// `--archive` and `--from` print them too. With `--json`, each message is printed as it was stored.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold session messages monday
  treehold session messages monday --budget 100000 --jsonl
  treehold session messages monday --from 0 --limit 1000
  treehold session messages monday --archive 0001")]
pub(crate) struct Messages {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Print at most N messages
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Print as many of the newest messages as TOKENS allow, by estimate, and never a tool result without its call
    #[arg(long, value_name = "TOKENS", conflicts_with = "limit")]
    budget: Option<u64>,
    /// Print every message, with summaries replaced by the messages that they summarise
    #[arg(long, conflicts_with_all = ["limit", "budget"])]
    full: bool,
    /// Print the first messages of an archive, such as `0001`
    #[arg(long, value_name = "ARCHIVE", conflicts_with_all = ["budget", "full"])]
    archive: Option<String>,
    /// Print messages from this position on, whether or not they were compacted
    #[arg(long, value_name = "POSITION", conflicts_with_all = ["budget", "full", "archive"])]
    from: Option<u64>,
}

impl Messages {
    pub(super) async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        if let Some(from) = self.from {
            return self.log(context, owned, from).await;
        }
        // One more than is printed shows whether there are more.
        let limit = Some(self.limit.saturating_add(1));
        let view = match (&self.archive, self.budget) {
            (Some(archive), _) => MessagesView::Archive(Some(archive), limit),
            (None, Some(budget)) => MessagesView::Budget(budget),
            (None, None) if self.full => MessagesView::Full,
            (None, None) => MessagesView::Recent(limit),
        };
        let read = owned.sessions.read_messages_of(&owned.tenant, &self.id, view).await?.ok_or_else(|| no_session(&self.id))?;
        let is_limited = matches!(view, MessagesView::Archive(..) | MessagesView::Recent(_));
        let more = read.messages.len().saturating_sub(self.limit);
        let shown = match view {
            MessagesView::Archive(..) => &read.messages[..read.messages.len().min(self.limit)],
            MessagesView::Recent(_) => &read.messages[more..],
            _ => &read.messages[..],
        };
        print_all(&mut context.out, 0, shown)?;
        if !context.out.is_text() {
            context.out.json_end(shown.len())?;
        }
        if is_limited && more > 0 {
            context.out.notice("there are more messages; raise `--limit`");
        }
        Ok(Outcome::found(!shown.is_empty()))
    }

    /// Prints a part of the log, page by page.
    async fn log(&self, context: &mut Context, owned: &Owned, from: u64) -> Result<Outcome, Failure> {
        let (mut count, mut next) = (0, Some(from));
        while let Some(from) = next
            && count < self.limit
        {
            let view = MessagesView::Log { from, limit: self.limit - count };
            let read = owned.sessions.read_messages_of(&owned.tenant, &self.id, view).await?.ok_or_else(|| no_session(&self.id))?;
            print_all(&mut context.out, count, &read.messages)?;
            count += read.messages.len();
            next = read.next;
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(next) = next {
            context.out.notice(format_args!("there are more messages; raise `--limit`, or continue with `--from {next}`"));
        }
        Ok(Outcome::found(count > 0))
    }
}

/// Prints messages, of which `count` others were printed before.
pub(super) fn print_all(out: &mut Output, count: usize, messages: &[Message]) -> Result<(), Failure> {
    for (message, index) in messages.iter().zip(count..) {
        match out.is_text() {
            true => print(out, message)?,
            // A message may have been stored with line breaks between its fields.
            false => out.json_element(index, &Json::parse(&message.json().on_one_line())?)?,
        }
    }
    Ok(())
}

/// Prints the role and time of a message, and its content indented, so that no content looks like another message.
fn print(out: &mut Output, message: &Message) -> Result<(), Failure> {
    let role = match message.role() {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::ToolResult => "tool result",
    };
    let mut head = role.to_owned();
    if let Some(call) = message.answers() {
        head.push_str(&format!("  {call}"));
    }
    if let Some(timestamp) = message.timestamp() {
        head.push_str(&format!("  {}", time(timestamp as i64)));
    }
    let head = out.paint(Style::Faint, head).to_string();
    out.line(head)?;
    match message.content() {
        Content::Text(text) => print_indented(out, &text),
        Content::Blocks(blocks) => blocks.iter().try_for_each(|block| print_block(out, block)),
    }
}

fn print_block(out: &mut Output, block: &Block<'_>) -> Result<(), Failure> {
    match (&*block.kind, &block.text) {
        ("text", Some(text)) => print_indented(out, text),
        ("toolCall", _) => {
            let arguments = block.arguments.map_or("", |arguments| arguments.get());
            let (id, name) = (block.id.as_deref().unwrap_or_default(), block.name.as_deref().unwrap_or_default());
            out.line(format_args!("  [tool call {id}] {name} {arguments}"))
        }
        ("thinking", _) => {
            out.line("  [thinking]")?;
            print_indented(out, block.thinking.as_deref().unwrap_or_default())
        }
        (kind, text) => {
            out.line(format_args!("  [{kind}]"))?;
            text.as_deref().map_or(Ok(()), |text| print_indented(out, text))
        }
    }
}

fn print_indented(out: &mut Output, text: &str) -> Result<(), Failure> {
    text.lines().try_for_each(|line| out.line(format_args!("  {line}")))
}
