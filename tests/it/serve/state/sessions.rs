//! The lists of keys, sessions and users, the export of a session, and the actions in its path.

use super::{Caller, admin, fill};
use crate::serve::Served;
use serde_json::{Value, json};
use treehold::serve::{Access, ActsFor, Rights};

#[test]
fn keys_sessions_and_users_are_listed_in_pages() {
    let served = Served::closed();
    let (ada, host) = (admin(&served), Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant)));
    fill(&ada, "ada", "s");
    ada.ok("PUT", "/v1/state/ada/s/k", json!(2));
    let key = |key: &str, form: &str, version: u64| json!({"key": key, "form": form, "version": version});
    let keys = json!({"keys": [key("agent_state", "single", 1), key("k", "single", 2), key("notes", "list", 1)]});
    assert_eq!(ada.get("/v1/state/ada/s"), keys);
    assert_eq!(ada.get("/v1/state/ada/s/notes?form=list"), json!(["secret one", 2]));
    assert_eq!(ada.get("/v1/state/ada/s/none?form=list"), json!([]), "an absent list is empty");
    assert_eq!(ada.send("GET", "/v1/state/ada/s/notes", &Value::Null).code(), "not_found", "a list is no single value");
    for session in ["a", "b", "c"] {
        ada.ok("PUT", &format!("/v1/state/ada/{session}/k"), json!(1));
    }
    assert_eq!(ada.get("/v1/state/ada"), json!({"sessions": ["a", "b", "c", "s"], "next": null}));
    let page = ada.get("/v1/state/ada?limit=3");
    assert_eq!(page["sessions"], json!(["a", "b", "c"]));
    let rest = ada.get(&format!("/v1/state/ada?limit=3&after={}", page["next"].as_str().unwrap()));
    assert_eq!(rest, json!({"sessions": ["s"], "next": null}));
    // Agents have states of their own.
    assert_eq!(ada.get("/v1/state/ada?agent=other"), json!({"sessions": [], "next": null}));
    ada.ok("PUT", "/v1/state/ada/s/k?agent=other", json!("other"));
    assert_eq!((ada.get("/v1/state/ada/s/k?agent=other"), ada.get("/v1/state/ada/s/k")), (json!("other"), json!(2)));
    // The anonymous user is `null`, and comes first.
    host.ok("PUT", "/v1/state/-/s/k", json!("anonymous"));
    host.ok("PUT", "/v1/state/%2D/s/k", json!("of a user named -"));
    host.ok("PUT", "/v1/state/__anon__/s/k", json!("of a user named __anon__"));
    assert_eq!(host.get("/v1/state"), json!({"users": [null, "-", "__anon__", "ada"], "next": null}));
    let first = host.get("/v1/state?limit=1");
    assert_eq!(first["users"], json!([null]));
    let second = host.get(&format!("/v1/state?limit=1&after={}", first["next"].as_str().unwrap()));
    assert_eq!(second["users"], json!(["-"]));
    assert_eq!(host.get("/v1/state/-/s/k"), json!("anonymous"));
    assert_eq!(host.get("/v1/state/%2d/s/k"), json!("of a user named -"));
    assert_eq!(host.get("/v1/state/%5F_anon__/s/k"), json!("of a user named __anon__"));
    assert_eq!(ada.get("/v1/state"), json!({"users": ["ada"], "next": null}), "a caller sees its own user");
    let nobody = Caller::new(&served, "acme", "nobody", Rights::new(Access::Read));
    assert_eq!(nobody.get("/v1/state"), json!({"users": [], "next": null}));
    for wrong in ["?limit=0", "?limit=1001", "?limit=x", "?unknown=1", "?agent=", "?agent=.."] {
        for at in ["/v1/state", "/v1/state/ada", "/v1/admin/sessions"] {
            assert_eq!(ada.send("GET", &format!("{at}{wrong}"), &Value::Null).code(), "invalid_argument", "{at}{wrong}");
        }
    }
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", "/v1/state/ada/s", Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    assert_eq!(ada.get("/v1/state/ada")["sessions"], json!(["a", "b", "c"]));
}

#[test]
fn session_is_exported_as_json_or_markdown() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "ada", "s");
    let export = ada.send("GET", "/v1/state/ada/s:export", &Value::Null).text();
    assert!(export.contains(r#""cur_iter":1.0"#) && export.contains(r#""mood":[ ]"#), "the text of values is kept: {export}");
    let export: Value = serde_json::from_str(&export).unwrap();
    assert_eq!((&export["session"], &export["user"], &export["agent"]), (&json!("s"), &json!("ada"), &json!("default")));
    let entries: Vec<(&Value, &Value, &Value)> =
        export["entries"].as_array().unwrap().iter().map(|entry| (&entry["key"], &entry["form"], &entry["version"])).collect();
    let (one, single, list) = (json!(1), json!("single"), json!("list"));
    let names = ["agent_state", "k", "notes"].map(|name| json!(name));
    assert_eq!(entries, [(&names[0], &single, &one), (&names[1], &single, &one), (&names[2], &list, &one)]);
    assert_eq!(export["entries"][2]["value"], json!(["secret one", 2]));
    let markdown = ada.with("GET", "/v1/state/ada/s:export", &[("accept", "text/markdown")], b"");
    assert_eq!(markdown.header("content-type").as_deref(), Some("text/markdown; charset=utf-8"));
    let text = markdown.text();
    assert!(text.starts_with("# Session s\n\n## Summary\n\n> secret summary\n"), "{text}");
    assert!(text.contains("### assistant — helper\n\n> secret answer\n"), "{text}");
    for accept in ["application/json", "text/markdown"] {
        assert_eq!(ada.with("GET", "/v1/state/ada/none:export", &[("accept", accept)], b"").code(), "not_found");
    }
    ada.ok("PUT", "/v1/state/ada/odd/agent_state", json!({"context": 7}));
    assert_eq!(ada.with("GET", "/v1/state/ada/odd:export", &[("accept", "text/markdown")], b"").code(), "corrupt");
}

/// The colon of an action is literal, so a session whose id ends like an action is written with `%3A`.
#[test]
fn action_is_distinguished_from_an_id_that_looks_like_one() {
    let served = Served::closed();
    let ada = admin(&served);
    for id in ["s%3Aexport", "s%3ainterrupt", "a:b", "%3Aexport", "s%3Aexport%3Aexport"] {
        ada.ok("PUT", &format!("/v1/state/ada/{id}/k"), json!(id));
        assert_eq!(ada.get(&format!("/v1/state/ada/{id}"))["keys"][0]["key"], "k", "{id}");
        assert_eq!(ada.get(&format!("/v1/state/ada/{id}:export"))["entries"][0]["value"], json!(id));
        assert_eq!(ada.ok("POST", &format!("/v1/state/ada/{id}:interrupt"), Value::Null).json(), json!({"hit": false}));
    }
    let sessions = ada.get("/v1/state/ada")["sessions"].clone();
    assert_eq!(sessions, json!([":export", "a:b", "s:export", "s:export:export", "s:interrupt"]));
    for (method, path) in [
        ("POST", "/v1/state/ada/s"),
        ("POST", "/v1/state/ada/s:none"),
        ("POST", "/v1/state/ada/s:export"),
        ("GET", "/v1/state/ada/s:interrupt"),
        ("DELETE", "/v1/state/ada/s:export"),
        ("POST", "/v1/admin/sessions/s"),
        ("POST", "/v1/admin/sessions/s:export"),
        ("GET", "/v1/admin/sessions/s:abort"),
        ("GET", "/v1/admin/sessions/s"),
        ("POST", "/v1/turns:none"),
    ] {
        assert_eq!(ada.send(method, path, &Value::Null).code(), "no_such_route", "{method} {path}");
    }
    assert_eq!(ada.get("/v1/state/ada")["sessions"], sessions, "nothing was removed");
    ada.ok("DELETE", "/v1/state/ada/s%3Aexport", Value::Null);
    assert_eq!(ada.get("/v1/state/ada")["sessions"].as_array().unwrap().len(), 4);
}

#[test]
fn refused_method_names_those_of_the_action() {
    let served = Served::start();
    for (path, allowed) in [
        ("/v1/state/ada/s", "GET,DELETE,HEAD"),
        ("/v1/state/ada/s:export", "GET,HEAD"),
        ("/v1/state/ada/s:interrupt", "POST"),
        ("/v1/admin/sessions/s:undo", "POST"),
    ] {
        for method in ["OPTIONS", "PATCH"] {
            let answer = served.send(method, path, &[], b"");
            assert_eq!(answer.header("allow").as_deref(), Some(allowed), "{method} {path}");
        }
    }
}
