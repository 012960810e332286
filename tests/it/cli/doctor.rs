//! `doctor`: reports what is in order, and fails for what is not.

use super::Home;

#[test]
fn doctor_passes_on_a_fresh_home() {
    let home = Home::new();
    let report = home.ok(&["doctor"]);
    assert!(report.lines().all(|line| line.starts_with("ok ")), "{report}");
    for check in ["configuration", "data directory", "store default", "thread saves", "route /", "route /memories", "route /workspace"] {
        assert!(report.contains(check), "{report}");
    }
    assert!(report.contains("store default: sqlite:treehold.db: SQLite 3.") && report.contains("schema 6, up to date; "), "{report}");
    home.ok(&["write", "/a", "one"]);
    assert!(home.ok(&["doctor", "--repair"]).contains("0 unfinished writes removed"));
}

#[test]
fn doctor_fails_and_names_what_is_broken() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/gone\"]\ntype = \"filesystem\"\nroot = \"missing\"\n");
    let report = home.run(&["doctor"], 6);
    let report = String::from_utf8_lossy(&report.get_output().stdout).into_owned();
    assert!(report.contains("FAIL  route /gone: ") && report.contains(home.work().join("missing").to_str().unwrap()), "{report}");
    assert_eq!(report.matches("FAIL").count(), 1, "{report}");
    home.put("treehold.toml", "[[\n");
    home.run(&["doctor"], 2);
}

#[cfg(unix)]
#[test]
fn doctor_warns_of_a_data_directory_open_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.ok(&["write", "/a", "one"]);
    assert_eq!(std::fs::metadata(home.data()).unwrap().permissions().mode() & 0o777, 0o700, "only the owner may open the directory");
    std::fs::set_permissions(home.data(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(home.ok(&["doctor"]).contains("warn  data directory"));
}

#[test]
fn doctor_warns_of_a_store_in_memory() {
    let home = Home::new();
    home.put("treehold.toml", "[stores.default]\nurl = \"memory:\"\n");
    let report = home.json(&["--json", "doctor"]);
    let store = report.as_array().unwrap().iter().find(|check| check["check"] == "store default").unwrap();
    assert_eq!(store["status"], "warning");
}

#[test]
fn doctor_locates_a_damaged_database() {
    let home = Home::new();
    std::fs::create_dir_all(home.data()).unwrap();
    let file = home.data().join("treehold.db");
    std::fs::write(&file, "this is no database, and long enough to be none".repeat(100)).unwrap();
    let report = home.run(&["doctor"], 6);
    let report = String::from_utf8_lossy(&report.get_output().stdout).into_owned();
    assert!(!report.contains("{data}"), "{report}");
    assert_eq!(report.matches(file.to_str().unwrap()).count(), 1, "the cause is reported once: {report}");
    assert_eq!(report.matches("it depends on the store `default`, which failed").count(), 3, "{report}");
}
