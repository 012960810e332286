//! The tree as resources: mounts, files, directories, skills.

use super::{Client, ERAS, Era};
use crate::cli::Home;
use serde_json::{Value, json};

fn uris(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|resource| resource["uri"].as_str().unwrap()).collect()
}

#[test]
fn every_mount_is_a_resource_with_a_template() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        let listed = client.result("resources/list", json!({}));
        assert_eq!(uris(&listed["resources"]), ["vfs:///", "vfs:///memories", "vfs:///workspace"]);
        assert!(listed["resources"].as_array().unwrap().iter().all(|resource| resource["mimeType"] == "inode/directory"));
        let templates = client.result("resources/templates/list", json!({}));
        let templates: Vec<&str> =
            templates["resourceTemplates"].as_array().unwrap().iter().map(|template| template["uriTemplate"].as_str().unwrap()).collect();
        assert_eq!(templates, ["vfs:///{+path}", "vfs:///memories/{+path}", "vfs:///workspace/{+path}"]);
    }
}

#[test]
fn files_are_read_unchanged_and_directories_listed() {
    let home = Home::new();
    home.put("naïve name.md", "one\r\ntwo");
    home.put("logo.png", b"\x89PNG\r\n\x1a\n\0");
    home.put("empty/.keep", "");
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        let uri = "vfs:///workspace/na%C3%AFve%20name.md";
        let read = client.result("resources/read", json!({"uri": uri}));
        assert_eq!(read["contents"], json!([{"uri": uri, "mimeType": "text/markdown", "text": "one\r\ntwo"}]));
        let read = client.result("resources/read", json!({"uri": "vfs:///workspace/logo.png"}));
        assert_eq!((&read["contents"][0]["mimeType"], &read["contents"][0]["blob"]), (&json!("image/png"), &json!("iVBORw0KGgoA")));
        let read = client.result("resources/read", json!({"uri": "vfs:///workspace"}));
        assert_eq!(read["contents"][0]["text"], "empty/\nlogo.png\nnaïve name.md\n");
        let listed = client.result("resources/directory/read", json!({"uri": "vfs:///workspace"}));
        assert_eq!(uris(&listed["resources"]), ["vfs:///workspace/empty", "vfs:///workspace/logo.png", uri]);
        assert_eq!((&listed["resources"][0]["mimeType"], &listed["resources"][1]["size"]), (&json!("inode/directory"), &json!(9)));
        client.text("write_file", json!({"path": "/d/x", "content": ""}));
        client.text("delete", json!({"path": "/d/x"}));
        assert_eq!(client.result("resources/directory/read", json!({"uri": "vfs:///d"}))["resources"], json!([]));
        let missing = client.error("resources/read", json!({"uri": "vfs:///none.md"}));
        assert_eq!(missing["code"], if era == Era::Modern { -32602 } else { -32002 });
        assert_eq!(missing["data"], json!({"uri": "vfs:///none.md", "code": "not_found"}));
        for uri in ["vfs:///none", "vfs:///workspace/logo.png", "file:///etc"] {
            let code = &client.error("resources/directory/read", json!({"uri": uri}))["code"];
            assert!(code == -32602 || (uri == "file:///etc" && era == Era::Legacy), "{uri}: {code}");
        }
        for uri in ["vfs:///../etc/passwd", "file:///etc/passwd", "vfs://host/a", "x"] {
            client.error("resources/read", json!({"uri": uri}));
        }
    }
}

#[test]
fn long_directory_continues_at_cursor() {
    let home = Home::new();
    for number in 0..1_100 {
        home.put(&format!("many/{number:04}"), "");
    }
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let first = client.result("resources/directory/read", json!({"uri": "vfs:///workspace/many"}));
    let rest = client.result("resources/directory/read", json!({"uri": "vfs:///workspace/many", "cursor": first["nextCursor"]}));
    let names = [uris(&first["resources"]), uris(&rest["resources"])].concat();
    assert_eq!(names.len(), 1_100);
    assert!(names.is_sorted() && rest.get("nextCursor").is_none());
}

#[test]
fn skills_are_served_with_valid_digests() {
    let home = Home::new();
    home.put("skills/invoices/SKILL.md", "---\nname: invoices\ndescription: Issues invoices.\n---\nDo.\n");
    home.put("skills/invoices/scripts/issue.sh", "echo\n");
    home.put("skills/unnamed/SKILL.md", "# nothing\n");
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let listed = client.result("skills/list", json!({}));
    insta::assert_json_snapshot!("skills", listed["skills"]);
    let uri = "vfs:///workspace/skills/invoices/SKILL.md";
    assert_eq!(client.result("skills/get", json!({"uri": uri}))["skill"], listed["skills"][0]);
    let error = client.error("skills/get", json!({"uri": "vfs:///workspace/skills/unnamed/SKILL.md"}));
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().unwrap().contains("---"), "{error}");
}

#[test]
fn current_memory_is_in_the_prompt_and_the_instructions() {
    let home = Home::new();
    let text = |prompt: &Value| prompt["messages"][0]["content"]["text"].as_str().unwrap().to_owned();
    home.ok(&["write", "/memories/AGENTS.md", "Answer in French.\n"]);
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    assert_eq!(client.result("prompts/list", json!({}))["prompts"][0]["name"], "memory");
    assert!(text(&client.result("prompts/get", json!({"name": "memory"}))).contains("Answer in French."));
    home.ok(&["write", "/memories/AGENTS.md", "Answer in Latin.\n"]);
    assert!(text(&client.result("prompts/get", json!({"name": "memory"}))).contains("Answer in Latin."));
    let discovered = client.result("server/discover", json!({}));
    assert!(discovered["instructions"].as_str().unwrap().contains("Answer in Latin."));
    assert_eq!(client.error("prompts/get", json!({"name": "none"}))["code"], -32602);
}
