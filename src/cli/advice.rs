//! Errors of the library in the words of the command line: flags instead of arguments, and paths that were probably meant.

use crate::cli::context::Context;
use crate::cli::exit::Failure;
use crate::clock::parse_age;
use crate::ops::Moment;
use crate::tools::with_near_paths;
use crate::{Error, ErrorKind};
use jiff::Timestamp;

/// What the library advises, and the same for a command.
///
/// An empty command stands for all.
const PHRASES: &[(&str, &str, &str)] = &[
    ("", "the path is not absolute; start it with `/`", "a path of the tree starts with `/`; `treehold ls /` lists what there is"),
    ("edit", "or replace all", "or add `--all`"),
    ("rm", "delete it recursively", "add `-r` to remove it with its content"),
    ("write", "choose another name or overwrite it", "choose another name, or leave `--new` out to replace it"),
    ("mv", "choose another name or overwrite it", "choose another name, or add `--force` to replace it"),
    ("cp", "choose another name or overwrite it", "choose another name, or add `--force` to replace it"),
    ("cat", "is a directory; name a file", "is a directory; `treehold ls` lists it"),
    ("head", "is a directory; name a file", "is a directory; `treehold ls` lists it"),
];

/// Returns a failure of a command with advice for its user.
pub(crate) async fn advised(context: &Context, command: &str, failure: Failure) -> Failure {
    let Failure::Library(error) = failure else { return failure };
    let mut error = in_flags(command, error);
    if error.kind() == ErrorKind::NotFound {
        error = with_moments(command, error);
        error = with_versions(context, error).await;
        if let Some(tree) = context.tree_read() {
            error = with_near_paths(&*tree, error).await;
        }
    }
    Failure::Library(error)
}

/// Says which moments there are if an error is about a name that is none. Commands about checkpoints take no others.
fn with_moments(command: &str, error: Error) -> Error {
    if matches!(command, "checkpoint" | "thread") {
        return error;
    }
    let named = error.message().strip_suffix("`; `treehold checkpoint ls` lists them");
    let Some((_, name)) = named.and_then(|named| named.split_once("` has no checkpoint `")) else { return error };
    if Moment::parse(name, Timestamp::now()).is_ok() {
        return error;
    }
    if let Err(invalid) = parse_age(name)
        && invalid.is_out_of_bounds()
    {
        let message = format!("`{name}` is {invalid}; or name a checkpoint that `treehold checkpoint ls` lists");
        return error.with_message(message);
    }
    let instead = meant(name).map_or_else(String::new, |meant| format!("; write `{meant}`"));
    let message = format!(
        "`{name}` names no moment{instead}; a moment is an age such as `2h`, a date or time, `~1` or `v3` of a file, or a checkpoint that \
            `treehold checkpoint ls` lists"
    );
    error.with_message(message)
}

/// Returns the moment that a phrase of other programs means.
fn meant(name: &str) -> Option<String> {
    if let Some(back) = name.strip_prefix("HEAD") {
        return match back {
            "" => Some("latest".to_owned()),
            "^" => Some("~1".to_owned()),
            _ => back.strip_prefix('~').filter(|count| count.parse::<u64>().is_ok()).map(|count| format!("~{count}")),
        };
    }
    match name.split_whitespace().collect::<Vec<_>>()[..] {
        ["now"] => Some("latest".to_owned()),
        ["yesterday"] => Some("1d".to_owned()),
        [count, unit, "ago"] => {
            let age = format!("{count}{}", unit.chars().next()?);
            parse_age(&age).is_ok().then_some(age)
        }
        _ => None,
    }
}

/// Says that the versions of a missing file are kept, if its mount has them. One lookup, which a state would need for each checkpoint.
async fn with_versions(context: &Context, error: Error) -> Error {
    let (Some(path), Some(session)) = (error.path(), context.session_open()) else { return error };
    if session.is_state(path) || !error.message().ends_with("does not exist") {
        return error;
    }
    match session.log(path, 1).await {
        Ok(log) if !log.revisions.is_empty() => {
            let message = format!("{}; its versions are kept: `treehold log {path}`", error.message());
            error.with_message(message)
        }
        _ => error,
    }
}

fn in_flags(command: &str, error: Error) -> Error {
    let phrase = PHRASES.iter().find(|(of, phrase, _)| (of.is_empty() || *of == command) && error.message().contains(phrase));
    match phrase {
        Some((_, phrase, flags)) => {
            let message = error.message().replace(phrase, flags);
            error.with_message(message)
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_is_no_moment_is_answered_with_those_there_are() {
        let error = |name: &str| {
            let message = format!("thread `t` has no checkpoint `{name}`; `treehold checkpoint ls` lists them");
            Error::new(ErrorKind::NotFound, message)
        };
        for (name, meant) in [
            ("yesterday", Some("1d")),
            ("1 hour ago", Some("1h")),
            ("2 weeks ago", Some("2w")),
            ("30 minutes ago", Some("30m")),
            ("HEAD~1", Some("~1")),
            ("HEAD^", Some("~1")),
            ("HEAD", Some("latest")),
            ("HEAD~x", None),
            ("x years ago", None),
            ("a`b", None),
        ] {
            let told = with_moments("cat", error(name)).message().to_owned();
            let start = match meant {
                Some(meant) => format!("`{name}` names no moment; write `{meant}`; a moment is an age"),
                None => format!("`{name}` names no moment; a moment is an age"),
            };
            assert!(told.starts_with(&start), "{told}");
            assert!(meant.is_none_or(|meant| Moment::parse(meant, Timestamp::now()).is_ok()), "{name}");
        }
        for (name, bound) in [("2000000d", "too long: the longest is `1000000d`"), ("-2h", "too short: the shortest is `0s`")] {
            let told = with_moments("cat", error(name)).message().to_owned();
            assert!(told.starts_with(&format!("`{name}` is {bound}; ")), "{told}");
        }
        for (command, name) in [("cat", "~9"), ("cat", "2h"), ("checkpoint", "yesterday"), ("thread", "HEAD")] {
            assert_eq!(with_moments(command, error(name)).message(), error(name).message(), "{command} {name}");
        }
    }
}
