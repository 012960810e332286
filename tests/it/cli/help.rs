//! Help texts as snapshots, to be reviewed as prose; completions and manual pages.

use super::Home;

#[test]
fn help_of_every_command_matches_snapshot() {
    let home = Home::new();
    insta::assert_snapshot!("help", home.ok(&["--help"]));
    for command in [
        "ls",
        "cat",
        "write",
        "edit",
        "show",
        "status",
        "patch",
        "grep",
        "search",
        "glob",
        "run",
        "shell",
        "mcp",
        "serve",
        "checkpoint",
        "thread",
        "session",
        "trace",
        "overlay",
        "store",
        "config",
        "doctor",
        "sweep",
    ] {
        insta::assert_snapshot!(format!("help_{command}"), local_part(&home.ok(&[command, "--help"])));
    }
    insta::assert_snapshot!("help_memory_show", local_part(&home.ok(&["memory", "show", "--help"])));
    for command in ["create", "ls", "show", "restore", "diff", "prune", "sweep"] {
        insta::assert_snapshot!(format!("help_checkpoint_{command}"), local_part(&home.ok(&["checkpoint", command, "--help"])));
    }
    for command in ["fork", "merge", "copy"] {
        insta::assert_snapshot!(format!("help_thread_{command}"), local_part(&home.ok(&["thread", command, "--help"])));
    }
    for command in ["ls", "show", "messages", "turns", "compact", "export", "import", "rm"] {
        insta::assert_snapshot!(format!("help_session_{command}"), local_part(&home.ok(&["session", command, "--help"])));
    }
    for command in ["ls", "show", "get", "put", "copy", "export", "interrupt", "rm"] {
        insta::assert_snapshot!(format!("help_state_{command}"), local_part(&home.ok(&["state", command, "--help"])));
    }
    for command in ["ls", "show", "messages", "tail", "create", "continue", "export", "import", "rm"] {
        insta::assert_snapshot!(format!("help_trace_{command}"), local_part(&home.ok(&["trace", command, "--help"])));
    }
    for command in ["diff", "apply", "discard"] {
        insta::assert_snapshot!(format!("help_overlay_{command}"), local_part(&home.ok(&["overlay", command, "--help"])));
    }
}

/// Removes the options that every command has.
fn local_part(help: &str) -> String {
    let Some(start) = help.find("Global options:") else { return help.to_owned() };
    let rest = &help[start..];
    let end = rest.find("\nExample").map_or("", |at| &rest[at..]);
    format!("{}{end}", &help[..start])
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(home.ok(&["completions", shell]).contains("treehold"));
    }
    assert!(home.ok(&["man"]).starts_with(".ie"));
    assert!(home.ok(&["man", "config", "show"]).contains("Print every effective setting"));
    home.run(&["man", "fly"], 3);
    assert!(home.ok(&["--version"]).starts_with("treehold "));
}
