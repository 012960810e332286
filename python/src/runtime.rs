//! The runtime behind Python calls: where futures run, and how Python waits for them.
//!
//! A synchronous call polls its future on the calling thread, without the interpreter's lock, and looks for signals, so that Ctrl-C ends
//! it. An asynchronous call is a coroutine ([`Call`]): it polls the future once in place, and moves it to the runtime if it has to wait.
//! One runtime serves the whole process. A child of `os.fork` gets one of its own, because the threads of its parent's are gone.

use crate::errors::{caught, raised};
use crate::work::ToPython;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use treehold::{Error, ErrorKind, Result};

/// How often a blocked call looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// The runtime, and the process that it belongs to. It lives as long as the process.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// Whether the interpreter is about to end. Threads of the runtime hold the lock shared while they run Python code.
static IS_LEAVING: RwLock<bool> = RwLock::new(false);

/// What a call fails with that would need a thread to run Python code.
const LEFT: &str = "the interpreter is shutting down";

/// How long the end of the interpreter waits for threads that run Python code.
const LEAVE: Duration = Duration::from_secs(2);

/// Runs Python code on a thread that Python did not start; `None` if the interpreter is about to end.
///
/// An interpreter that ends unwinds the threads that wait for its lock, which aborts the process if Rust code called them. So no thread of
/// ours waits for the lock once [`leave`] has run.
pub(crate) fn attached<T>(call: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let is_leaving = IS_LEAVING.read_recursive();
    if *is_leaving { None } else { Python::try_attach(call) }
}

/// Keeps the threads of the runtime from running Python code from now on, and waits for those that do. Python calls it at its exit.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) {
    // A child of `os.fork` may have inherited a lock that nobody will release, so this does not wait for ever.
    py.detach(|| {
        if let Some(mut is_leaving) = IS_LEAVING.try_write_for(LEAVE) {
            *is_leaving = true;
        }
    });
}

/// Returns the runtime of this process.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    let process = std::process::id();
    let mut runtime = RUNTIME.lock();
    if let Some((owner, runtime)) = *runtime
        && owner == process
    {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread().enable_all().thread_name("treehold").build();
    let made = made.map_err(|error| PyRuntimeError::new_err(format!("the threads of treehold cannot be started: {error}")))?;
    let made: &'static Runtime = Box::leak(Box::new(made));
    *runtime = Some((process, made));
    Ok(made)
}

/// Something of the library that a Python object holds, and the process that opened it.
///
/// It is dropped without the interpreter's lock, because a store may wait for its threads. In a child of `os.fork` it is neither used nor
/// dropped: its threads do not exist there, and its files and connections are still those of the parent.
pub(crate) struct Held<T: Send> {
    value: Option<T>,
    process: u32,
}

impl<T: Send> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// Returns the value, unless another process opened it.
    pub(crate) fn get(&self) -> Option<&T> {
        if self.process == std::process::id() { self.value.as_ref() } else { None }
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process == std::process::id() {
            end(value);
        } else {
            std::mem::forget(value);
        }
    }
}

/// Drops a value of the library within the runtime, without the interpreter's lock.
pub(crate) fn end<T: Send>(value: T) {
    let mut value = Some(value);
    let mut drop_inside = || {
        let inside = runtime().map(Runtime::enter);
        drop(value.take());
        drop(inside);
    };
    // An interpreter that is going away has no lock to give back.
    if Python::try_attach(|py| py.detach(&mut drop_inside)).is_none() {
        drop_inside();
    }
}

/// Runs a future to its end on the calling thread, without the interpreter's lock.
///
/// A signal whose handler raises an exception, such as Ctrl-C, drops the future.
pub(crate) fn block<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let outcome = py.detach(|| {
        let _inside = runtime.enter();
        wait(future)
    });
    outcome?.map_err(|error| raised(py, error))
}

/// Polls a future until it is ready. Unlike a runtime's `block_on` it can be nested: Python code that a future calls may block as well.
fn wait<T>(future: impl Future<Output = T>) -> PyResult<T> {
    let signal = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(signal.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        while !signal.is_woken.swap(false, Ordering::Acquire) {
            thread::park_timeout(SIGNALS);
            if let Some(checked) = Python::try_attach(|py| py.check_signals()) {
                checked?;
            }
        }
    }
}

/// Wakes a thread that polls a future.
struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A call on its way: a coroutine, so that it can be awaited, gathered, or made a task.
///
/// Nothing happens before it is awaited. A future that is ready at once, such as a read of memory, needs no other thread. Cancelling the
/// coroutine drops the work.
#[pyclass(frozen, module = "treehold")]
pub(crate) struct Call {
    state: Mutex<State>,
}

enum State {
    New(NewCall),
    Running {
        task: AbortHandle,
        waiting: Py<PyAny>,
    },
    /// Ended, or being advanced.
    Ended,
}

type NewCall = BoxFuture<'static, Result<Value>>;

/// A result, and how to convert it.
type Value = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

impl Call {
    pub(crate) fn new<T: ToPython>(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let future = async move {
            let value = future.await?;
            let convert: Value = Box::new(move |py| value.to_python(py));
            Ok(convert)
        };
        Self { state: Mutex::new(State::New(Box::pin(future))) }
    }

    /// Begins the work, or goes on waiting for it. Returns what the event loop has to wait for.
    fn advance(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.taken() {
            State::New(call) => self.begin(py, call),
            State::Running { task, waiting } => {
                let next = waiting.bind(py).call_method0("__next__").map(Bound::unbind);
                if next.is_ok() {
                    *self.state.lock() = State::Running { task, waiting };
                }
                next
            }
            State::Ended => Err(PyRuntimeError::new_err("the call was awaited already; make it again")),
        }
    }

    fn taken(&self) -> State {
        std::mem::replace(&mut *self.state.lock(), State::Ended)
    }

    fn begin(&self, py: Python<'_>, mut call: NewCall) -> PyResult<Py<PyAny>> {
        let runtime = runtime()?;
        let event_loop = running_loop(py)?;
        let polled = py.detach(|| {
            let _inside = runtime.enter();
            call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        });
        if let Poll::Ready(result) = polled {
            return Err(ended(converted(py, result)?));
        }
        if *IS_LEAVING.read_recursive() {
            end(call);
            return Err(PyRuntimeError::new_err(LEFT));
        }
        let future = event_loop.call_method0("create_future")?;
        let waiting = future.call_method0("__await__")?;
        // What the iterator yields is the future itself, marked as waited for.
        let first = waiting.call_method0("__next__")?.unbind();
        let (target, event_loop) = (future.unbind(), event_loop.unbind());
        let task = runtime.spawn(async move {
            let result = call.await;
            // An interpreter that is going away has nobody to tell.
            let _ = attached(|py| deliver(py, &event_loop, target, result));
        });
        *self.state.lock() = State::Running { task: task.abort_handle(), waiting: waiting.unbind() };
        Ok(first)
    }

    /// Drops the work. Returns the iterator that was waited for.
    fn stop(&self) -> Option<Py<PyAny>> {
        match self.taken() {
            State::Running { task, waiting } => {
                task.abort();
                Some(waiting)
            }
            State::New(call) => {
                end(call);
                None
            }
            State::Ended => None,
        }
    }
}

#[pymethods]
impl Call {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.advance(py)
    }

    fn send(&self, py: Python<'_>, _value: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.advance(py)
    }

    /// Ends the wait with an exception. The arguments are those of a generator's `throw`.
    #[pyo3(signature = (*arguments))]
    fn throw<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(waiting) = self.stop() {
            // The iterator of a future raises what it is given.
            return waiting.bind(arguments.py()).call_method1("throw", arguments);
        }
        let exception = arguments.get_item(arguments.len().saturating_sub(1).min(1))?;
        let exception = if exception.is_callable() { exception.call0()? } else { exception };
        Err(PyErr::from_value(exception))
    }

    fn close(&self) {
        self.stop();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ended(value: Py<PyAny>) -> PyErr {
    PyStopIteration::new_err((value,))
}

fn converted(py: Python<'_>, result: Result<Value>) -> PyResult<Py<PyAny>> {
    match result {
        Ok(convert) => convert(py),
        Err(error) => Err(raised(py, error)),
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.import(py, "asyncio", "get_running_loop")?.call0()
}

/// Hands a result to the event loop, in its thread.
fn deliver(py: Python<'_>, event_loop: &Py<PyAny>, target: Py<PyAny>, result: Result<Value>) {
    static FINISH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (is_ok, value) = match converted(py, result) {
        Ok(value) => (true, value),
        Err(error) => (false, error.into_value(py).into_any()),
    };
    let finish = FINISH.get_or_try_init(py, || pyo3::wrap_pyfunction!(finish, py).map(|finish| finish.into_any().unbind()));
    let settled = finish.and_then(|finish| {
        let event_loop = event_loop.bind(py);
        event_loop.call_method1("call_soon_threadsafe", (finish, target, is_ok, value))
    });
    // The loop may have been closed meanwhile. Then nobody waits.
    drop(settled);
}

/// Sets the result of a future of an event loop, unless it was cancelled.
#[pyfunction]
fn finish(target: &Bound<'_, PyAny>, is_ok: bool, value: Py<PyAny>) -> PyResult<()> {
    if target.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    target.call_method1(if is_ok { "set_result" } else { "set_exception" }, (value,)).map(drop)
}

/// Runs Python code on a thread that may block, with the interpreter's lock, for a caller in Rust.
pub(crate) async fn call_python<T: Send + 'static>(call: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static) -> PyResult<T> {
    let called = tokio::task::spawn_blocking(move || attached(call).unwrap_or_else(|| Err(PyRuntimeError::new_err(LEFT))));
    called.await.unwrap_or_else(|error| Err(PyRuntimeError::new_err(format!("a call of Python code ended early: {error}"))))
}

/// Runs Python code on a thread that may block, and waits without a thread for the awaitable that it may return. Dropping the call cancels
/// the awaitable.
pub(crate) async fn call_coroutine<T: Send + 'static>(
    call: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static,
    convert: impl FnOnce(Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    static START: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (done, is_done) = oneshot::channel();
    let begun = call_python(move |py| {
        let value = call(py)?;
        if !value.bind(py).hasattr("__await__")? {
            return Ok(Begun::Ready(value));
        }
        let start = START.import(py, "treehold._bridge", "start")?;
        let future = start.call1((value, Done(Mutex::new(Some(done)))))?;
        Ok(Begun::Waiting(Cancelling(Some(future.unbind()))))
    });
    let value = match begun.await? {
        Begun::Ready(value) => value,
        Begun::Waiting(mut future) => {
            let value = is_done.await.map_err(|_| PyRuntimeError::new_err(LEFT));
            future.0 = None;
            value??
        }
    };
    call_python(move |py| convert(value.into_bound(py))).await
}

/// What a call of Python code returned.
enum Begun {
    Ready(Py<PyAny>),
    Waiting(Cancelling),
}

/// A future of Python, which is cancelled unless its end was seen.
struct Cancelling(Option<Py<PyAny>>);

impl Drop for Cancelling {
    fn drop(&mut self) {
        let Some(future) = self.0.take() else { return };
        // Waiting for the interpreter's lock may block, so it happens on a thread that may.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || attached(|py| future.call_method0(py, "cancel").map(drop)));
        }
    }
}

/// What Python calls with a future that ended.
#[pyclass(frozen)]
struct Done(Mutex<Option<oneshot::Sender<PyResult<Py<PyAny>>>>>);

#[pymethods]
impl Done {
    fn __call__(&self, future: &Bound<'_, PyAny>) {
        if let Some(done) = self.0.lock().take() {
            // The receiver is gone if the call was dropped.
            drop(done.send(future.call_method0("result").map(Bound::unbind)));
        }
    }
}

/// Returns an exception of Python code that [`call_python`] ran as an error of the library.
pub(crate) fn failed(exception: PyErr) -> Error {
    attached(|py| caught(py, exception)).unwrap_or_else(|| Error::new(ErrorKind::Unavailable, LEFT).with_unknown_effect())
}

/// Runs an awaitable to its end, or passes on any other value.
pub(crate) fn awaited<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static RUN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if !value.hasattr("__await__")? {
        return Ok(value);
    }
    let py = value.py();
    RUN.import(py, "treehold._bridge", "run")?.call1((value,))
}
