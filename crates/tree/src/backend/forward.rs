//! The one way in which a wrapper hands methods of [`Backend`](super::Backend) on to what it wraps.

/// Implements methods of [`Backend`](crate::backend::Backend) by calling the same method of another backend.
///
/// For use inside an `impl Backend` block, beside the methods that the wrapper writes itself. Every forwarded method is named, so a wrapper
/// that forgets one fails to compile, even if the trait gains that method later. The target is any expression on `self`; it is evaluated
/// for each call, and in the asynchronous methods it may use `?` and `.await`.
///
/// ```
/// use async_trait::async_trait;
/// use std::fmt;
/// use treehold_core::ops::*;
/// use treehold_core::{Error, ErrorKind, Result, VfsPath};
/// use treehold_tree::backend::{Backend, BackendExt, StateBackend};
/// use treehold_tree::forward_backend;
///
/// /// A tree that finds nothing.
/// #[derive(Debug)]
/// struct Unsearchable<B>(B);
///
/// impl<B: Backend> fmt::Display for Unsearchable<B> {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "Unsearchable({})", self.0)
///     }
/// }
///
/// #[async_trait]
/// impl<B: Backend> Backend for Unsearchable<B> {
///     forward_backend! { self => self.0; capabilities, stat, read, ls, glob, apply, review }
///
///     async fn grep(&self, path: &VfsPath, _options: &GrepOptions) -> Result<GrepResult> {
///         Err(Error::new(ErrorKind::Unsupported, "this tree cannot be searched").at(path))
///     }
///
///     async fn search(&self, path: &VfsPath, _options: &SearchOptions) -> Result<SearchResult> {
///         Err(Error::new(ErrorKind::Unsupported, "this tree cannot be searched").at(path))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let tree = Unsearchable(StateBackend::new());
/// tree.write("/a", "text").await?;
/// assert_eq!(tree.read_text("/a").await?, "text");
/// assert!(tree.grep(VfsPath::ROOT, &GrepOptions::new("text")).await.is_err());
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! forward_backend {
    ($this:ident => $target:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_backend! { @$method $this, $target })+
    };
    (@capabilities $this:ident, $target:expr) => {
        fn capabilities(&$this) -> $crate::backend::forward::Capabilities {
            $target.capabilities()
        }
    };
    (@stat $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, stat, StatOptions, Entry } };
    (@read $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, read, ReadOptions, FileRead } };
    (@ls $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, ls, LsOptions, Listing } };
    (@glob $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, glob, GlobOptions, GlobResult } };
    (@grep $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, grep, GrepOptions, GrepResult } };
    (@search $this:ident, $target:expr) => { $crate::forward_backend! { @read $this, $target, search, SearchOptions, SearchResult } };
    // The signatures are those that `async_trait` generates: it does not see into a macro call.
    (@read $this:ident, $target:expr, $method:ident, $options:ident, $answer:ident) => {
        fn $method<'this, 'path, 'options, 'async_trait>(
            &'this $this,
            path: &'path $crate::backend::forward::VfsPath,
            options: &'options $crate::backend::forward::$options,
        ) -> $crate::backend::forward::BoxFuture<'async_trait, $crate::backend::forward::Result<$crate::backend::forward::$answer>>
        where
            'this: 'async_trait,
            'path: 'async_trait,
            'options: 'async_trait,
            Self: 'async_trait,
        {
            ::std::boxed::Box::pin(async move {
                let answer: $crate::backend::forward::Result<_> = $target.$method(path, options).await;
                answer
            })
        }
    };
    (@apply $this:ident, $target:expr) => {
        fn apply<'this, 'changes, 'options, 'async_trait>(
            &'this $this,
            changes: &'changes [$crate::backend::forward::Change],
            options: &'options $crate::backend::forward::ApplyOptions,
        ) -> $crate::backend::forward::BoxFuture<
            'async_trait,
            $crate::backend::forward::Result<::std::vec::Vec<$crate::backend::forward::Changed>>,
        >
        where
            'this: 'async_trait,
            'changes: 'async_trait,
            'options: 'async_trait,
            Self: 'async_trait,
        {
            ::std::boxed::Box::pin(async move {
                let answer: $crate::backend::forward::Result<_> = $target.apply(changes, options).await;
                answer
            })
        }
    };
    (@review $this:ident, $target:expr) => {
        fn review<'this, 'review, 'async_trait>(
            &'this $this,
            review: &'review $crate::backend::forward::Review,
        ) -> $crate::backend::forward::BoxFuture<
            'async_trait,
            $crate::backend::forward::Result<::std::vec::Vec<$crate::backend::forward::Sight>>,
        >
        where
            'this: 'async_trait,
            'review: 'async_trait,
            Self: 'async_trait,
        {
            ::std::boxed::Box::pin(async move {
                let answer: $crate::backend::forward::Result<_> = $target.review(review).await;
                answer
            })
        }
    };
    (@$method:ident $this:ident, $target:expr) => {
        compile_error!(concat!("`Backend` has no method `", stringify!($method), "`"));
    };
}

// The macro names these types wherever it is used.
pub use futures::future::BoxFuture;
pub use treehold_core::error::Result;
pub use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
pub use treehold_core::path::VfsPath;
