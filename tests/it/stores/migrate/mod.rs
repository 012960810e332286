//! Migration of stores written by the last versions of the former layouts (`tests/fixtures/layout1` and `layout2`, created by
//! `scripts/layout1-fixtures.sh` and `scripts/layout2-fixtures.sh`). Each engine migrates them, interrupted at every step, and everything in
//! them can be read through the command and the server.

mod files;
mod killed;
mod reading;
mod servers;

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use treehold::config::{OpenStoreOptions, migrate_store};
use treehold::store::{MigrateOptions, MigrateReport, NamespacesOptions, ScanEntry, ScanOptions, Store};

/// A row without its key: version, times, expiry, metadata, body.
type Row = (u64, i64, i64, Option<i64>, Bytes, Bytes);

/// All rows by namespace and key.
type Rows = BTreeMap<(String, String), Row>;

/// A former layout. There are fixtures of stores in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// The program's rows beside those of tenants.
    First,
    /// Rows about a user's rows outside of the user's partition.
    Second,
}

impl Layout {
    const ALL: [Self; 2] = [Self::First, Self::Second];

    fn directory(self) -> &'static str {
        match self {
            Self::First => "layout1",
            Self::Second => "layout2",
        }
    }

    /// The name of the product then, from which default names were derived.
    fn product(self) -> &'static str {
        match self {
            Self::First => "stratafs",
            Self::Second => "treehold",
        }
    }

    /// What its stores hold below the reserved root.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::First => &["threads", "overlays", "items", "events", "indexes", "tokens", "answers"],
            Self::Second => {
                &["threads", "overlays", "items", "events", "indexes", "tokens", "answers", "history", "sessions", "agent-state", "traces"]
            }
        }
    }
}

fn fixture(layout: Layout, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(layout.directory()).join(name)
}

fn unpacked(layout: Layout, name: &str) -> Vec<u8> {
    unpacked_from(&fixture(layout, name))
}

fn unpacked_from(file: &Path) -> Vec<u8> {
    let output = Command::new("gzip").arg("-dc").arg(file).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Writes the SQLite store of a former layout.
fn put_sqlite(layout: Layout, file: &Path) {
    std::fs::write(file, unpacked(layout, &format!("{}.db.gz", layout.product()))).unwrap();
}

/// Writes the sled store of a former layout.
fn put_sled(layout: Layout, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let fixture = fixture(layout, "sled.tar.gz");
    let done = Command::new("tar").arg("-xzf").arg(fixture).arg("-C").arg(directory).arg("--strip-components=1").status();
    assert!(done.unwrap().success());
}

/// Returns the name in the present layout of a namespace in a fixture.
fn present_name(layout: Layout, namespace: &str) -> String {
    let namespace = namespace.trim_end_matches('/');
    let (first, rest) = namespace.split_once('/').unwrap_or((namespace, ""));
    let (kind, rest) = match layout {
        Layout::First if layout.kinds().contains(&first) => (first, rest),
        Layout::Second if first == "_treehold" => rest.split_once('/').unwrap_or((rest, "")),
        _ => return namespace.to_owned(),
    };
    let beside = |kind: &str, of: &str| match present_name(layout, of).split('/').collect::<Vec<_>>()[..] {
        [tenant] => format!("{tenant}//_treehold/{kind}"),
        [tenant, user] => format!("{tenant}/{user}/_treehold/{kind}"),
        [tenant, user, ref name @ ..] => format!("{tenant}/{user}/_treehold/{kind}/{}", name.join("/")),
        [] => unreachable!("a text has a part"),
    };
    match (kind, rest.split_once('/')) {
        ("threads", Some((kind, of))) => beside(&format!("threads/{kind}"), of),
        ("overlays" | "items" | "indexes" | "history", _) => beside(kind, rest),
        ("events", Some(("rows", of))) => beside("events/rows", &of.replace("%2F", "/")),
        ("agent-state", Some((tenant, of))) if tenant != "_treehold" => match of.strip_prefix("users/") {
            Some(of) => beside(kind, &format!("{tenant}/{of}")),
            None => format!("{tenant}//_treehold/{kind}/{of}"),
        },
        ("sessions" | "traces", _) if !rest.is_empty() && !rest.starts_with("_treehold/") => beside(kind, rest),
        (_, None) if rest.is_empty() => format!("_treehold/{kind}"),
        _ => format!("_treehold/{kind}/{rest}"),
    }
}

/// What a store is after its migration.
struct Expected {
    rows: Rows,
    /// How many rows move.
    moved: u64,
}

/// Reads the rows of a former layout without this crate, under the names of the present layout.
fn expected(layout: Layout) -> Expected {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    put_sqlite(layout, &file);
    let connection = rusqlite::Connection::open(&file).unwrap();
    let sql = "SELECT namespace, key, version, created_at, modified_at, expires_at, meta, coalesce(body, x'') FROM items i LEFT JOIN bodies b \
               ON b.id = i.id";
    let mut statement = connection.prepare(sql).unwrap();
    let mut moved = 0;
    let rows = statement.query_map([], |row| {
        let before: String = row.get(0)?;
        let namespace = present_name(layout, &before);
        // A namespace of one component gets another slash.
        moved += u64::from(format!("{namespace}/") != before || !namespace.contains('/'));
        let (meta, body): (Vec<u8>, Vec<u8>) = (row.get(6)?, row.get(7)?);
        let place = (namespace, row.get::<_, String>(1)?);
        Ok((place, (row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, Bytes::from(meta), Bytes::from(body))))
    });
    let rows: Rows = rows.unwrap().map(Result::unwrap).collect();
    for kind in layout.kinds() {
        let kind = format!("_treehold/{kind}");
        assert!(rows.keys().any(|(namespace, _)| format!("{namespace}/").contains(&format!("{kind}/"))), "the fixture holds no {kind}");
    }
    Expected { rows, moved }
}

/// Reads all rows of a store.
async fn rows_of(store: &dyn Store) -> Rows {
    let mut rows = Rows::new();
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(1_000)).await.unwrap();
    assert!(!namespaces.more);
    for namespace in namespaces.namespaces {
        let page = store.scan(&namespace, ScanOptions::new().with_values(true).with_limit(1_000)).await.unwrap();
        assert_eq!(page.next, None);
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("{entry:?}") };
            let times =
                (item.created_at.as_microsecond(), item.modified_at.as_microsecond(), item.expires_at.map(|at| at.as_microsecond()));
            let row = (item.version.number(), times.0, times.1, times.2, item.meta, item.value);
            rows.insert((namespace.to_string(), item.key), row);
        }
    }
    rows
}

/// Compares without printing bodies.
fn assert_same(found: &Rows, expected: &Rows) {
    let keys = |rows: &Rows| rows.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(found), keys(expected));
    for (place, row) in expected {
        assert_eq!(&found[place], row, "{place:?}");
    }
}

async fn migrated(url: &str, how: MigrateOptions) -> treehold::Result<MigrateReport> {
    migrate_store(url, &OpenStoreOptions::new(), &how, |_| {}).await
}
