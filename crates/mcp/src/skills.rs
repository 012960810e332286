//! Skills: directories with a `SKILL.md` beneath the directory `skills` of any mount, as in the
//! [extension](https://modelcontextprotocol.io/extensions/skills).
//!
//! A skill has the name of its directory. Its `SKILL.md` starts with a front matter between lines of `---` that contains the same name and
//! a description. Without a valid front matter it is an ordinary file: it is not listed, and a request for it by URI fails with the reason.

use super::uri;
use rmcp::model::{CacheScope, GetSkillResult, ListSkillsResult, SKILL_MD, Skill, SkillFrontmatter, SkillResource, SkillResources};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{GlobOptions, OnFailure, ReadOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;
use treehold_tree::backend::Backend;

/// The directory of a mount that contains skills.
const DIRECTORY: &str = "skills";

/// The most skills of one response; a cursor continues.
const SKILLS_MAX: usize = 50;

/// The most files of a skill.
const FILES_MAX: usize = 512;

/// The most bytes of all files of a skill.
const BYTES_MAX: u64 = 16 << 20;

/// The maximum size of a head in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Lists the skills of the tree in path order, starting after the cursor.
pub(super) async fn list(tree: &dyn Backend, mounts: &[VfsPathBuf], cursor: Option<String>) -> Result<ListSkillsResult> {
    let mut places = Vec::new();
    for mount in mounts {
        places.extend(places_beneath(tree, mount).await?);
    }
    places.sort();
    places.dedup();
    let after = cursor.map(VfsPathBuf::parse).transpose()?;
    places.retain(|place| after.as_ref().is_none_or(|after| place > after));
    let mut skills = Vec::new();
    let mut next = None;
    for (at, place) in places.iter().enumerate() {
        match skill(tree, place).await {
            Ok(skill) => skills.push(skill),
            Err(error) => tracing::debug!(path = %place, %error, "a SKILL.md is not a valid skill"),
        }
        if skills.len() == SKILLS_MAX && at + 1 < places.len() {
            next = Some(place.as_str().to_owned());
            break;
        }
    }
    let mut result = ListSkillsResult::with_all_items(skills).with_ttl_ms(0).with_cache_scope(CacheScope::Private);
    result.next_cursor = next;
    Ok(result)
}

/// Returns a skill by the path of its `SKILL.md`.
pub(super) async fn get(tree: &dyn Backend, path: &VfsPath) -> Result<GetSkillResult> {
    if !path.segments().any(|segment| segment == DIRECTORY) {
        let message = format!("`{path}` is not a skill: skills lie beneath a directory `{DIRECTORY}`");
        return Err(Error::invalid_argument(message).at(path));
    }
    Ok(GetSkillResult::new(skill(tree, path).await?).with_ttl_ms(0).with_cache_scope(CacheScope::Private))
}

async fn places_beneath(tree: &dyn Backend, mount: &VfsPath) -> Result<Vec<VfsPathBuf>> {
    let directory = mount.child(DIRECTORY)?;
    let options = GlobOptions::new(SKILL_MD).with_limit(10 * SKILLS_MAX).with_on_failure(OnFailure::Partial);
    match tree.glob(&directory, &options).await {
        Ok(found) => Ok(found.entries.into_iter().map(|entry| entry.path).collect()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        // A mount that cannot be searched, such as one whose `skills` is a link out of it, must not hide the skills of others.
        Err(error) => {
            tracing::warn!(path = %directory, %error, "skills cannot be searched for");
            Ok(Vec::new())
        }
    }
}

async fn skill(tree: &dyn Backend, path: &VfsPath) -> Result<Skill> {
    let wrong = |reason: String| Error::invalid_argument(format!("`{path}` is not a skill: {reason}")).at(path);
    let directory = path.parent().ok_or_else(|| wrong("it is not in a directory of its own".to_owned()))?;
    let text = tree.read(path, &ReadOptions::new().with_bytes_max(BYTES_MAX)).await?.content;
    let text = std::str::from_utf8(&text).map_err(|_| wrong("it is not UTF-8 text".to_owned()))?;
    let head = head(text).ok_or_else(|| wrong("it does not start with front matter between lines of `---`".to_owned()))?;
    if head.len() > HEAD_BYTES_MAX {
        let message = format!("the front matter of `{path}` has over {HEAD_BYTES_MAX} bytes; move text below it");
        return Err(Error::new(ErrorKind::TooLarge, message).at(path));
    }
    let head: SkillFrontmatter = serde_saphyr::from_str_with_options(head, yaml_limits()).map_err(|error| {
        wrong(format!(
            "its front matter cannot be read: \
            {error}"
        ))
    })?;
    if head.name != directory.name() {
        return Err(wrong(format!("it is named `{}` and lies in `{}`; the two must be the same", head.name, directory.name())));
    }
    let files = files(tree, directory).await?;
    Ok(Skill::new(uri::of(path), head, SkillResources::Files(files)))
}

/// Returns the front matter: the text between a first line `---` and the next such line.
fn head(text: &str) -> Option<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest = text.strip_prefix("---").and_then(|rest| rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\r\n")))?;
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&rest[..end]);
        }
        end += line.len();
    }
    None
}

/// Returns every file of a skill with its digest.
async fn files(tree: &dyn Backend, directory: &VfsPath) -> Result<Vec<SkillResource>> {
    let options = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_limit(FILES_MAX);
    let found = tree.glob(directory, &options).await?;
    let too_large =
        |what: String| Error::new(ErrorKind::TooLarge, format!("the skill `{directory}` has over {what}; make it smaller")).at(directory);
    if found.truncated.is_some() {
        return Err(too_large(format!("{FILES_MAX} files")));
    }
    if found.entries.iter().map(|entry| entry.size_bytes).sum::<u64>() > BYTES_MAX {
        return Err(too_large(format!("{} MiB", BYTES_MAX >> 20)));
    }
    let mut files = Vec::with_capacity(found.entries.len());
    for entry in found.entries {
        let content = tree.read(&entry.path, &ReadOptions::new().with_bytes_max(BYTES_MAX)).await?.content;
        let uri = uri::of(&entry.path);
        files.push(work::run(content.len() as u64, move |_| SkillResource::from_bytes(uri, &content)).await?);
    }
    Ok(files)
}

/// Returns the limits of parsing a head. An alias repeats what its anchor names, so some kilobytes of them could stand for gigabytes.
fn yaml_limits() -> serde_saphyr::Options {
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: 256, max_replay_stack_depth: 8 };
    let budget = serde_saphyr::budget! {
        max_aliases: 64, max_anchors: 64, max_depth: 32, max_events: 20_000, max_nodes: 20_000, max_merge_keys: 64,
        max_total_scalar_bytes: 4 << 20,
    };
    serde_saphyr::options! { budget: budget, alias_limits: alias_limits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_tree::backend::{BackendExt, StateBackend};

    #[test]
    fn front_matter_is_between_first_two_marker_lines() {
        assert_eq!(head("---\nname: a\n---\ntext"), Some("name: a\n"));
        assert_eq!(head("\u{feff}---\r\nname: a\r\n---\r\n"), Some("name: a\r\n"));
        assert_eq!(head("---\n---"), Some(""));
        for text in ["", "name: a", "---", "----\nname: a\n---\n", "---\nname: a\n"] {
            assert_eq!(head(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn skill_requires_front_matter_with_name_of_its_directory() {
        let tree = StateBackend::new();
        let head =
            |name: &str| format!("---\nname: {name}\ndescription: >\n  Issues\n  invoices\nallowed-tools: [Read, Grep]\n---\n# How\n");
        tree.write("/skills/acme/billing/SKILL.md", head("billing")).await.expect("written");
        tree.write("/skills/acme/billing/scripts/a b.py", "print()").await.expect("written");
        tree.write("/skills/other/SKILL.md", head("another")).await.expect("written");
        tree.write("/skills/bare/SKILL.md", "# none").await.expect("written");
        tree.write("/notes/billing/SKILL.md", head("billing")).await.expect("written");
        let mounts = [VfsPathBuf::root()];
        let listed = list(&tree, &mounts, None).await.expect("listed").skills;
        assert_eq!(listed.len(), 1);
        listed[0].validate().expect("the skill is valid");
        assert_eq!(listed[0].frontmatter.description, "Issues invoices\n");
        assert_eq!(listed[0].frontmatter.extra["allowed-tools"], serde_json::json!(["Read", "Grep"]));
        let SkillResources::Files(files) = &listed[0].resources else { panic!("files") };
        let uris: Vec<&str> = files.iter().map(|file| file.uri.as_str()).collect();
        assert_eq!(uris, ["vfs:///skills/acme/billing/SKILL.md", "vfs:///skills/acme/billing/scripts/a%20b.py"]);
        files[1].verify(b"print()").expect("its digest");
        for (path, reason) in
            [("/skills/other/SKILL.md", "named `another`"), ("/skills/bare/SKILL.md", "---"), ("/notes/billing/SKILL.md", "beneath")]
        {
            let error = get(&tree, &VfsPathBuf::parse(path).expect("legal")).await.expect_err("not a skill");
            assert!(error.message().contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn hostile_head_is_refused() {
        let laughs = |levels: usize| {
            let lines = (1..levels).map(|level| format!("l{level}: &l{level} [{}]\n", vec![format!("*l{}", level - 1); 9].join(", ")));
            format!("l0: &l0 [{}]\n{}", ["lol"; 9].join(", "), lines.collect::<String>())
        };
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(30_000), vec!["*a"; 5_000].join(", "));
        for (what, rest, kind) in [
            ("laughs", laughs(9), ErrorKind::InvalidArgument),
            ("a long text many times", long, ErrorKind::InvalidArgument),
            ("nesting", format!("a: {}{}\n", "[".repeat(10_000), "]".repeat(10_000)), ErrorKind::InvalidArgument),
            ("nesting by lines", (0..150).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(), ErrorKind::InvalidArgument),
            ("values", format!("a: [{}]\n", "1,".repeat(30_000)), ErrorKind::InvalidArgument),
            ("size", format!("a: {}\n", "x".repeat(100_000)), ErrorKind::TooLarge),
        ] {
            let tree = StateBackend::new();
            let head = format!("---\nname: bomb\ndescription: d\n{rest}---\n");
            tree.write("/skills/bomb/SKILL.md", head).await.expect("written");
            tree.write("/skills/fine/SKILL.md", "---\nname: fine\ndescription: &d d\nagain: *d\n---\n").await.expect("written");
            let path = VfsPathBuf::parse("/skills/bomb/SKILL.md").expect("legal");
            assert_eq!(get(&tree, &path).await.expect_err(what).kind(), kind, "{what}");
            let listed = list(&tree, &[VfsPathBuf::root()], None).await.expect("listed").skills;
            assert_eq!(listed.len(), 1, "{what}: the other skill is listed");
            assert_eq!(listed[0].frontmatter.extra["again"], serde_json::json!("d"));
        }
    }

    #[tokio::test]
    async fn long_list_continues_at_cursor() {
        let tree = StateBackend::new();
        for number in 0..SKILLS_MAX + 10 {
            let name = format!("s{number:03}");
            tree.write(&format!("/skills/{name}/SKILL.md"), format!("---\nname: {name}\ndescription: d\n---\n")).await.expect("written");
        }
        let mounts = [VfsPathBuf::root()];
        let first = list(&tree, &mounts, None).await.expect("listed");
        let second = list(&tree, &mounts, first.next_cursor.clone()).await.expect("listed");
        assert_eq!((first.skills.len(), second.skills.len(), second.next_cursor), (SKILLS_MAX, 10, None));
        assert!(first.skills[SKILLS_MAX - 1].uri < second.skills[0].uri);
    }
}
