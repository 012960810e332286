//! One connection: the protocol's methods, each delegated to the module that implements it.

use super::caller::McpCaller;
#[cfg(feature = "conformance")]
use super::fixtures::Fixtures;
use super::offer::Offer;
use super::subscriptions::{self, Subscriptions};
use super::watches::Watched;
use super::{McpTools, Offered, answer, call, prompts, reference, resources, skills, uri};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams, CompleteResult, DiscoverResult,
    GetPromptRequestParams, GetPromptResponse, GetSkillRequestParams, GetSkillResult, Implementation, InitializeRequestParams,
    InitializeResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListSkillsResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_core::shares::{Share, User};
use treehold_tree::backend::Backend;

/// How long a client may cache the list of tools, which changes only with the server.
const TOOLS_TTL_MS: u64 = 3_600_000;

/// The approximate limit on instructions, in characters. Claude Code 2.1 truncates a server's instructions there by default. The prompt
/// contains the full memory.
const INSTRUCTIONS_CHARS_MAX: usize = 4_096;

/// The handler of one connection.
#[derive(Clone)]
pub(super) struct Connection {
    offered: Arc<Offered>,
    subscriptions: Arc<Subscriptions>,
}

impl Connection {
    pub(super) fn new(offered: Arc<Offered>) -> Self {
        Self { offered, subscriptions: Arc::default() }
    }

    fn offer(&self, name: &str) -> Option<&Offer> {
        self.offered.offers.iter().find(|offer| offer.tool.name == name)
    }

    /// Answers a call of a tool that is not offered.
    fn not_offered(&self, name: &str) -> Result<CallToolResponse, ErrorData> {
        if self.offered.options.tools == McpTools::Reference {
            return Ok(reference::no_tool(name).into());
        }
        let names: Vec<&str> = self.offered.offers.iter().map(|offer| &*offer.tool.name).collect();
        Err(ErrorData::invalid_params(format!("there is no tool `{name}`; the tools are {}", names.join(", ")), None))
    }

    /// Returns the caller from the transport, or from the options.
    fn caller(&self, context: &RequestContext<RoleServer>) -> McpCaller {
        #[cfg(feature = "http")]
        let known = super::http::caller(context);
        #[cfg(not(feature = "http"))]
        let known = context.extensions.get::<McpCaller>().cloned();
        known.unwrap_or_else(|| McpCaller::new(self.offered.options.scope.clone()))
    }

    /// Takes one of the user's subscription slots.
    fn place(&self, scope: &Scope) -> Result<Share<User>, ErrorData> {
        let user = (scope.tenant.clone(), scope.user.clone());
        let share = self.offered.options.pools.subscriptions.take(user, subscriptions::SUBSCRIPTIONS_MAX);
        share.ok_or_else(subscriptions::too_many)
    }

    /// Returns the tree of the connection's thread.
    async fn tree(&self, context: &RequestContext<RoleServer>) -> Result<Arc<dyn Backend>> {
        let scope = self.caller(context).scope_of("")?;
        Ok(self.offered.threads.session(&scope).await?.backend())
    }

    /// Returns the tree, and the path in it that a URI names.
    async fn tree_of(&self, uri: &str, context: &RequestContext<RoleServer>) -> Result<(Arc<dyn Backend>, VfsPathBuf), ErrorData> {
        let path = uri::path(uri).ok_or_else(|| resources::foreign(uri))?;
        let tree = self.tree(context).await.map_err(|error| resources::protocol_error(&error, uri))?;
        Ok((tree, path))
    }
}

impl Connection {
    /// Describes the tree to a model and appends the current prompt memory, as much of it as clients show.
    async fn instructions(&self, context: &RequestContext<RoleServer>) -> String {
        let offered = &self.offered;
        let chars_left = INSTRUCTIONS_CHARS_MAX.saturating_sub(offered.instructions.chars().count() + 2);
        match prompts::memory(&offered.threads, &self.caller(context).scope, offered.may_write(), chars_left).await {
            Ok(memory) if !memory.is_empty() => format!("{}\n\n{memory}", offered.instructions),
            Ok(_) => offered.instructions.clone(),
            Err(error) => {
                tracing::warn!(%error, "the prompt memory cannot be read for the instructions");
                offered.instructions.clone()
            }
        }
    }
}

impl ServerHandler for Connection {
    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let mut result = self.negotiate_initialize(&request)?;
        result.instructions = Some(self.instructions(&context).await);
        Ok(result)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let mut info = self.get_info();
        info.instructions = Some(self.instructions(&context).await);
        Ok(DiscoverResult::from_server_info(self.supported_protocol_versions().into_owned(), info))
    }

    fn get_info(&self) -> ServerConfig {
        #[cfg_attr(not(feature = "conformance"), expect(unused_mut, reason = "the fixtures of the suites extend them"))]
        let mut capabilities = ServerCapabilities::builder()
            .enable_prompts()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_skills_with_directory_read()
            .build();
        #[cfg(feature = "conformance")]
        if self.offered.fixtures.is_some() {
            Fixtures::declare(&mut capabilities);
        }
        let implementation = Implementation::new("treehold", env!("CARGO_PKG_VERSION")).with_title("treehold");
        ServerConfig::new(capabilities).with_server_info(implementation).with_instructions(self.offered.instructions.clone())
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListToolsResult, ErrorData> {
        let tools = self.offered.offers.iter().map(|offer| offer.tool.clone());
        #[cfg(feature = "conformance")]
        let tools = tools.chain(self.offered.fixtures.iter().flat_map(|_| Fixtures::tools()));
        let tools = tools.collect();
        Ok(ListToolsResult::with_all_items(tools).with_ttl_ms(TOOLS_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        #[cfg(feature = "conformance")]
        if let Some(fixtures) = &self.offered.fixtures
            && Fixtures::has_tool(&request.name)
        {
            return fixtures.call(&request, &context).await;
        }
        let Some(offer) = self.offer(&request.name) else { return self.not_offered(&request.name) };
        call::answered(&self.offered, offer, &self.caller(&context), request, &context).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        #[cfg_attr(not(feature = "conformance"), expect(unused_mut, reason = "the fixtures of the suites extend them"))]
        let mut list = resources::list(&self.offered.mounts);
        #[cfg(feature = "conformance")]
        list.resources.extend(self.offered.fixtures.iter().flat_map(|_| Fixtures::resources()));
        Ok(list)
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        #[cfg_attr(not(feature = "conformance"), expect(unused_mut, reason = "the fixtures of the suites extend them"))]
        let mut list = resources::templates(&self.offered.mounts);
        #[cfg(feature = "conformance")]
        list.resource_templates.extend(self.offered.fixtures.iter().map(|_| Fixtures::template()));
        Ok(list)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        #[cfg(feature = "conformance")]
        if let Some(read) = self.offered.fixtures.as_ref().and_then(|_| Fixtures::read(&request.uri)) {
            return read.map(Into::into);
        }
        let (tree, path) = self.tree_of(&request.uri, &context).await?;
        let read = resources::read(&*tree, &path, &request.uri).await;
        read.map(|read| answer::ready(&context, read).into()).map_err(|error| resources::protocol_error(&error, &request.uri))
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        let (tree, path) = self.tree_of(&request.uri, &context).await?;
        let listed = resources::directory(&*tree, &path, request.cursor).await;
        listed.map(|listed| answer::ready(&context, listed)).map_err(|error| resources::not_a_directory(&error, &request.uri))
    }

    async fn list_skills(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        let tree = self.tree(&context).await.map_err(|error| resources::protocol_error(&error, ""))?;
        let cursor = request.and_then(|request| request.cursor);
        let list = skills::list(&*tree, &self.offered.mounts, cursor).await;
        list.map(|list| answer::ready(&context, list)).map_err(|error| resources::protocol_error(&error, ""))
    }

    async fn get_skill(&self, request: GetSkillRequestParams, context: RequestContext<RoleServer>) -> Result<GetSkillResult, ErrorData> {
        let (tree, path) = self.tree_of(&request.uri, &context).await?;
        let skill = skills::get(&*tree, &path).await;
        skill.map(|skill| answer::ready(&context, skill)).map_err(|error| resources::not_a_directory(&error, &request.uri))
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(self.subscriptions.accept(requested, self.offered.threads.writes()))
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let uris = subscription.accepted().resource_subscriptions.clone().unwrap_or_default();
        let mark = self.subscriptions.mark(&uris).unwrap_or_else(|| self.offered.threads.writes().now());
        let scope = self.caller(subscription.request_context()).scope;
        let place = self.place(&scope)?;
        let watched = Watched::begin(self.offered.threads.clone(), scope, &uris, place).await;
        subscriptions::listen(watched, mark, subscription).await;
        Ok(())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        #[cfg(feature = "conformance")]
        if self.offered.fixtures.is_some() && Fixtures::owns(&request.uri) {
            return Ok(());
        }
        uri::path(&request.uri).ok_or_else(|| resources::foreign(&request.uri))?;
        let scope = self.caller(&context).scope;
        let uris = std::slice::from_ref(&request.uri);
        let place = self.place(&scope)?;
        let watched = Watched::begin(self.offered.threads.clone(), scope, uris, place).await;
        if self.subscriptions.add(request.uri, watched, context.peer) {
            Ok(())
        } else {
            Err(ErrorData::invalid_params("this connection has reached its limit of subscriptions; end one first", None))
        }
    }

    async fn unsubscribe(&self, request: UnsubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.subscriptions.remove(&request.uri);
        Ok(())
    }

    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListPromptsResult, ErrorData> {
        #[cfg_attr(not(feature = "conformance"), expect(unused_mut, reason = "the fixtures of the suites extend them"))]
        let mut list = prompts::list();
        #[cfg(feature = "conformance")]
        if self.offered.fixtures.is_some() {
            list.prompts.extend(Fixtures::prompts()?);
        }
        Ok(list)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        #[cfg(feature = "conformance")]
        if let Some(fixtures) = &self.offered.fixtures
            && request.name != prompts::MEMORY
        {
            return fixtures.prompt(&request);
        }
        let prompt = prompts::get(&self.offered.threads, &self.caller(&context).scope, self.offered.may_write(), &request.name).await;
        prompt.map(|prompt| answer::ready(&context, prompt).into())
    }

    #[cfg(feature = "conformance")]
    #[expect(deprecated, reason = "the suite of 2025-11-25 asks for it")]
    async fn set_level(&self, _: rmcp::model::SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        match &self.offered.fixtures {
            Some(_) => Ok(()),
            None => Err(ErrorData::method_not_found::<rmcp::model::SetLevelRequestMethod>()),
        }
    }

    // A method that is not declared must be reported as missing; `rmcp` would return an empty list.
    async fn complete(&self, _: CompleteRequestParams, _: RequestContext<RoleServer>) -> Result<CompleteResult, ErrorData> {
        #[cfg(feature = "conformance")]
        if self.offered.fixtures.is_some() {
            return Ok(CompleteResult::default());
        }
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }
}
