//! Random operations on composites and on the model: every answer and every resulting tree must be equal.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use treehold_conformance::backend::Tree;
use treehold_conformance::history::{Expectation, Mutation, Step, check};
use treehold_core::Namespace;
use treehold_core::ops::{CaseMode, Edit, GlobOptions, GrepOptions, GrepOutput, LsOptions, ReadOptions};
use treehold_store::MemoryStore;
use treehold_tree::backend::{Backend, BackendExt, StateBackend, StoreBackend};
use treehold_tree::composite::CompositeBackend;

/// The most steps in a history.
const STEPS_MAX: usize = 24;

/// The most edits of a history that may replace every occurrence by longer text. Each of them may multiply the size of a file.
const GROWING_EDITS_MAX: usize = 4;

const NAMES: [&str; 12] = ["a", "b", "c", "a-b", "ab", ".dot", ".gitignore", "é", "n.md", "n.rs", "[z]", "foo..bar"];

const PIECES: [&str; 14] =
    ["a", "b", "needle", "Needle", "\n", "\r\n", "\r", " ", "\0", "é", "needle one\n", "line two\r\n", "a\n*.md\n!b\n", "/b/\n"];

const GLOBS: [&str; 16] =
    ["a", "b", "*", "?", "**", "a*", "*.md", "{a,b}", "{,x}a", "{a,b/c}", "[ab]", "[!a]", ".*", "n.{md,rs}", "é", "[[]z]"];

const PATTERNS: [(&str, bool); 9] = [
    ("needle", false),
    ("a", false),
    ("é", false),
    ("line two", false),
    (r"^\w+", true),
    ("need.*e", true),
    ("a|b$", true),
    (r"\s$", true),
    ("(?i)NEEDLE", true),
];

fuzz_target!(|history: History| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { check(&history.shape.tree().await, &history.steps).await });
});

#[derive(Debug)]
struct History {
    shape: Shape,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for History {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let shape = Shape::arbitrary(u)?;
        let mut steps = Vec::new();
        while !u.is_empty() && steps.len() < STEPS_MAX {
            steps.push(step(u)?);
        }
        let growing = steps.iter_mut().flat_map(edits_of).filter(|edit| edit.replace_all && edit.new.len() > edit.old.len());
        growing.skip(GROWING_EDITS_MAX).for_each(|edit| edit.replace_all = false);
        Ok(Self { shape, steps })
    }
}

/// Where in a composite the history takes place.
#[derive(Debug, Arbitrary)]
enum Shape {
    /// In a directory of the default backend, with mounts beside it.
    BesideMounts,
    /// In a mount of store rows.
    Mount,
    /// In a mount of a nested composite.
    Nested,
    /// In the deepest of three mounts of one composite.
    ThreeDeep,
}

impl Shape {
    async fn tree(&self) -> Tree {
        let noise = noise().await;
        match self {
            Self::BesideMounts => {
                let default = StateBackend::new();
                default.create_dir("/w/o").await.expect("a fresh tree takes directories");
                Tree::new(composite(default, [("/w/other", Arc::clone(&noise)), ("/x", noise)])).at("/w/o")
            }
            Self::Mount => Tree::new(composite(Arc::clone(&noise), [("/mem", rows()), ("/mem2", noise)])).at("/mem"),
            Self::Nested => {
                let inner = composite(Arc::clone(&noise), [("/c", Arc::new(StateBackend::new()) as Arc<dyn Backend>)]);
                Tree::new(composite(noise, [("/a", Arc::new(inner) as Arc<dyn Backend>)])).at("/a/c")
            }
            Self::ThreeDeep => {
                let routes = [("/a", Arc::clone(&noise)), ("/a/b", Arc::clone(&noise)), ("/a/b/c", rows())];
                Tree::new(composite(noise, routes)).at("/a/b/c")
            }
        }
    }
}

fn composite<const N: usize>(default: impl Backend + 'static, routes: [(&str, Arc<dyn Backend>); N]) -> CompositeBackend {
    let builder = routes.into_iter().try_fold(CompositeBackend::builder(Arc::new(default)), |builder, (at, tree)| builder.route(at, tree));
    builder.and_then(|builder| builder.build()).expect("the routes are legal")
}

fn rows() -> Arc<dyn Backend> {
    let namespace = Namespace::new(["acme", "ada", "files"]).expect("a legal namespace");
    Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), namespace))
}

/// A tree with files that a history must never see.
async fn noise() -> Arc<dyn Backend> {
    let noise = StateBackend::new();
    for path in ["/noise", "/a", "/c/x", "/b/c/needle", "/mem", "/.gitignore"] {
        noise.write(path, "*\nneedle x\n").await.expect("no file blocks the path");
    }
    Arc::new(noise)
}

fn edits_of(step: &mut Step) -> impl Iterator<Item = &mut Edit> {
    let mutations = if let Step::Apply(mutations) = step { mutations.as_mut_slice() } else { &mut [] };
    mutations.iter_mut().flat_map(|mutation| if let Mutation::Edit(_, edits, _) = mutation { edits.as_mut_slice() } else { &mut [] })
}

fn step(u: &mut Unstructured<'_>) -> Result<Step> {
    Ok(match u.int_in_range(0..=15)? {
        0..=6 => Step::Apply(vec![mutation(u)?]),
        7..=8 => Step::Apply((0..u.int_in_range(0..=4)?).map(|_| mutation(u)).collect::<Result<_>>()?),
        9 => Step::Stat(path(u)?),
        10 => Step::Read(path(u)?, read_options(u)?),
        11 => Step::Ls(path(u)?, LsOptions::new().with_limit(limit(u)?)),
        12..=13 => Step::Glob(path(u)?, glob_options(u)?),
        _ => Step::Grep(path(u)?, grep_options(u)?),
    })
}

fn mutation(u: &mut Unstructured<'_>) -> Result<Mutation> {
    Ok(match u.int_in_range(0..=11)? {
        0..=2 => Mutation::Overwrite(path(u)?, content(u)?),
        3 => Mutation::Create(path(u)?, content(u)?),
        4 => Mutation::WriteIf(path(u)?, content(u)?, expectation(u)?),
        5 => Mutation::Append(path(u)?, content(u)?),
        6..=7 => Mutation::Edit(path(u)?, edits(u)?, maybe_expectation(u)?),
        8 => Mutation::CreateDir(path(u)?),
        9 => Mutation::Delete(path(u)?, u.arbitrary()?, maybe_expectation(u)?),
        10 => Mutation::Rename(path(u)?, path(u)?, u.arbitrary()?),
        _ => Mutation::Copy(path(u)?, path(u)?, u.arbitrary()?),
    })
}

fn expectation(u: &mut Unstructured<'_>) -> Result<Expectation> {
    Ok(if u.arbitrary()? { Expectation::Current } else { Expectation::Stale })
}

fn maybe_expectation(u: &mut Unstructured<'_>) -> Result<Option<Expectation>> {
    if u.ratio(1, 4)? { expectation(u).map(Some) } else { Ok(None) }
}

fn path(u: &mut Unstructured<'_>) -> Result<String> {
    let names = (0..u.int_in_range(0..=3)?).map(|_| u.choose(&NAMES).copied()).collect::<Result<Vec<_>>>()?;
    Ok(format!("/{}", names.join("/")))
}

fn pieces(u: &mut Unstructured<'_>, max: usize) -> Result<String> {
    let pieces = (0..u.int_in_range(0..=max)?).map(|_| u.choose(&PIECES).copied()).collect::<Result<Vec<_>>>()?;
    Ok(pieces.concat())
}

fn content(u: &mut Unstructured<'_>) -> Result<Bytes> {
    Ok(if u.ratio(1, 16)? { Bytes::from_static(b"\xff\xfe needle\n") } else { pieces(u, 10)?.into() })
}

fn edits(u: &mut Unstructured<'_>) -> Result<Vec<Edit>> {
    (0..u.int_in_range(0..=3)?)
        .map(|_| {
            let (old, new) = (pieces(u, 2)?, pieces(u, 3)?);
            Ok(if u.arbitrary()? { Edit::all(old, new) } else { Edit::new(old, new) })
        })
        .collect()
}

fn limit(u: &mut Unstructured<'_>) -> Result<usize> {
    u.choose(&[0, 1, 2, 3, 1000, 1000, 1000, 1000]).copied()
}

fn read_options(u: &mut Unstructured<'_>) -> Result<ReadOptions> {
    Ok(match u.int_in_range(0..=2)? {
        0 => ReadOptions::new(),
        1 => ReadOptions::lines(u.int_in_range(0..=4)?, u.int_in_range(0..=4)?),
        _ => ReadOptions::bytes(u.int_in_range(0..=20)?, u.int_in_range(0..=20)?),
    })
}

fn glob(u: &mut Unstructured<'_>) -> Result<String> {
    let anchor = if u.arbitrary()? { "/" } else { "" };
    let pieces = (0..u.int_in_range(1..=3)?).map(|_| u.choose(&GLOBS).copied()).collect::<Result<Vec<_>>>()?;
    Ok(format!("{anchor}{}", pieces.join("/")))
}

fn globs(u: &mut Unstructured<'_>) -> Result<Vec<String>> {
    (0..u.int_in_range(0..=1)?).map(|_| glob(u)).collect()
}

fn glob_options(u: &mut Unstructured<'_>) -> Result<GlobOptions> {
    let options = GlobOptions::new(glob(u)?).with_limit(limit(u)?).with_directories(u.arbitrary()?);
    let options = options.with_hidden(u.arbitrary()?).with_hidden_directories(u.arbitrary()?);
    Ok(options.with_case_insensitive(u.arbitrary()?).with_ignored(u.arbitrary()?))
}

fn grep_options(u: &mut Unstructured<'_>) -> Result<GrepOptions> {
    let (pattern, is_regex) = *u.choose(&PATTERNS)?;
    let mut options = if is_regex { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
    options = options.with_matches_max(limit(u)?).with_hidden(u.arbitrary()?).with_ignored(u.arbitrary()?).with_binary(u.arbitrary()?);
    options = options.with_word(u.arbitrary()?).with_whole_line(u.arbitrary()?).with_hidden_directories(u.arbitrary()?);
    options.case = *u.choose(&[CaseMode::Sensitive, CaseMode::Insensitive, CaseMode::Smart])?;
    options.output = *u.choose(&[GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts])?;
    (options.include, options.exclude, options.invert) = (globs(u)?, globs(u)?, u.arbitrary()?);
    // Context lines on one page may be matches on the next, so the sum of pages is only defined without context.
    if options.matches_max == 1000 {
        options = options.with_context(u.int_in_range(0..=2)?, u.int_in_range(0..=2)?);
    }
    Ok(options)
}
