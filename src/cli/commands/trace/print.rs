//! Messages and goals as text.

use crate::cli::exit::Failure;
use crate::cli::output::{Output, Style};
use crate::cli::terminal::one_line;
use crate::traces::{GoalTree, Message};
use serde_json::Value;
use std::collections::HashSet;

/// The deepest goal that is printed with its own indentation.
const DEPTH_MAX: usize = 16;

/// Prints the sequence, role and time of a message, and its content indented, so that no content looks like another message.
pub(super) fn message(out: &mut Output, message: &Message) -> Result<(), Failure> {
    let mut head = format!("{:>6}  {}", message.sequence, one_line(&message.role));
    for (name, value) in [("answers", &message.tool_call_id), ("goal", &message.goal_id), ("branch", &message.branch_type)] {
        if let Some(value) = value {
            head.push_str(&format!("  {name} {}", one_line(value)));
        }
    }
    if let Some(span) = message.summarizes {
        head.push_str(&format!("  summary of {} to {}", span.from, span.to));
    }
    if let Some(time) = &message.created_at {
        head.push_str(&format!("  {}", one_line(time)));
    }
    let head = out.paint(Style::Faint, head).to_string();
    out.line(head)?;
    let Some(content) = &message.content else { return Ok(()) };
    match content.view::<Value>() {
        Ok(Value::String(text)) => indented(out, &text),
        Ok(Value::Object(fields)) if fields.contains_key("text") || fields.contains_key("tool_calls") => {
            indented(out, fields.get("text").and_then(Value::as_str).unwrap_or_default())?;
            fields.get("tool_calls").and_then(Value::as_array).into_iter().flatten().try_for_each(|call| tool_call(out, call))
        }
        _ => indented(out, content.as_str()),
    }
}

fn tool_call(out: &mut Output, call: &Value) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let function = &call["function"];
    let (id, name, arguments) = (&call["id"], &function["name"], &function["arguments"]);
    let line = format!("[tool call {}] {} {}", text(id), text(name), text(arguments));
    out.line(format_args!("        {}", one_line(&line)))
}

fn indented(out: &mut Output, text: &str) -> Result<(), Failure> {
    text.lines().try_for_each(|line| out.line(format_args!("        {line}")))
}

/// Prints goals, those below others indented.
pub(super) fn goals(out: &mut Output, tree: &GoalTree) -> Result<(), Failure> {
    let known: HashSet<&str> = tree.goals.iter().map(|goal| goal.id.as_str()).collect();
    let mut depths: Vec<(&str, usize)> = Vec::with_capacity(tree.goals.len());
    for goal in &tree.goals {
        // Parents come before their children.
        let parent = goal.parent_id.as_deref().filter(|parent| known.contains(parent));
        let depth = parent.and_then(|parent| depths.iter().rev().find(|(id, _)| *id == parent)).map_or(0, |(_, depth)| depth + 1);
        depths.push((&goal.id, depth));
        let status = serde_json::to_value(goal.status).ok().and_then(|status| status.as_str().map(str::to_owned)).unwrap_or_default();
        let mut line = format!("{}{} [{status}] {}", "  ".repeat(depth.min(DEPTH_MAX)), goal.id, goal.description);
        if let Some(summary) = &goal.summary {
            line.push_str(&format!(": {summary}"));
        }
        for sub_trace in &goal.sub_trace_ids {
            line.push_str(&format!("  -> {sub_trace}"));
        }
        out.line(format_args!("goal     {}", one_line(&line)))?;
    }
    Ok(())
}
