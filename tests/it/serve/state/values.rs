//! The values of a session: saves, conditions, removals and repeated saves.

use super::{STATE, admin};
use crate::serve::Served;
use serde_json::{Value, json};

#[test]
fn state_is_saved_and_returned_byte_for_byte_with_its_version() {
    let served = Served::closed();
    let ada = admin(&served);
    let at = "/v1/state/ada/s/agent_state";
    assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
    assert_eq!(ada.send("HEAD", at, &Value::Null).status, 404);
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    let saved = ada.with("PUT", at, &[], STATE.as_bytes());
    assert_eq!((saved.status, saved.header("etag").as_deref()), (200, Some("\"1\"")));
    assert_eq!(saved.json(), json!({"version": 1}));
    let found = ada.send("GET", at, &Value::Null);
    let headers = ["etag", "content-type", "cache-control"].map(|name| found.header(name).unwrap());
    assert_eq!(headers, ["\"1\"", "application/json", "no-store"]);
    assert_eq!(found.text(), STATE);
    // Versions are decimal numbers everywhere.
    for version in 2..12 {
        assert_eq!(ada.with("PUT", at, &[], STATE.as_bytes()).json(), json!({"version": version}));
    }
    let head = ada.send("HEAD", at, &Value::Null);
    assert_eq!((head.status, head.header("etag").as_deref()), (200, Some("\"11\"")));
    assert_eq!(ada.with("GET", at, &[("if-none-match", "\"11\"")], b"").status, 304);
    assert_eq!(ada.with("GET", at, &[("if-none-match", "\"10\"")], b"").status, 200);
    // A compressed answer has a tag of its own, which still names the version.
    let long = format!("[{}1]", "1,".repeat(2_000));
    ada.with("PUT", at, &[], long.as_bytes());
    let coded = ada.with("GET", at, &[("accept-encoding", "gzip")], b"").header("etag").unwrap();
    assert_eq!(coded, "\"12-gzip\"");
    assert_eq!(ada.with("PUT", at, &[("if-match", &coded)], b"7").json(), json!({"version": 13}));
    assert_eq!(ada.get(at), json!(7));
    // Any JSON value is one, `null` included; an empty body is none.
    for text in ["null", "0", "\"\"", "[]", " {} ", "1e400", "[1.0,\"\\u0000\"]"] {
        assert_eq!(ada.with("PUT", at, &[], text.as_bytes()).status, 200, "{text}");
        assert_eq!(ada.send("GET", at, &Value::Null).text(), text.trim());
    }
    assert_eq!(ada.with("PUT", at, &[], b"").code(), "invalid_argument");
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", at, Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
}

#[test]
fn failed_condition_returns_the_present_version() {
    let served = Served::closed();
    let ada = admin(&served);
    for form in ["", "?form=list"] {
        let at = format!("/v1/state/ada/s/k{form}");
        let body = if form.is_empty() { "1" } else { "[1]" };
        let put = |headers: &[(&str, &str)]| ada.with("PUT", &at, headers, body.as_bytes());
        for headers in [[("if-match", "\"1\"")], [("if-match", "*")]] {
            let refused = put(&headers);
            assert_eq!((refused.status, refused.header("etag")), (412, None), "{headers:?}: there is no value");
            assert_eq!(refused.code(), "conflict");
        }
        assert_eq!(put(&[("if-none-match", "*")]).json(), json!({"version": 1}));
        for number in 2..=11 {
            assert_eq!(put(&[("if-match", &format!("\"{}\"", number - 1))]).json(), json!({"version": number}), "{form}");
        }
        assert_eq!(put(&[("if-match", "\"3\", \"11\"")]).json(), json!({"version": 12}));
        assert_eq!(put(&[("if-match", "*")]).json(), json!({"version": 13}));
        for headers in [[("if-match", "\"12\"")], [("if-match", "\"1\", \"2\"")], [("if-none-match", "*")], [("if-match", "\"d\"")]] {
            let refused = put(&headers);
            assert_eq!((refused.status, refused.header("etag").as_deref()), (412, Some("\"13\"")), "{headers:?}");
            let problem = refused.json();
            assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("conflict"), &json!(false)), "{problem}");
            assert_eq!(problem.get("current_version"), None, "it is for versions of files, which are hexadecimal");
        }
        let head = ada.send("HEAD", &at, &Value::Null);
        assert_eq!((head.status, head.header("etag").as_deref()), (200, Some("\"13\"")), "{form}");
        let found = ada.send("GET", &at, &Value::Null);
        assert_eq!((found.header("etag").as_deref(), found.text().as_str()), (Some("\"13\""), body));
        assert_eq!(ada.with("GET", &at, &[("if-none-match", "\"13\"")], b"").status, 304);
    }
}

/// A removal under a condition is about one form of the key. One without removes both.
#[test]
fn removal_under_a_condition_removes_one_form_and_no_other_version() {
    let served = Served::closed();
    let ada = admin(&served);
    let remove = |query: &str, tag: &str| ada.with("DELETE", &format!("/v1/state/ada/s/k{query}"), &[("if-match", tag)], b"");
    let keys = || -> Vec<(Value, Value)> {
        let keys = ada.get("/v1/state/ada/s")["keys"].as_array().unwrap().clone();
        keys.into_iter().map(|key| (key["form"].clone(), key["version"].clone())).collect()
    };
    let (single, list) = (json!("single"), json!("list"));
    ada.ok("PUT", "/v1/state/ada/s/k", json!(1));
    for number in 0..2 {
        ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([number]));
    }
    let both = vec![(single.clone(), json!(1)), (list.clone(), json!(2))];
    for (query, tag, present) in [("", "\"2\"", "\"1\""), ("?form=single", "\"2\"", "\"1\""), ("?form=list", "\"1\"", "\"2\"")] {
        for tags in [tag, "\"7\", \"8\"", "\"other\""] {
            let refused = remove(query, tags);
            assert_eq!((refused.status, refused.header("etag").as_deref()), (412, Some(present)), "{query} {tags}");
            assert_eq!(refused.code(), "conflict", "{query} {tags}");
        }
        assert_eq!(keys(), both, "{query}");
    }
    assert_eq!(remove("", "\"1\"").status, 204);
    assert_eq!(keys(), [both[1].clone()], "the list stays");
    assert_eq!(remove("", "*").status, 412, "there is no single value");
    ada.ok("PUT", "/v1/state/ada/s/k", json!(1));
    assert_eq!(remove("?form=list", "\"1\", \"2\"").status, 204);
    assert_eq!(keys(), [(single, json!(2))]);
    ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([1]));
    assert_eq!(ada.ok("DELETE", "/v1/state/ada/s/k?form=list", Value::Null).status, 204);
    assert_eq!(keys().len(), 1);
    ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([1]));
    assert_eq!(ada.ok("DELETE", "/v1/state/ada/s/k", Value::Null).status, 204);
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    for wrong in ["?form=other", "?fence=x", "?fence=-1", "?unknown=1"] {
        assert_eq!(ada.send("DELETE", &format!("/v1/state/ada/s/k{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
    for wrong in ["?form=list", "?fence=x", "?unknown=1"] {
        assert_eq!(ada.send("DELETE", &format!("/v1/state/ada/s{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}

/// Regression guard: a save with a key is made once, and its answer is the first one.
#[test]
fn repeated_save_with_a_key_takes_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    let put = |key: &str, body: &[u8]| ada.with("PUT", "/v1/state/ada/s/k", &[("idempotency-key", key)], body);
    let first = put("k", b"[1.0]");
    assert_eq!((first.header("idempotency-replayed"), first.header("etag").as_deref()), (None, Some("\"1\"")));
    let again = put("k", b"[1.0]");
    assert_eq!((again.header("idempotency-replayed").as_deref(), again.header("etag").as_deref()), (Some("true"), Some("\"1\"")));
    assert_eq!(again.json(), json!({"version": 1}));
    assert_eq!(put("k", b"[2.0]").code(), "key_reused");
    assert_eq!(put("other", b"[2.0]").json(), json!({"version": 2}));
}
