//! `status`: the thread, its changes and the routes, and what cannot be reached.

use super::Home;
use super::terminal::{at_terminal, on_terminal_of};
use serde_json::{Value, json};

const ROUTES: &str = r#"
[routes."/"]
type = "state"
[routes."/memories"]
type = "store"
namespace = "{tenant}/{user}/memories"
[routes."/workspace"]
type = "filesystem"
root = "."
[routes."/workspace".overlay]
[routes."/before"]
type = "history"
at = "latest"
"#;

/// A home with a labelled checkpoint, later changes, and changes in an overlay.
fn home() -> Home {
    let home = Home::new();
    home.put("kept.txt", "kept");
    home.put("treehold.toml", ROUTES);
    home.ok(&["write", "/plan.md", "1. measure\n"]);
    home.ok(&["write", "/old.md", "x"]);
    home.ok(&["checkpoint", "create", "--label", "agreed"]);
    home.ok(&["write", "/plan.md", "2. cut\n"]);
    home.ok(&["mv", "/old.md", "/notes/new.md"]);
    home.ok(&["write", "/workspace/a", "x"]);
    home.ok(&["rm", "/workspace/kept.txt"]);
    home
}

/// Replaces what differs between runs and machines.
fn stable(home: &Home, text: &str) -> String {
    let id = home.json(&["checkpoint", "show", "--json"])["id"].as_str().unwrap().parse::<treehold::CheckpointId>().unwrap();
    let mut stable = String::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        if let Some(at) = line.to_lowercase().find(&id.letters()[..8]) {
            line.replace_range(at..at + 8, "IDIDIDID");
        }
        for seconds in (1..60).rev() {
            line = line.replace(&format!("{seconds} {} ago", if seconds == 1 { "second" } else { "seconds" }), "now");
        }
        // Places end the lines of routes, and how much of them fits depends on the machine.
        for (start, shown) in
            [("default (sqlite:", "default (sqlite:…"), ("default …", "default (sqlite:…"), ("default", "default (sqlite:…")]
        {
            if line.starts_with('/')
                && let Some(at) = line.find(start)
            {
                line.replace_range(at.., shown);
                break;
            }
        }
        if line.starts_with("/workspace")
            && let Some(at) = line[1..].find('/')
        {
            line.replace_range(at + 1.., "/DIRECTORY");
        }
        stable.push_str(&line);
        stable.push('\n');
    }
    stable
}

#[test]
fn status_fits_the_width_of_the_terminal() {
    let home = home();
    for width in [46, 80, 200] {
        let variables = [("TREEHOLD_PAGER", "false"), ("NO_COLOR", "1")];
        let shown = String::from_utf8(on_terminal_of(&home, width, &variables, &["status"], b"")).unwrap();
        let table: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("route")).take_while(|line| !line.is_empty()).collect();
        assert_eq!(table.len(), 5, "{shown}");
        assert!(table.iter().all(|line| line.chars().count() <= usize::from(width)), "at {width}: {shown}");
        insta::assert_snapshot!(format!("status_{width}"), stable(&home, &shown));
    }
    let colored = on_terminal_of(&home, 80, &[("TREEHOLD_PAGER", "")], &["status"], b"");
    assert!(String::from_utf8_lossy(&colored).contains("  \u{1b}[35mM\u{1b}[0m  /plan.md"));
}

#[test]
fn pipe_receives_whole_ids_exact_times_and_a_line_for_each_route() {
    let home = home();
    let shown = home.ok(&["status"]);
    let checkpoint = home.json(&["checkpoint", "show", "--json"]);
    let (id, at) = (checkpoint["id"].as_str().unwrap(), &checkpoint["created_at"].as_str().unwrap()[..19]);
    let agreed = home.json(&["checkpoint", "show", "agreed", "--json"]);
    let since = &agreed["created_at"].as_str().unwrap()[..19];
    let data = home.data();
    let store = format!("default (sqlite:{}/treehold.db)", data.display());
    let work = home.work().canonicalize().unwrap_or(home.work());
    let expected = format!(
        "thread    default\n\
         saved     {at}Z  {id}\n\
         changes   2 added, 1 changed, 1 removed since [agreed], {since}Z\n  A  /notes/\n  A  /notes/new.md\n  D  /old.md\n  M  /plan.md\n\
         \n\
         route     /  state  shared by one thread  history: checkpoints  {store}\n\
         route     /before  history, read-only  shared by one thread  history: none  {{thread}} at latest\n\
         route     /memories  store  shared by all threads of a user  history: 20 versions for 30d  {store}\n\
         route     /workspace  filesystem, overlay  shared by everyone  history: none  {work}\n\
         \n\
         overlay   /workspace  2 paths changed; `treehold overlay diff /workspace` lists them\n",
        work = work.display(),
    );
    assert_eq!(shown, expected);
    assert_eq!(home.ok(&["st"]), shown, "the alias");
    home.ok(&["overlay", "discard", "--yes"]);
    assert!(home.ok(&["status"]).ends_with("\noverlay   /workspace  no changes\n"));
}

#[test]
fn status_as_json_is_one_document() {
    let home = home();
    let status = home.json(&["status", "--json"]);
    assert_eq!(status["scope"], json!({"tenant": "default", "user": "default", "thread": "default"}));
    assert_eq!(status["configuration"], "treehold.toml");
    let thread = &status["thread"];
    assert_eq!(thread["checkpoint"], {
        let mut shown = home.json(&["checkpoint", "show", "--json"]);
        shown.as_object_mut().unwrap().remove("changes");
        shown
    });
    let changes = &thread["changes"];
    assert_eq!((&changes["since"]["label"], &changes["added"], &changes["more"]), (&json!("agreed"), &json!(2), &json!(false)));
    assert_eq!(
        changes["paths"][3],
        json!({
            "path": "/plan.md", "change": "changed", "was_directory": false, "is_directory": false, "old_size_bytes": 11, "new_size_bytes": 7,
        })
    );
    let route = |path: &str| status["routes"].as_array().unwrap().iter().find(|route| route["path"] == path).unwrap().clone();
    // A route has what `config show --effective` has.
    let effective = home.json(&["config", "show", "--effective", "--json"]);
    assert_eq!(route("/memories"), effective[2]);
    assert_eq!(route("/memories")["history"], json!({"keep_last": 20, "older_than": "30d"}));
    assert_eq!(route("/workspace")["overlay_changes"], json!({"count": 2, "more": false}));
    assert_eq!(home.ok(&["status", "--jsonl"]).lines().count(), 1);
}

#[test]
fn status_works_without_a_configuration_and_for_a_new_thread() {
    let home = Home::new();
    let shown = home.ok(&["--thread", "monday", "--user", "ada", "--tenant", "acme", "status"]);
    assert!(
        shown.starts_with("thread    monday  user=ada  tenant=acme\nsaved     never: the thread is new\n\nroute     /  state  "),
        "{shown}"
    );
    assert_eq!(home.json(&["status", "--json"])["thread"], json!({"is_saved": true, "checkpoint": null, "changes": null}));
    assert_eq!(home.json(&["status", "--json"])["configuration"], Value::Null);
    home.ok(&["thread", "ls"]);
    assert_eq!(home.ok(&["thread", "ls"]), "", "looking saves nothing");
    // Without a label, the changes are those of the last checkpoint: first against nothing, then against its parent.
    home.ok(&["write", "/a", "x"]);
    assert!(home.ok(&["status"]).contains("\nchanges   1 added in the last checkpoint\n  A  /a\n"));
    home.ok(&["rm", "/a"]);
    assert!(home.ok(&["status"]).contains("\nchanges   1 removed in the last checkpoint\n  D  /a\n"));
    home.ok(&["checkpoint", "create", "--label", "now"]);
    assert!(home.ok(&["status"]).contains("\nchanges   none since [now], "));
    // A route of the past, of which there is none yet, is no failure.
    home.put("treehold.toml", ROUTES);
    assert_eq!(home.json(&["--thread", "new", "status", "--json"])["thread"]["checkpoint"], Value::Null);
    home.put("treehold.toml", "[threads]\nsave = false\n[routes.\"/\"]\ntype = \"state\"\n");
    let shown = home.ok(&["status"]);
    assert!(shown.contains("saved     no: `save = false`") && shown.contains("history: none"), "{shown}");
}

#[test]
fn changes_and_paths_are_bounded() {
    let home = Home::new();
    for number in 0..1_100 {
        home.put(&format!("many/{number:04}"), "x");
    }
    home.ok(&["write", "/a", "x"]);
    home.ok(&["checkpoint", "create", "--label", "start"]);
    home.ok(&["import", "many", "/few", "--dry-run"]);
    for number in 0..25 {
        home.put(&format!("few/{number:02}"), "x");
    }
    home.ok(&["import", "few", "/few"]);
    let id = home.json(&["checkpoint", "show", "start", "--json"])["id"].as_str().unwrap().to_owned();
    let shown = home.ok(&["status"]);
    assert!(shown.contains("\nchanges   26 added since [start], "), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("  A  ")).count(), 20);
    assert!(shown.contains(&format!("\n  and 6 more; `treehold checkpoint diff {id}` lists all\n")), "{shown}");
    assert_eq!(home.ok(&["checkpoint", "diff", &id]).lines().count(), 26, "the command that it names");
    home.ok(&["import", "many", "/many"]);
    let shown = home.ok(&["status"]);
    assert!(shown.contains("\nchanges   1000 added or more since [start], ") && shown.contains("\n  and at least 980 more; "), "{shown}");
    let changes = &home.json(&["status", "--json"])["thread"]["changes"];
    assert_eq!((changes["more"].as_bool(), changes["paths"].as_array().unwrap().len()), (Some(true), 20));
}

#[test]
fn what_cannot_be_reached_is_reported_in_its_place() {
    let home = Home::new();
    let url = "url = \"http://127.0.0.1:1\"";
    home.put(
        "treehold.toml",
        format!(
            "[stores.default]\nurl = \"sqlite:{{data}}/treehold.db\"\n[stores.broken]\nurl = \"sqlite:missing/broken.db\"\n\
             [routes.\"/\"]\ntype = \"state\"\n[routes.\"/broken\"]\ntype = \"store\"\nnamespace = \"notes\"\nstore = \"broken\"\n\
             [routes.\"/host\"]\ntype = \"filesystem\"\nroot = \"no-such-directory\"\n[routes.\"/peer\"]\ntype = \"remote\"\n{url}\n"
        ),
    );
    home.put("missing", "a file where the directory of the store should be");
    home.ok(&["write", "/a", "x"]);
    let output = home.run(&["status"], 6);
    let shown = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(shown.contains("changes   1 added in the last checkpoint\n"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("route ")).count(), 4, "{shown}");
    let failed: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("failed    ")?.split("  ").next()).collect();
    assert_eq!(failed, ["/broken", "/host", "/peer"], "{shown}");
    let output = home.run(&["status", "--json"], 6);
    let status: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let codes: Vec<&str> = status["routes"].as_array().unwrap().iter().filter_map(|route| route["error"]["code"].as_str()).collect();
    assert_eq!(codes.len(), 3, "{status}");
    // The store of threads.
    let output = home.command(&["status", "--config", "treehold.toml", "--data", "missing"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(6) && shown.contains("\nroute     /host  "), "{shown}");
    let failed: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("failed    ")?.split("  ").next()).collect();
    assert_eq!(failed[1..], ["/broken", "/host", "/peer"], "{shown}");
    assert!(failed[0].starts_with("the store `default` cannot be opened"), "{shown}");
}

#[test]
fn route_that_a_rule_hides_is_no_failure_and_shows_nothing() {
    let home = home();
    home.put(
        "treehold.toml",
        format!("{ROUTES}[[layers.permissions]]\neffect = \"deny\"\noperations = [\"all\"]\npaths = [\"/workspace\", \"/plan.md\"]\n"),
    );
    let shown = home.ok(&["status"]);
    assert!(
        shown.contains("changes   2 added, 1 removed since [agreed]") && !shown.contains("plan.md") && !shown.contains("\noverlay "),
        "{shown}"
    );
}

#[test]
fn session_and_agent_are_named() {
    let home = Home::new();
    let (shown, code) = at_terminal(&home, &[], &["--agent", "cook", "status"]);
    assert!(code == 0 && shown.starts_with("thread    default  agent=cook\n"), "{shown}");
    home.error(&["--session", "none", "status"], 3);
}
