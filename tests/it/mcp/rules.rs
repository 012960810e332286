//! Every tool of every set, as listed by the server, under rules that hide and protect files.

use super::{Client, Era};
use crate::rules::commands::{NAME, SECRET, home, protected};
use crate::rules::doors::arguments;
use serde_json::json;
use treehold::mcp::McpTools;

#[test]
fn tools_of_every_set_respect_permission_rules() {
    let home = home();
    let before = protected(&home);
    let mut asked = 0;
    for set in McpTools::ALL {
        let mut client = Client::start(&home, Era::Modern, &["--config", "ruled.toml", "mcp", "--tools", set.name()]);
        let tools = client.result("tools/list", json!({}))["tools"].as_array().unwrap().clone();
        for tool in &tools {
            let name = tool["name"].as_str().unwrap();
            for at in ["/secret", "/secret/hiddenname", "/secret/new", "/past/secret/hiddenname", "/locked/l", "/workspace/secret/s", "/"] {
                for arguments in arguments(name, &tool["inputSchema"], at) {
                    let said = client.request("tools/call", json!({"name": name, "arguments": arguments})).to_string();
                    assert!(!said.contains(SECRET), "{set}: {name} {arguments}: {said}");
                    assert!(said.contains(NAME) <= at.contains(NAME), "{set}: {name} {arguments}: {said}");
                    asked += 1;
                }
            }
        }
        client.close();
        assert_eq!(protected(&home), before, "{set}");
    }
    assert!(asked > 400, "{asked}");
}
