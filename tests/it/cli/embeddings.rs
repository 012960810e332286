//! `[embeddings]`: search by meaning with a model behind an endpoint.

use super::Home;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Words of two topics. The vector of a text counts the words of each.
const TOPICS: [&[&str]; 2] = [&["car", "automobile", "engine"], &["bread", "soup", "meal"]];

/// What the endpoint answers.
#[derive(Clone)]
enum Reply {
    Vectors,
    /// The vectors in another order, each with its index.
    Reversed,
    Text(u16, String),
}

/// The requests so far: the `Authorization` header and the body of each.
type Asked = Mutex<Vec<(Option<String>, Value)>>;

/// A model server on a port of this machine.
struct Model {
    address: SocketAddr,
    reply: Arc<Mutex<Reply>>,
    asked: Arc<Asked>,
}

impl Model {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let model = Self { address: listener.local_addr().unwrap(), reply: Arc::new(Mutex::new(Reply::Vectors)), asked: Arc::default() };
        let (reply, asked) = (model.reply.clone(), model.asked.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (reply, asked) = (reply.clone(), asked.clone());
                std::thread::spawn(move || answer(&connection.unwrap(), &reply, &asked));
            }
        });
        model
    }

    fn reply(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    /// Returns the texts of the requests since the last call.
    fn texts(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.iter().flat_map(|(_, body)| body["input"].as_array().unwrap().clone()).map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    /// Returns a home whose configuration names this model.
    fn home(&self, more: &str) -> Home {
        let home = Home::new();
        home.put("treehold.toml", format!("[embeddings]\nurl = \"http://{}/v1/embeddings\"\nmodel = \"toy\"\n{more}", self.address));
        home.ok(&["write", "/memories/garage.md", "# Notes\n\nThe automobile is in the shed.\n"]);
        home.ok(&["write", "/memories/kitchen.md", "Soup on Mondays.\n"]);
        home
    }
}

/// Answers the requests of a connection.
fn answer(stream: &TcpStream, reply: &Mutex<Reply>, asked: &Asked) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut key, mut line) = (0, None, String::new());
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
            let (name, value) = line.trim().split_once(':').unwrap_or((line.trim(), ""));
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "authorization" => key = Some(value.trim().to_owned()),
                _ => {}
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let vector = |text: &str| TOPICS.map(|words| words.iter().map(|word| text.to_lowercase().matches(word).count()).sum::<usize>());
        let texts = body["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        let mut data: Vec<Value> = texts.enumerate().map(|(index, text)| json!({"index": index, "embedding": vector(text)})).collect();
        asked.lock().unwrap().push((key, body));
        let (status, text) = match reply.lock().unwrap().clone() {
            Reply::Vectors => (200, json!({"data": data}).to_string()),
            Reply::Reversed => {
                data.reverse();
                (200, json!({"data": data}).to_string())
            }
            Reply::Text(status, text) => (status, text),
        };
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", text.len());
        let mut stream = stream;
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).is_err() {
            return;
        }
    }
}

#[test]
fn search_finds_by_meaning_and_keeps_vectors() {
    let model = Model::start();
    let home = model.home("query_prefix = \"search_query: \"\npassage_prefix = \"search_document: \"\n");
    let found = home.ok(&["search", "where is my car", "/memories"]);
    assert!(found.starts_with("/memories/garage.md\n  1: # Notes\n"), "{found}");
    let mut texts = model.texts();
    texts.sort_unstable();
    assert_eq!(texts.len(), 3);
    assert!(
        texts[0].starts_with("search_document: memories/garage.md\n# Notes") && texts[2] == "search_query: where is my car",
        "{texts:?}"
    );
    // Another process asks for the vector of its query alone.
    assert!(home.ok(&["search", "a meal", "/memories"]).starts_with("/memories/kitchen.md\n"));
    assert_eq!(model.texts(), ["search_query: a meal"]);
    home.ok(&["write", "/memories/kitchen.md", "An engine.\n"]);
    home.ok(&["search", "car", "/memories"]);
    assert_eq!(model.texts().len(), 2, "the query and the changed file");
    // Answers may come in any order.
    model.reply(Reply::Reversed);
    let other = model.home("");
    assert!(other.ok(&["search", "where is my car", "/memories"]).starts_with("/memories/garage.md\n"));
}

#[test]
fn endpoint_that_fails_leaves_the_search_by_words() {
    let model = Model::start();
    let replies = [
        (Reply::Text(401, "bad key".into()), "401 Unauthorized; check its key: bad key"),
        (Reply::Text(500, "<html>\n".repeat(1_000)), "500 Internal Server Error"),
        (Reply::Text(307, String::new()), "307"),
        (Reply::Text(200, "{}".into()), "sent no embeddings"),
        (Reply::Text(200, json!({"data": []}).to_string()), "sent 0 vectors for"),
        (Reply::Text(200, json!({"data": [{"embedding": []}]}).to_string()), "sent"),
        (Reply::Text(200, "x".repeat((16 << 20) + 1)), "answered with over"),
    ];
    for (reply, message) in replies {
        let home = model.home("key = \"file:key\"\n");
        let search = || {
            let output = home.command(&["search", "soup", "/memories"]).output().unwrap();
            assert!(!output.status.success(), "the failure is in the exit code");
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let [_, said] = search();
        assert!(said.contains("the file of the key of the embedding endpoint cannot be read"), "{said}");
        home.put("key", "sesame\n");
        model.reply(reply);
        let [out, said] = search();
        assert!(out.starts_with("/memories/kitchen.md\n"), "{message}: {out}");
        assert!(said.contains(message) && said.len() < 1_000 && !said.contains("sesame"), "{message}: {said}");
    }
    assert!(model.asked.lock().unwrap().iter().all(|(key, _)| key.as_deref() == Some("Bearer sesame")));
}

#[test]
fn vectors_of_two_users_are_kept_apart() {
    let model = Model::start();
    let home = model.home("");
    home.ok(&["search", "car", "/memories"]);
    model.texts();
    for user in ["ada", "bob"] {
        home.ok(&["--user", user, "write", "/memories/garage.md", "The automobile is in the shed.\n"]);
        home.ok(&["--user", user, "search", "car", "/memories"]);
        assert_eq!(model.texts().len(), 2, "the same passage of another user, and the query");
    }
}
