//! What people see on a terminal: short ids, relative times, columns that fit, groups and the pager. Programs see none of it.

use super::Home;
use super::terminal::on_terminal_of;
use serde_json::Value;
use std::collections::BTreeMap;
use treehold::CheckpointId;

/// The widths of a narrow pane, a usual terminal and a wide one.
const WIDTHS: [u16; 3] = [46, 80, 200];

/// Runs a command on a terminal without a pager, and returns what it shows.
fn shown(home: &Home, width: u16, variables: &[(&str, &str)], args: &[&str]) -> String {
    let variables = [&[("TREEHOLD_PAGER", "")], variables].concat();
    String::from_utf8(on_terminal_of(home, width, &variables, args, b"")).unwrap()
}

/// Runs a command on a terminal without colours.
fn plain(home: &Home, width: u16, args: &[&str]) -> String {
    shown(home, width, &[("NO_COLOR", "1")], args)
}

/// A thread with checkpoints, and files to list and search.
fn history() -> Home {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. measure\n2. cut\n"]);
    home.ok(&["checkpoint", "create", "--label", "before", "--meta", "why=a note that is longer than a narrow terminal is wide"]);
    home.ok(&["write", "/notes/wood.md", "oak: measure twice\nash\n\n\n\nelm: measure once\n"]);
    home.ok(&["thread", "fork", "tuesday"]);
    home
}

/// The ids of the thread's checkpoints, newest first.
fn ids(home: &Home) -> Vec<CheckpointId> {
    home.json(&["checkpoint", "ls", "--json"]).as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().parse().unwrap()).collect()
}

/// Replaces what differs between runs: ids by `IDNUMBER`, positions, and times by `now`.
fn stable(home: &Home, text: &str) -> String {
    let mut stable = String::new();
    let ids: BTreeMap<String, usize> = ids(home).into_iter().enumerate().map(|(index, id)| (id.letters()[..8].to_owned(), index)).collect();
    for line in text.lines() {
        let mut line = line.to_owned();
        for (id, index) in &ids {
            if line.to_lowercase().starts_with(id) {
                line.replace_range(..id.len(), &format!("ID{index:06}"));
            }
        }
        // A second may pass meanwhile. The column keeps its width, which the heading decides.
        for seconds in 1..60 {
            let unit = if seconds == 1 { "second" } else { "seconds" };
            line = line.replace(&format!("{seconds} {unit} ago"), "now");
        }
        // The width of the times decides where a long note or a label is cut.
        if let Some(start) = line.find("why=").filter(|_| line.ends_with('…')) {
            line.replace_range(start + "why=".len().., "…");
        }
        let (rest, last) = line.rsplit_once(' ').unwrap_or_default();
        if last.strip_suffix('…').is_some_and(|cut| !cut.is_empty() && "before".starts_with(cut)) {
            line = format!("{rest} before");
        }
        stable.push_str(&line.split_whitespace().collect::<Vec<_>>().join(" "));
        stable.push('\n');
    }
    stable
}

#[test]
fn lists_fit_the_width_of_the_terminal() {
    let home = history();
    for width in WIDTHS {
        for args in [
            &["checkpoint", "ls"][..],
            &["thread", "ls"],
            &["timeline"],
            &["ls", "-l", "/"],
            &["find", "-l", "/notes"],
            &["log", "/plan.md"],
        ] {
            let text = plain(&home, width, args);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= usize::from(width), "{args:?} at {width}: {text}");
        }
        insta::assert_snapshot!(format!("checkpoint_ls_{width}"), stable(&home, &plain(&home, width, &["checkpoint", "ls"])));
    }
    insta::assert_snapshot!("thread_ls_80", stable(&home, &plain(&home, 80, &["thread", "ls"])));
    insta::assert_snapshot!("ls_long_80", stable(&home, &plain(&home, 80, &["ls", "-l", "/"])));
}

#[test]
fn marked_start_of_an_id_names_its_checkpoint_and_no_shorter_one_does() {
    let home = history();
    let ids = ids(&home);
    for (line, id) in plain(&home, 80, &["checkpoint", "ls"]).lines().skip(1).zip(&ids) {
        let marked: String = line.chars().take_while(char::is_ascii_uppercase).collect();
        let found = home.json(&["checkpoint", "show", "--json", &marked]);
        assert_eq!(found["id"], Value::from(id.to_string()), "{line}");
        assert_eq!(home.json(&["checkpoint", "show", "--json", &line[..8]])["id"], Value::from(id.to_string()), "{line}");
        if marked.len() > 1 {
            let shorter = home.error(&["checkpoint", "show", &marked[..marked.len() - 1]], 4);
            assert!(shorter.contains("write more of the id"), "{shorter}");
        }
    }
    let made = plain(&home, 80, &["checkpoint", "create"]);
    let latest = home.json(&["checkpoint", "show", "--json"]);
    assert_eq!(home.json(&["checkpoint", "show", "--json", made.trim()])["id"], latest["id"], "{made}");
    let forked = plain(&home, 80, &["thread", "fork", "wednesday"]);
    home.ok(&["--thread", "wednesday", "checkpoint", "show", forked.trim()]);
}

#[test]
fn log_has_short_ids_and_relative_times() {
    let home = history();
    home.ok(&["write", "/memories/a.md", "1"]);
    let whole = home.json(&["log", "/plan.md", "--json"])[0]["checkpoint"].as_str().unwrap().to_owned();
    let text = plain(&home, 80, &["log", "/plan.md"]);
    let line = text.lines().nth(1).unwrap();
    assert!(text.starts_with("version") && !text.contains(&whole), "{text}");
    assert!(line.contains("now") || line.contains("ago"), "{text}");
    assert_eq!(home.ok(&["cat", "/plan.md", "--at", &line[..8]]), home.ok(&["cat", "/plan.md", "--at", &whole]));
    assert!(plain(&home, 80, &["log", "/memories/a.md"]).lines().nth(1).unwrap().starts_with("v1 "));
    assert!(home.ok(&["log", "/plan.md"]).starts_with(&whole));
}

#[test]
fn colors_appear_unless_the_terminal_or_the_user_has_none() {
    let home = history();
    for (variables, is_colored) in [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("TERM", "dumb")], false)] {
        for args in [&["checkpoint", "ls"][..], &["timeline"], &["grep", "measure", "/"]] {
            assert_eq!(shown(&home, 80, variables, args).contains('\u{1b}'), is_colored, "{args:?} with {variables:?}");
        }
    }
}

#[test]
fn matches_are_grouped_by_file_on_a_terminal_only() {
    let home = history();
    insta::assert_snapshot!("grep_groups", plain(&home, 80, &["grep", "measure", "/"]));
    insta::assert_snapshot!("grep_groups_context", plain(&home, 80, &["grep", "-C1", "measure", "/"]));
    assert_eq!(plain(&home, 80, &["grep", "-c", "measure", "/"]), "/notes/wood.md:2\n/plan.md:1\n");
    let piped = "/notes/wood.md:1:oak: measure twice\n/notes/wood.md:6:elm: measure once\n/plan.md:1:1. measure\n";
    assert_eq!(home.ok(&["grep", "measure", "/"]), piped);
}

#[test]
fn pipes_and_json_receive_whole_ids_and_exact_times() {
    let home = history();
    let first = ids(&home)[0].to_string();
    let line = home.ok(&["checkpoint", "ls", "--limit", "1"]);
    assert!(line.starts_with(&first) && line[first.len() + 1..].starts_with("20") && line.lines().count() == 1, "{line}");
    let time = line.split(' ').nth(1).unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{line}");
    assert!(home.ok(&["checkpoint", "create"]).trim_end().parse::<CheckpointId>().is_ok_and(|id| id > ids(&home)[1]));
    // JSON on a terminal is for a program too.
    assert!(shown(&home, 80, &[], &["checkpoint", "ls", "--json"]).contains(&first));
    assert!(!home.ok(&["ls", "-l", "/"]).contains("modified"));
}

#[test]
fn long_output_goes_through_the_pager_that_the_user_names() {
    let home = history();
    let through = |variables: &[(&str, &str)], args: &[&str]| {
        String::from_utf8(on_terminal_of(&home, 80, &[&[("NO_COLOR", "1")], variables].concat(), args, b"")).unwrap()
    };
    let sed = "sed 's/^/paged: /'";
    let paged = "paged: memories/\npaged: notes/\npaged: plan.md\npaged: workspace/\n";
    assert_eq!(through(&[("PAGER", sed)], &["ls", "/"]), paged);
    assert_eq!(through(&[("PAGER", "false"), ("TREEHOLD_PAGER", sed)], &["grep", "-l", "cut", "/"]), "paged: /plan.md\n");
    // A pager that ends early is no error, and one that is missing or unwanted is not used.
    assert_eq!(through(&[("PAGER", "true")], &["ls", "/"]), "");
    for (variables, args) in [
        (&[("PAGER", sed)][..], &["--no-pager", "grep", "-l", "cut", "/"][..]),
        (&[("PAGER", "cat")], &["grep", "-l", "cut", "/"]),
        (&[("PAGER", sed), ("TREEHOLD_PAGER", "")], &["grep", "-l", "cut", "/"]),
        (&[("PAGER", sed), ("TERM", "dumb")], &["grep", "-l", "cut", "/"]),
    ] {
        assert_eq!(through(variables, args), "/plan.md\n", "{variables:?} {args:?}");
    }
    // Content, and what is copied, is never paged.
    assert_eq!(through(&[("PAGER", sed)], &["cat", "/plan.md"]), "1. measure\n2. cut\n");
    assert!(!through(&[("PAGER", sed)], &["ls", "/", "--json"]).contains("paged"));
    // Nothing is paged if nothing is printed, and an error follows the output.
    assert!(!through(&[("PAGER", "sed '$aend of pager'")], &["ls", "/none"]).contains("end of pager"));
    assert_eq!(home.command(&["ls", "/"]).env("PAGER", sed).output().unwrap().stdout, home.ok(&["ls", "/"]).into_bytes());
}

#[test]
fn notices_follow_the_output_in_the_pager() {
    let home = history();
    let text = on_terminal_of(&home, 80, &[("NO_COLOR", "1"), ("PAGER", "sed 's/^/paged: /'")], &["checkpoint", "ls", "--limit", "1"], b"");
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("paged: ") && lines[2].starts_with("treehold: there are more"), "{text}");
}
