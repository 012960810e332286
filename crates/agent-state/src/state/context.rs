//! What a call carries besides the state: who calls, and attributes for middlewares and tools.

use super::AgentState;
use crate::slot::StateSlot;
use parking_lot::{Mutex, MutexGuard};
use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};

/// An attribute. Clones share the value.
pub type Attribute = Arc<dyn Any + Send + Sync>;

/// The state of a running call, for the parts of the call that work at the same time. Clones share the state.
#[derive(Debug, Clone)]
pub struct CallState(Arc<Mutex<AgentState>>);

impl CallState {
    /// Shares a state.
    pub fn new(state: AgentState) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// Locks the state. Release the guard before the next `await`.
    pub fn lock(&self) -> MutexGuard<'_, AgentState> {
        self.0.lock()
    }

    /// Returns a copy of the state. Messages are shared.
    pub fn snapshot(&self) -> AgentState {
        self.lock().clone()
    }
}

/// The context of one call: the user and the session, the call's own state, and attributes by name and by type.
///
/// Nothing of it is stored. It belongs to its call: there is no current context, session or state that could be found without it. A
/// clone has the same attributes and shares the state; later changes of the attributes do not reach the original.
///
/// ```
/// use treehold_agent_state::{RuntimeContext, StateSlot};
///
/// #[derive(Debug, PartialEq)]
/// struct Budget(u32);
///
/// let mut context = RuntimeContext::new(StateSlot::new(Some("ada"), "s1")?);
/// context.put("locale", Some("en".to_owned()));
/// context.put_type(Some(Budget(5)));
/// context.put_named("reserve", Some(Budget(9)));
/// assert_eq!(context.get::<String>("locale").map(String::as_str), Some("en"));
/// assert_eq!((context.get_type(), context.get_named("reserve")), (Some(&Budget(5)), Some(&Budget(9))));
/// context.put_type::<Budget>(None);
/// assert_eq!(context.get_type::<Budget>(), None);
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Clone)]
pub struct RuntimeContext {
    slot: StateSlot,
    state: Option<CallState>,
    extra: BTreeMap<String, Attribute>,
    typed: HashMap<(TypeId, Option<String>), Attribute>,
}

impl RuntimeContext {
    /// Creates the context of a call, without attributes.
    pub fn new(slot: StateSlot) -> Self {
        Self { slot, state: None, extra: BTreeMap::new(), typed: HashMap::new() }
    }

    /// Returns the user and the session.
    pub fn slot(&self) -> &StateSlot {
        &self.slot
    }

    /// Returns the user; `None` if the call is anonymous.
    pub fn user(&self) -> Option<&str> {
        self.slot.user()
    }

    /// Returns the session.
    pub fn session(&self) -> &str {
        self.slot.session()
    }

    /// Sets the call's own state.
    pub fn set_state(&mut self, state: Option<CallState>) {
        self.state = state;
    }

    /// Returns the call's own state.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) outside of a call. The state of another call never takes its place.
    pub fn resolve(&self) -> Result<&CallState> {
        let message = || format!("no call of {} is running in this context; pass the context of the call", self.slot);
        self.state.as_ref().ok_or_else(|| Error::invalid_argument(message()))
    }

    /// Returns the attribute with a name, if it has the type.
    pub fn get<T: Any>(&self, name: &str) -> Option<&T> {
        self.extra.get(name)?.downcast_ref()
    }

    /// Sets the attribute with a name. `None` removes it.
    pub fn put<T: Any + Send + Sync>(&mut self, name: impl Into<String>, value: Option<T>) {
        match value {
            Some(value) => drop(self.extra.insert(name.into(), Arc::new(value))),
            None => drop(self.extra.remove(&name.into())),
        }
    }

    /// Returns the attribute of a type.
    pub fn get_type<T: Any>(&self) -> Option<&T> {
        self.typed(None)
    }

    /// Sets the attribute of a type. `None` removes it.
    pub fn put_type<T: Any + Send + Sync>(&mut self, value: Option<T>) {
        self.put_typed(None, value);
    }

    /// Returns the attribute of a type with a name: one that [`RuntimeContext::put_named`] set, otherwise one that
    /// [`RuntimeContext::put`] set, if it has the type.
    pub fn get_named<T: Any>(&self, name: &str) -> Option<&T> {
        self.typed(Some(name)).or_else(|| self.get(name))
    }

    /// Sets the attribute of a type with a name. `None` removes it. Attributes of other types with this name stay.
    pub fn put_named<T: Any + Send + Sync>(&mut self, name: impl Into<String>, value: Option<T>) {
        self.put_typed(Some(name.into()), value);
    }

    /// Returns the attributes by name.
    pub fn extra(&self) -> &BTreeMap<String, Attribute> {
        &self.extra
    }

    /// Returns the attributes by name for changes.
    pub fn extra_mut(&mut self) -> &mut BTreeMap<String, Attribute> {
        &mut self.extra
    }

    fn typed<T: Any>(&self, name: Option<&str>) -> Option<&T> {
        self.typed.get(&(TypeId::of::<T>(), name.map(str::to_owned)))?.downcast_ref()
    }

    fn put_typed<T: Any + Send + Sync>(&mut self, name: Option<String>, value: Option<T>) {
        let key = (TypeId::of::<T>(), name);
        match value {
            Some(value) => drop(self.typed.insert(key, Arc::new(value))),
            None => drop(self.typed.remove(&key)),
        }
    }
}

/// Shows whose context it is and the names of its attributes. Values may be secret.
impl fmt::Debug for RuntimeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.extra.keys().collect();
        f.debug_struct("RuntimeContext")
            .field("slot", &self.slot)
            .field("extra", &names)
            .field("typed", &self.typed.len())
            .finish_non_exhaustive()
    }
}
