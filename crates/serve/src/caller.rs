//! Authenticates requests: finds the caller by token, and the thread by path or header.

use super::doors::{Door, Doors};
use super::problem;
use super::rights::{Access, ActsFor, Rights};
use super::token::{Token, TokenBook};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures::future::BoxFuture;
use percent_encoding::percent_decode;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::wire::{ACTOR_HEADER, TENANT_HEADER, THREAD_HEADER, USER_HEADER};
use treehold_core::work::{self, Owner};
use treehold_mcp::{McpCaller, Standing};

/// Authenticates requests and applies the caller's rights.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    scope: Scope,
    token: Option<Token>,
    book: Option<TokenBook>,
    doors: Doors,
    /// Whether to admit requests without a token.
    open: bool,
    /// How long the lookup of a token may take.
    limit: Duration,
}

/// The identity that a request's `Authorization` header establishes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    scope: Scope,
    rights: Rights,
    /// The id of the token, [`OPERATOR`] for the secret that the server was started with, or `None` without a token.
    credential: Option<String>,
}

/// The caller of a request. Clones share what was found out about them.
#[derive(Clone)]
pub(super) struct Caller(Arc<Admitted>);

/// What is known about a caller, with the door for their rights.
pub(super) struct Admitted {
    pub(super) scope: Scope,
    /// The tenant and user of the scope, to which the caller's work belongs.
    pub(super) owner: Owner,
    pub(super) rights: Rights,
    /// The id of the caller's token, [`OPERATOR`] for the secret that the server was started with, or `None` if the server requires no
    /// token.
    pub(super) credential: Option<String>,
    pub(super) door: Arc<Door>,
    doorkeeper: Arc<Doorkeeper>,
    /// Whether the path or a header names the thread; if so, the request is restricted to that thread.
    names_thread: bool,
    /// Set if the request came through a connection that this server dialled.
    dialled: Option<Dialled>,
}

impl Deref for Caller {
    type Target = Admitted;

    fn deref(&self) -> &Admitted {
        &self.0
    }
}

/// A request extension: the request came through a connection that this server dialled. Holds what it may do without a token.
#[derive(Debug, Clone)]
pub(super) struct Dialled(pub(super) Option<Arc<Rights>>);

/// The routes whose requests may name another tenant and user.
const SESSION_ROUTES: [&str; 3] = ["/v1/sessions", "/v1/user-memo/", "/v1/inspector/"];

/// The routes whose requests may name another tenant. Their paths, queries and bodies name the user.
const STATE_ROUTES: [&str; 3] = ["/v1/state", "/v1/turns:", "/v1/admin/"];

/// The routes whose requests may send a token in a header of their own, as clients of the protocol do that they serve. A token in
/// `Authorization` takes precedence.
const TOKEN_HEADERS: [(&str, &str); 2] = [("/api/v1/dp/", "x-builder-internal-token"), ("/v1/admin/", "x-agentscope-admin-token")];

/// The route at which machines connect, the only one that a token to connect allows.
pub(super) const CONNECT_ROUTE: &str = "/v1/connect";

/// Whose sessions a request is about.
pub(super) struct SessionOwner {
    pub(super) tenant: String,
    pub(super) user: String,
    /// Whether a session that the request names may belong to any user of the tenant.
    pub(super) is_any_user: bool,
}

/// The user whose states a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedUser<'a> {
    /// The caller's own: the caller's user, or the anonymous one if the caller has none.
    Own,
    /// The anonymous user.
    Anonymous,
    /// This user.
    Named(&'a str),
}

/// Whose states a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StateOwner {
    pub(super) tenant: String,
    /// The user; `None` is the anonymous one.
    pub(super) user: Option<String>,
}

/// Returns whether a route is about sessions.
pub(super) fn is_of_sessions(path: &str) -> bool {
    SESSION_ROUTES.iter().any(|route| path.starts_with(route))
}

/// Returns whether a route is about the states of agents.
pub(super) fn is_of_states(path: &str) -> bool {
    STATE_ROUTES.iter().any(|route| path.starts_with(route))
}

impl Caller {
    /// Returns the tenant and user whose sessions a request is about: the caller's own, or those that the headers name. Without a user
    /// of a named tenant, that is every user of it, as hosts know a session by its tenant alone.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for others than the rights allow, and for an insufficient access level;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a header that cannot be read, and for a caller without a tenant or user.
    pub(super) fn owner(&self, headers: &HeaderMap, access: Access) -> Result<SessionOwner> {
        self.rights.need_sessions(access)?;
        let named = (decoded(headers, TENANT_HEADER)?, decoded(headers, USER_HEADER)?);
        let acts_for = self.rights.acts_for;
        let id = |what: &str, own: &Option<String>, named: Option<String>, is_allowed: bool| match (named, own) {
            (Some(named), Some(own)) if named == *own => Ok(named),
            (Some(named), _) if is_allowed => Ok(named),
            (Some(named), _) => Err(not_for(acts_for, what, &named)),
            (None, Some(own)) => Ok(own.clone()),
            (None, None) => {
                Err(Error::invalid_argument(format!("sessions belong to a tenant and a user, and this caller has no {what}; name it")))
            }
        };
        let is_any_user = named.0.is_some() && named.1.is_none() && acts_for >= ActsFor::Tenant;
        let tenant = id("tenant", &self.scope.tenant, named.0, acts_for == ActsFor::All)?;
        let user = id("user", &self.scope.user, named.1, acts_for >= ActsFor::Tenant)?;
        Ok(SessionOwner { tenant, user, is_any_user })
    }

    /// Returns the tenant whose states a request is about: the caller's own, or the one that the header names.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for another tenant than the rights allow, and for an insufficient access level;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a header that cannot be read, and for a caller without a tenant.
    pub(super) fn state_tenant(&self, headers: &HeaderMap, access: Access) -> Result<String> {
        self.rights.need_sessions(access)?;
        let acts_for = self.rights.acts_for;
        match (decoded(headers, TENANT_HEADER)?, &self.scope.tenant) {
            (Some(named), Some(own)) if named == *own => Ok(named),
            (Some(named), _) if acts_for == ActsFor::All => Ok(named),
            (Some(named), _) => Err(not_for(acts_for, "tenant", &named)),
            (None, Some(own)) => Ok(own.clone()),
            (None, None) => Err(Error::invalid_argument("states belong to a tenant, and this caller has none; name it")),
        }
    }

    /// Returns the tenant and user whose states a request is about. Anonymous states belong to callers without a user, and to those who may
    /// act for every user of the tenant.
    ///
    /// # Errors
    /// As [`Caller::state_tenant`], and [`PermissionDenied`](ErrorKind::PermissionDenied) for another user than the rights allow.
    pub(super) fn state_owner(&self, headers: &HeaderMap, named: NamedUser<'_>, access: Access) -> Result<StateOwner> {
        let tenant = self.state_tenant(headers, access)?;
        let acts_for = self.rights.acts_for;
        let own = self.scope.user.as_deref();
        let is_own_tenant = self.scope.tenant.as_deref() == Some(tenant.as_str());
        let user = match named {
            NamedUser::Own => own,
            NamedUser::Anonymous => None,
            NamedUser::Named(user) => Some(user),
        };
        // A caller who names another tenant acts for all users of it.
        if (user == own && is_own_tenant) || acts_for >= ActsFor::Tenant {
            return Ok(StateOwner { tenant, user: user.map(str::to_owned) });
        }
        match user {
            Some(user) => Err(not_for(acts_for, "user", user)),
            None => {
                let message = format!("this token acts for `{acts_for}` users, not for the anonymous one; use another one");
                Err(Error::new(ErrorKind::PermissionDenied, message))
            }
        }
    }

    /// Returns the name under which the caller connects a machine: that of the token. The secret that the server was started with allows
    /// any name, as does a server that requires no token.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for another name than that of the token, and for any other token;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the caller must name the machine and does not.
    pub(super) fn connects_as(&self, named: Option<&str>) -> Result<String> {
        let denied = |message: String| Err(Error::new(ErrorKind::PermissionDenied, message));
        match (&self.rights.connect_as, named) {
            (Some(own), None) => Ok(own.clone()),
            (Some(own), Some(named)) if own == named => Ok(own.clone()),
            (Some(own), Some(_)) => denied(format!("this token connects a machine as `{own}`; leave the name out, or use another token")),
            (None, named) if self.credential.as_deref().is_none_or(|credential| credential == OPERATOR) && self.dialled.is_none() => {
                let unnamed = || Error::invalid_argument("the name of the machine is missing; add `?name=NAME` (`--dial-as NAME`)");
                named.map(str::to_owned).ok_or_else(unnamed)
            }
            (None, _) => denied("this token does not connect machines; make one with `treehold token create --connect-as NAME`".to_owned()),
        }
    }

    /// Returns the caller of an MCP connection.
    pub(super) fn to_mcp(&self) -> McpCaller {
        let mut caller = McpCaller::new(self.scope.clone()).with_threads(self.rights.threads.clone());
        if self.names_thread || self.rights.threads.len() == 1 {
            caller = caller.with_thread_fixed();
        }
        caller.credential.clone_from(&self.credential);
        caller
    }

    /// Returns a handle that checks later whether the caller is still authorized by these headers. A check may take as long as the lookup
    /// for a request.
    pub(super) fn standing(&self, headers: &HeaderMap) -> Standing {
        let caller = self.clone();
        // Keep only the header that identifies the caller.
        let authorization = headers.get(header::AUTHORIZATION).cloned();
        let headers: HeaderMap = authorization.map(|given| (header::AUTHORIZATION, given)).into_iter().collect();
        let book = caller.doorkeeper.clone();
        let holds = move || -> BoxFuture<'static, Result<bool>> {
            let (caller, headers) = (caller.clone(), headers.clone());
            Box::pin(async move { caller.is_still(&headers).await })
        };
        Standing::new(holds, move || book.book.as_ref().map(TokenBook::changes)).with_limit(self.doorkeeper.limit)
    }

    /// Returns whether the headers still authenticate the same caller with the same rights. It may wait for the store.
    async fn is_still(&self, headers: &HeaderMap) -> Result<bool> {
        let who = self.doorkeeper.who(headers, self.dialled.as_ref(), Asks::Again).await?;
        Ok(who.is_some_and(|who| {
            let is_same = who.scope.tenant == self.scope.tenant && who.scope.user == self.scope.user;
            is_same && who.rights == self.rights && who.credential == self.credential
        }))
    }
}

/// Returns the error for a tenant or user that a token does not act for.
fn not_for(acts_for: ActsFor, what: &str, named: &str) -> Error {
    let message = format!("this token acts for `{acts_for}` users, not for the {what} `{}`; use another one", named.escape_debug());
    Error::new(ErrorKind::PermissionDenied, message)
}

/// Why a token is looked up: for a new request, which counts as a use of the token, or to check that it is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    First,
    Again,
}

/// The credential of a caller who sends the secret that the server was started with. No token has this id.
const OPERATOR: &str = "operator";

/// The credential of a server that this one dialled, if its requests need no token. No token has this id.
const DIALLED: &str = "dialled";

impl Doorkeeper {
    pub(super) fn new(scope: Scope, token: Option<Token>, book: Option<TokenBook>, doors: Doors, open: bool, limit: Duration) -> Self {
        Self { scope, token, book, doors, open, limit }
    }

    /// Returns the caller that the headers authenticate, or `None` if they lack a valid token.
    ///
    /// A request through a connection that this server dialled is never admitted just because the server requires no token.
    async fn who(&self, headers: &HeaderMap, dialled: Option<&Dialled>, asks: Asks) -> Result<Option<Known>> {
        let admin = |credential: Option<&str>| {
            let credential = credential.map(str::to_owned);
            let rights = Rights::new(Access::Admin).with_acts_for(ActsFor::All);
            Known { scope: self.scope.clone(), rights, credential }
        };
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return Ok(match dialled {
                None => self.open.then(|| admin(None)),
                Some(Dialled(rights)) => rights.as_deref().map(|rights| Known {
                    scope: self.scope.clone(),
                    rights: rights.clone(),
                    credential: Some(DIALLED.to_owned()),
                }),
            });
        };
        let Some((scheme, given)) = given.as_bytes().split_at_checked("Bearer ".len()) else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return Ok(None);
        }
        if self.token.as_ref().is_some_and(|token| token.is(given)) {
            return Ok(Some(admin(Some(OPERATOR))));
        }
        let Some(book) = &self.book else { return Ok(None) };
        let found = match asks {
            Asks::First => book.used(given).await?,
            Asks::Again => book.find(given).await?,
        };
        let Some(mut record) = found else { return Ok(None) };
        if record.scope.thread.is_none() {
            let own = record.rights.threads.first().cloned();
            record.scope.thread = own.or_else(|| self.scope.thread.clone());
        }
        Ok(Some(Known { scope: record.scope, rights: record.rights, credential: Some(record.id) }))
    }

    /// Returns the caller of a request.
    fn caller(self: &Arc<Self>, who: Known, in_path: Option<&str>, headers: &HeaderMap, dialled: Option<Dialled>) -> Result<Caller> {
        let in_header = decoded(headers, THREAD_HEADER)?;
        let thread = match (in_path, in_header) {
            (Some(path), Some(header)) if path != header => {
                return Err(Error::invalid_argument("path and header name different threads; leave the header out"));
            }
            (path, header) => path.map(str::to_owned).or(header),
        };
        let names_thread = thread.is_some();
        let Known { mut scope, rights, credential } = who;
        if let Some(thread) = thread {
            scope.thread = Some(thread);
        }
        // The history records the agent as the author. An agent in the token takes precedence over the header.
        if scope.agent.is_none() {
            scope.agent = decoded(headers, ACTOR_HEADER)?;
        }
        scope.validate()?;
        rights.need_thread(scope.thread.as_deref().unwrap_or_default())?;
        let door = self.doors.of(&rights)?;
        let (owner, doorkeeper) = (Owner::from(&scope), self.clone());
        Ok(Caller(Arc::new(Admitted { owner, scope, rights, credential, door, doorkeeper, names_thread, dialled })))
    }

    async fn admit(self: &Arc<Self>, in_path: Option<&str>, headers: &HeaderMap, dialled: Option<Dialled>) -> Result<Option<Caller>> {
        match self.who(headers, dialled.as_ref(), Asks::First).await? {
            Some(who) => self.caller(who, in_path, headers, dialled).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn doors(&self) -> &Doors {
        &self.doors
    }
}

/// Returns the value of a header: UTF-8, percent-encoded outside visible ASCII.
fn decoded(headers: &HeaderMap, name: &str) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = percent_decode(value.as_bytes()).decode_utf8();
    let text =
        text.map_err(|error| Error::invalid_argument(format!("the header `{name}` is not UTF-8, percent-encoded")).with_source(error))?;
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Error::invalid_argument(format!("the header `{name}` is empty or holds a control character")));
    }
    Ok(Some(text.into_owned()))
}

/// Returns the error for a header that names a tenant or user where the route does not take it.
fn misplaced(route: &str, headers: &HeaderMap) -> Option<Error> {
    let names = |name: &str| headers.contains_key(name);
    if is_of_sessions(route) {
        return None;
    }
    if is_of_states(route) {
        let message = format!("the header `{USER_HEADER}` applies to sessions only; name the user of a state in the request itself");
        return names(USER_HEADER).then(|| Error::invalid_argument(message));
    }
    let name = [TENANT_HEADER, USER_HEADER].into_iter().find(|name| names(name))?;
    let message = format!("the header `{name}` applies to sessions only; leave it out, files are always those of the token's own user");
    Some(Error::invalid_argument(message))
}

/// Treats a token in a header of the route's own protocol as a bearer token, unless the request has one.
fn adopt_token(route: &str, headers: &mut HeaderMap) -> Result<()> {
    let Some((_, name)) = TOKEN_HEADERS.iter().find(|(of, _)| route.starts_with(of)) else { return Ok(()) };
    let mut given = headers.get_all(*name).iter();
    let (Some(token), another) = (given.next(), given.next()) else { return Ok(()) };
    if another.is_some() {
        return Err(Error::invalid_argument(format!("the header `{name}` is sent twice; send one token")).without_effect());
    }
    if headers.contains_key(header::AUTHORIZATION) {
        return Ok(());
    }
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())
        .map_err(|error| Error::invalid_argument("the token cannot be sent in a header").with_source(error).without_effect())?;
    bearer.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, bearer);
    Ok(())
}

/// The parameters of a path, or why they cannot be read.
pub(super) type PathParams = std::result::Result<RawPathParams, RawPathParamsRejection>;

/// Authenticates a request within the limit of the doorkeeper, attaches its caller as an extension, and handles it as work of the caller.
pub(super) async fn admit<F: Future<Output = Response>>(
    doorkeeper: &Arc<Doorkeeper>,
    params: PathParams,
    mut request: Request,
    next: impl FnOnce(Caller, Request) -> F,
) -> Response {
    // The lookup of a token may wait for the store.
    let limit = doorkeeper.limit;
    let caller = match tokio::time::timeout(limit, admitted(doorkeeper, params, &mut request)).await {
        Ok(Ok(caller)) => caller,
        Ok(Err(refused)) => return refused,
        Err(_) => {
            let message = format!("the token could not be looked up within {limit:?}; try again later");
            return problem::response(&Error::new(ErrorKind::Deadline, message).without_effect());
        }
    };
    request.extensions_mut().insert(caller.clone());
    work::as_owner(caller.owner.clone(), None, next(caller, request)).await
}

/// Returns the caller of a request, or the response that refuses it.
async fn admitted(doorkeeper: &Arc<Doorkeeper>, params: PathParams, request: &mut Request) -> std::result::Result<Caller, Response> {
    let refused = |error: Error| problem::response(&error);
    let Ok(params) = params else {
        return Err(refused(Error::new(ErrorKind::InvalidPath, "the path is not UTF-8, percent-encoded")));
    };
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("", MatchedPath::as_str);
    if let Some(error) = misplaced(route, request.headers()) {
        return Err(refused(error.without_effect()));
    }
    adopt_token(route, request.headers_mut()).map_err(refused)?;
    let in_path = params.iter().find_map(|(name, value)| (name == "thread").then_some(value));
    let dialled = request.extensions().get::<Dialled>().cloned();
    let Some(caller) = doorkeeper.admit(in_path, request.headers(), dialled).await.map_err(refused)? else {
        return Err(unknown(request.headers()));
    };
    if route != CONNECT_ROUTE {
        caller.rights.need_more_than_connecting().map_err(refused)?;
    }
    Ok(caller)
}

/// Responds to a request without a valid token.
fn unknown(headers: &HeaderMap) -> Response {
    // One text for a token that never was, is revoked or has expired: it reveals nothing about tokens.
    let message = match headers.get(header::AUTHORIZATION) {
        Some(given) if given.as_bytes().get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"Bearer ")) => {
            "the token is wrong, revoked or expired; send a valid one as `Authorization: Bearer TOKEN`"
        }
        _ => "this server requires a token; send it as `Authorization: Bearer TOKEN`",
    };
    let error = Error::new(ErrorKind::PermissionDenied, message);
    let mut response = problem::with_status(&error, StatusCode::UNAUTHORIZED);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_agent::workspace::Workspace;
    use treehold_mcp::{HttpLimits, McpOptions};
    use treehold_store::MemoryStore;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), header::HeaderValue::from_static(value))])
    }

    fn doorkeeper(scope: Scope, token: Option<Token>, book: Option<TokenBook>) -> Doorkeeper {
        let open = token.is_none() && book.is_none();
        let doors = Doors::new(Workspace::builder().build(), McpOptions::default(), HttpLimits::default());
        Doorkeeper::new(scope, token, book, doors, open, Duration::from_secs(60))
    }

    #[tokio::test]
    async fn token_is_required_if_server_has_one() {
        let open = doorkeeper(Scope::new(), None, None);
        assert!(open.who(&HeaderMap::new(), None, Asks::First).await.expect("no store").is_some());
        let closed = doorkeeper(Scope::new(), Token::new("0123456789abcdef").ok(), None);
        for (value, admitted) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef", true),
            ("Bearer 0123456789abcdeX", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(
                closed.who(&headers("authorization", value), None, Asks::First).await.expect("no store").is_some(),
                admitted,
                "{value}"
            );
        }
        assert!(closed.who(&HeaderMap::new(), None, Asks::First).await.expect("no store").is_none());
        assert!(
            open.who(&headers("authorization", "Bearer wrong"), None, Asks::First).await.expect("no store").is_none(),
            "a wrong token identifies no caller"
        );
    }

    #[tokio::test]
    async fn token_determines_scope_and_threads() {
        let book = TokenBook::new(Arc::new(MemoryStore::new()));
        let rights = Rights::new(Access::Write).with_threads(["monday".to_owned()]);
        let (_, text) = book.create(Scope::new().with_tenant("acme").with_user("ada"), rights, None, None).await.expect("made");
        let doorkeeper = Arc::new(doorkeeper(Scope::new().with_tenant("own").with_user("bob").with_thread("default"), None, Some(book)));
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {text}").parse().expect("visible"));
        let caller = doorkeeper.admit(None, &headers, None).await.expect("the caller is admitted").expect("known");
        assert_eq!(caller.scope, Scope::new().with_tenant("acme").with_user("ada").with_thread("monday"));
        let other = doorkeeper.admit(Some("tuesday"), &headers, None).await.err().expect("another thread");
        assert_eq!(other.kind(), ErrorKind::PermissionDenied);
        assert!(doorkeeper.admit(None, &HeaderMap::new(), None).await.expect("read").is_none());
    }

    #[tokio::test]
    async fn thread_in_path_or_header_is_the_only_one() {
        let doorkeeper = Arc::new(doorkeeper(Scope::new().with_user("ada").with_thread("own"), None, None));
        let admitted = async |path: Option<&str>, headers: HeaderMap| {
            let caller = doorkeeper.admit(path, &headers, None).await?.expect("open to all");
            let Scope { thread, user, .. } = caller.scope.clone();
            Ok::<_, Error>((thread.unwrap_or_default(), caller.names_thread, user.unwrap_or_default()))
        };
        assert_eq!(admitted(None, HeaderMap::new()).await.expect("no thread"), ("own".to_owned(), false, "ada".to_owned()));
        for (path, headers) in
            [(Some("t"), HeaderMap::new()), (None, headers(THREAD_HEADER, "t")), (Some("t"), headers(THREAD_HEADER, "t"))]
        {
            assert_eq!(admitted(path, headers).await.expect("a thread"), ("t".to_owned(), true, "ada".to_owned()));
        }
        assert_eq!(admitted(None, headers(THREAD_HEADER, "%c3%a9")).await.expect("a thread").0, "é");
        for (path, value) in [(Some("t"), "u"), (None, ""), (None, "%00"), (None, "%ff")] {
            assert!(admitted(path, headers(THREAD_HEADER, value)).await.is_err(), "{value}");
        }
        assert!(admitted(Some("a\nb"), HeaderMap::new()).await.is_err());
    }
}
