//! The cost of routing: a read of 4 KiB through a composite compared with the same read of its child, by the number of
//! mounts. Also listings and searches from above many mounts.

use async_trait::async_trait;
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use treehold::error::Result;
use treehold::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Version,
};
use treehold::{Backend, BackendExt, CompositeBackend, StateBackend, VfsPath, VfsPathBuf};

/// A backend that does nothing, so that only the routing is measured.
#[derive(Debug)]
struct Null(Bytes);

impl fmt::Display for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Null")
    }
}

#[async_trait]
impl Backend for Null {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        Ok(Entry::file(path, 0, Version::new(1)))
    }

    async fn read(&self, path: &VfsPath, _: &ReadOptions) -> Result<FileRead> {
        black_box(path);
        Ok(FileRead::new(self.0.clone(), Version::new(1), None))
    }

    async fn ls(&self, _: &VfsPath, _: &LsOptions) -> Result<Listing> {
        Ok(Listing::default())
    }

    async fn glob(&self, _: &VfsPath, _: &GlobOptions) -> Result<GlobResult> {
        Ok(GlobResult::default())
    }

    async fn grep(&self, _: &VfsPath, _: &GrepOptions) -> Result<GrepResult> {
        Ok(GrepResult::default())
    }

    async fn search(&self, _: &VfsPath, _: &SearchOptions) -> Result<SearchResult> {
        Ok(SearchResult::default())
    }

    async fn apply(&self, _: &[Change], _: &ApplyOptions) -> Result<Vec<Changed>> {
        Ok(Vec::new())
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

fn content() -> Bytes {
    Bytes::from(vec![b'x'; 4096])
}

/// Mounts one backend at `/agents/0/memories`, `/agents/1/memories`...
fn mounted(child: &Arc<dyn Backend>, routes: usize) -> CompositeBackend {
    let routes = (0..routes).map(|number| (format!("/agents/{number}/memories"), child.clone()));
    CompositeBackend::builder(child.clone()).routes(routes).and_then(|builder| builder.build()).expect("the prefixes are legal")
}

/// Reads paths in turn. The futures of an in-memory tree are ready at once.
fn read(criterion: &mut Criterion, name: &str, tree: &dyn Backend, paths: &[VfsPathBuf]) {
    let options = ReadOptions::new();
    let mut turn = 0;
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            turn = if turn + 1 == paths.len() { 0 } else { turn + 1 };
            tree.read(&paths[turn], &options).now_or_never().expect("it is ready").expect("it exists").content.len()
        });
    });
}

fn reads(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be started");
    let state = Arc::new(StateBackend::new());
    let inner = path("/projects/notes.md");
    runtime.block_on(state.write(inner.as_str(), content())).expect("it can be written");
    let children: [(&str, Arc<dyn Backend>); 2] = [("null", Arc::new(Null(content()))), ("state", state)];
    for (name, child) in children {
        read(criterion, &format!("read_4k/{name}/alone"), &child, std::slice::from_ref(&inner));
        for routes in [1, 10, 100, 1000] {
            let tree = mounted(&child, routes);
            read(criterion, &format!("read_4k/{name}/default_of_{routes}"), &tree, std::slice::from_ref(&inner));
            // Read every mount in turn, so that the table does not stay in the innermost cache.
            let paths: Vec<VfsPathBuf> = (0..routes).map(|number| path(&format!("/agents/{number}/memories{inner}"))).collect();
            read(criterion, &format!("read_4k/{name}/mount_of_{routes}"), &tree, &paths);
        }
    }
}

fn many_mounts(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be started");
    for routes in [10, 100, 1000] {
        let null: Arc<dyn Backend> = Arc::new(Null(content()));
        let tree = mounted(&null, routes);
        let run = |bencher: &mut criterion::Bencher<'_>, call: &dyn Fn()| bencher.iter(call);
        criterion.bench_function(&format!("ls_above/{routes}"), |bencher| {
            run(bencher, &|| drop(black_box(runtime.block_on(tree.ls(&path("/agents"), &LsOptions::new())))));
        });
        criterion.bench_function(&format!("glob_from_root/{routes}"), |bencher| {
            run(bencher, &|| drop(black_box(runtime.block_on(tree.glob(VfsPath::ROOT, &GlobOptions::new("**/*.md"))))));
        });
        criterion.bench_function(&format!("glob_into_one/{routes}"), |bencher| {
            run(bencher, &|| drop(black_box(runtime.block_on(tree.glob(VfsPath::ROOT, &GlobOptions::new("agents/7/memories/*.md"))))));
        });
        criterion.bench_function(&format!("grep_from_root/{routes}"), |bencher| {
            run(bencher, &|| drop(black_box(runtime.block_on(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle"))))));
        });
    }
}

criterion_group!(benches, reads, many_mounts);
criterion_main!(benches);
