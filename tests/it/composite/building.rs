//! Building composites: valid and invalid mounts.

use super::*;

#[test]
fn invalid_prefixes_are_refused() {
    for (prefix, kind, message) in [
        ("memories", ErrorKind::InvalidPath, "`memories` cannot be mounted at: the path is not absolute; start it with `/`"),
        ("", ErrorKind::InvalidPath, "`` cannot be mounted at: the path is empty; name an absolute path such as `/notes.md`"),
        (
            "/a/../b",
            ErrorKind::InvalidPath,
            "`/a/../b` cannot be mounted at: the path holds a `..` segment; name the target by its absolute path",
        ),
        ("/", ErrorKind::InvalidArgument, "`/` belongs to the default backend; mount below it"),
        ("/taken/", ErrorKind::InvalidArgument, "`/taken` is already mounted; use each prefix once"),
    ] {
        let builder = CompositeBackend::builder(state()).route("/taken", state()).unwrap();
        refused(builder.route(prefix, state()), kind, message);
    }
    let builder = CompositeBackend::builder(state()).file_route("/a.md", state()).unwrap().route("/a.md/b", state()).unwrap();
    refused(builder.build(), ErrorKind::InvalidArgument, "`/a.md/b` lies beneath `/a.md`, which is mounted as a file");
}

#[test]
fn routes_take_backends_in_path_order() {
    let prefixes = ["/z", "/a-b", "/a/b/c", "/a", "/a/b"];
    let routes = Routes::new(prefixes.map(path)).unwrap();
    let sorted = ["/a", "/a/b", "/a/b/c", "/a-b", "/z"];
    let backends: Vec<Arc<dyn Backend>> = sorted.map(|prefix| Arc::new(mounted(&[prefix])) as Arc<dyn Backend>).into();
    let tree = routes.composite(state(), backends.clone());
    assert_eq!(tree.mounts().map(|(prefix, _)| prefix.as_str()).skip(1).collect::<Vec<_>>(), sorted);
    assert!(tree.mounts().skip(1).zip(&backends).all(|((_, mounted), backend)| Arc::ptr_eq(mounted, backend)));
    let mut built = CompositeBackend::builder(state());
    for (prefix, backend) in sorted.iter().zip(backends).rev() {
        built = built.route(prefix, backend).unwrap();
    }
    assert_eq!(tree.to_string(), built.build().unwrap().to_string());
    for (prefixes, message) in [
        (&["/a", "/"][..], "`/` belongs to the default backend; mount below it"),
        (&["/a", "/b", "/a"], "`/a` is already mounted; use each prefix once"),
    ] {
        refused(Routes::new(prefixes.iter().map(|prefix| path(prefix))), ErrorKind::InvalidArgument, message);
    }
}

#[test]
fn display_shows_the_mounts() {
    let tree = CompositeBackend::builder(state()).route("/m", Arc::new(mounted(&["/x"]))).unwrap().route("/a/b/", state()).unwrap();
    let tree = tree.build().unwrap();
    assert_eq!(tree.to_string(), "Composite(State, /a/b => State, /m => Composite(State, /x => State))");
    assert_eq!(tree.mounts().map(|(prefix, _)| prefix.as_str()).collect::<Vec<_>>(), ["/", "/a/b", "/m"]);
    assert_eq!(tree.locate(&path("/m/x/y")), (&*path("/m"), &*path("/x/y")));
}

#[test]
fn capabilities_hold_in_every_mount() {
    let read_only: Arc<dyn Backend> = Arc::new(Layered::new(ReadOnly::new(), StateBackend::new()));
    let tree = CompositeBackend::builder(state()).route("/docs", read_only.clone()).unwrap().build().unwrap();
    assert!(tree.capabilities().writable && tree.capabilities().atomic_batch);
    assert!(!CompositeBackend::builder(read_only).build().unwrap().capabilities().writable);
}
