//! `[embeddings]`: search by meaning with a model behind an endpoint.

use super::Home;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use treehold::layer::{EmbeddedKind, Embedder};
use treehold::remote::{EmbeddingsClient, EmbeddingsOptions};

/// Words of two topics. The vector of a text counts the words of each.
const TOPICS: [&[&str]; 2] = [&["car", "automobile", "engine"], &["bread", "soup", "meal"]];

/// What the endpoint answers.
#[derive(Clone)]
enum Reply {
    Vectors,
    /// The vectors in another order, each with its index.
    Reversed,
    Text(u16, String),
    /// A status for a request with a text that contains this part, else vectors.
    Refusing(u16, &'static str),
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
        let texts: Vec<&str> = texts.collect();
        let holds = |part: &str| texts.iter().any(|text| text.contains(part));
        let mut data: Vec<Value> =
            texts.iter().enumerate().map(|(index, text)| json!({"index": index, "embedding": vector(text)})).collect();
        let (status, text) = match reply.lock().unwrap().clone() {
            Reply::Refusing(status, part) if holds(part) => (status, format!("cannot embed: {texts:?}")),
            Reply::Vectors | Reply::Refusing(..) => (200, json!({"data": data}).to_string()),
            Reply::Reversed => {
                data.reverse();
                (200, json!({"data": data}).to_string())
            }
            Reply::Text(status, text) => (status, text),
        };
        asked.lock().unwrap().push((key, body));
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
        (Reply::Text(401, "bad sesame".into()), "401 Unauthorized; check its key"),
        (Reply::Text(400, "bad sesame".into()), "400 Bad Request"),
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
            assert!(output.status.success(), "files were found by words");
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let [_, said] = search();
        assert!(said.contains("the file of the key of the embedding endpoint cannot be read"), "{said}");
        home.put("key", "sesame\n");
        model.reply(reply);
        let [out, said] = search();
        assert!(out.starts_with("/memories/kitchen.md\n"), "{message}: {out}");
        assert!(said.contains("searched by words alone") && said.contains(message) && said.len() < 1_000, "{message}: {said}");
        for inside in ["sesame", "html", &model.address.to_string()] {
            assert!(!said.contains(inside), "{message}: {said}");
        }
        // The failure is in the answer, and in the exit code of a search that finds nothing.
        let output = home.command(&["search", "soup", "/memories", "--json"]).output().unwrap();
        assert!(output.status.success());
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let counts = ["failures_count", "failures_of_meaning"].map(|count| result[count].as_u64());
        assert_eq!((counts, result["failures"].as_array().unwrap().len()), ([Some(1), Some(1)], 1));
        assert!(!home.command(&["search", "xylophone", "/memories"]).output().unwrap().status.success());
    }
    assert!(model.asked.lock().unwrap().iter().all(|(key, _)| key.as_deref() == Some("Bearer sesame")));
}

/// Regression: an endpoint that refused one passage was not asked for ten seconds, and the tree was never searched by meaning again.
#[test]
fn endpoint_that_refuses_a_passage_stays_in_use() {
    for status in [400, 403, 404, 413, 422, 500] {
        let model = Model::start();
        let home = model.home("");
        home.ok(&["write", "/memories/odd.md", "An odd automobile.\n"]);
        model.reply(Reply::Refusing(status, "odd"));
        let search = || {
            let output = home.command(&["search", "where is my car", "/memories", "--json"]).output().unwrap();
            assert!(output.status.success(), "{status}");
            let result: Value = serde_json::from_slice(&output.stdout).unwrap();
            let paths = |key: &str| -> Vec<String> {
                let parts = result[key].as_array().into_iter().flatten();
                parts.map(|part| part["path"].as_str().unwrap().to_owned()).collect()
            };
            (paths("hits"), paths("failures"), result.to_string())
        };
        let (hits, failures, said) = search();
        assert_eq!((hits, failures), (vec!["/memories/garage.md".to_owned()], vec!["/memories/odd.md".to_owned()]), "{status}");
        assert!(said.contains(&format!("answered {status}")) && !said.contains("An odd automobile"), "{said}");
        assert!(!said.contains(&model.address.to_string()), "{said}");
        model.texts();
        let (hits, failures, _) = search();
        assert_eq!((hits.len(), failures.len()), (1, 0), "{status}");
        assert_eq!(model.texts(), ["where is my car"], "{status}");
    }
}

/// Which answers stop calls for a while, and which concern one call.
#[tokio::test]
async fn only_an_unavailable_endpoint_is_left_alone() {
    let replies = (400..=428).chain([429, 431, 451, 500, 501, 502, 503, 504, 529]);
    for status in replies {
        for (kind, pauses_at_500) in [(EmbeddedKind::Query, true), (EmbeddedKind::Passage, false)] {
            let model = Model::start();
            let url = format!("http://{}/v1/embeddings", model.address);
            let client = EmbeddingsClient::new(&url, "toy", EmbeddingsOptions::new()).unwrap();
            model.reply(Reply::Text(status, "the text of another tenant".into()));
            let first = client.embed(&["car"], kind).await.unwrap_err();
            assert!(first.message().contains(&status.to_string()) && !first.message().contains("tenant"), "{first}");
            model.reply(Reply::Vectors);
            let second = client.embed(&["car"], EmbeddedKind::Query).await;
            let pauses = [408, 425, 429].contains(&status) || status > 500 || status == 500 && pauses_at_500;
            assert_eq!(second.is_err(), pauses, "{status} {kind:?}");
            assert!(second.err().is_none_or(|error| error.message() == first.message()));
        }
    }
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
