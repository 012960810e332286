//! Trees around trees.

use crate::backend::{PyBackend, tree_of};
use crate::errors::{caught, raised};
use crate::runtime::{attached, call_python, failed};
use crate::values::{Seconds, from_json, invalid};
use async_trait::async_trait;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::fmt;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;
use treehold::layer::{
    Approval, ApprovalRequest, Approver, Audit, AuditRecord, AuditSink, Effect, JsonLinesSink, Layered, Limit, Operations, Permissions,
    Quota, QuotaLimits, ReadOnly, Retry, Rule, SinkFailure, Timeout,
};
use treehold::ops::OpKind;
use treehold::{Backend, Error, ErrorKind, Result};

/// A rule of permissions.
#[pyclass(frozen, name = "Rule", module = "treehold")]
pub(crate) struct PyRule(Rule);

#[derive(FromPyObject)]
enum Names {
    One(String),
    Several(Vec<String>),
}

fn effect(py: Python<'_>, name: &str) -> PyResult<Effect> {
    match name {
        "allow" => Ok(Effect::Allow),
        "deny" => Ok(Effect::Deny),
        "ask" => Ok(Effect::Ask),
        other => Err(invalid(py, format!("no effect is named `{other}`; use `allow`, `deny` or `ask`"))),
    }
}

#[pymethods]
impl PyRule {
    #[new]
    fn new(py: Python<'_>, effect: &str, operations: Names, patterns: Vec<String>) -> PyResult<Self> {
        let names = match operations {
            Names::One(name) => vec![name],
            Names::Several(names) => names,
        };
        let named = |all: Operations, name: &String| Ok(all | Operations::named(name)?);
        let operations = names.iter().try_fold(Operations::default(), named).map_err(|error: Error| raised(py, error))?;
        Rule::new(self::effect(py, effect)?, operations, patterns).map(Self).map_err(|error| raised(py, error))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A function of Python that a layer calls.
struct Function(Arc<Py<PyAny>>);

impl Function {
    fn new(function: Py<PyAny>) -> Self {
        Self(Arc::new(function))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

#[async_trait]
impl Approver for Function {
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval> {
        let function = self.0.clone();
        let paths: Vec<String> = request.paths.iter().map(ToString::to_string).collect();
        let operation = request.operation.name();
        let answer = call_python(move |py| {
            let answer = function.bind(py).call1((operation, paths))?;
            crate::runtime::awaited(answer)?.is_truthy()
        });
        match answer.await {
            Ok(true) => Ok(Approval::Granted),
            Ok(false) => Ok(Approval::Refused { reason: None }),
            Err(error) => Err(failed(error)),
        }
    }
}

impl AuditSink for Function {
    fn record(&self, record: &AuditRecord) -> Result<()> {
        let record = serde_json::to_value(record)
            .map_err(|error| Error::new(ErrorKind::Internal, "a record cannot be written as JSON").with_source(error))?;
        let called = attached(|py| {
            let called = from_json(py, &record).and_then(|record| self.0.bind(py).call1((record,)));
            called.map(drop).map_err(|error| caught(py, error))
        });
        called.unwrap_or_else(|| Err(Error::new(ErrorKind::Unavailable, "the interpreter is shutting down")))
    }
}

fn tree(tree: impl Backend + 'static) -> PyBackend {
    PyBackend::of(Arc::new(tree))
}

/// A tree that refuses changes.
#[pyfunction]
fn read_only(tree: &Bound<'_, PyAny>) -> PyResult<PyBackend> {
    Ok(self::tree(Layered::new(ReadOnly::new(), tree_of(tree)?)))
}

/// A tree with rules about who may do what.
#[pyfunction]
#[pyo3(signature = (tree, rules, *, default = "allow", approver = None))]
fn permissions(
    py: Python<'_>,
    tree: &Bound<'_, PyAny>,
    rules: Vec<PyRef<'_, PyRule>>,
    default: &str,
    approver: Option<Py<PyAny>>,
) -> PyResult<PyBackend> {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.0.clone()).collect();
    let mut layer = Permissions::new(rules, tree_of(tree)?).with_default(effect(py, default)?);
    if let Some(approver) = approver {
        layer = layer.with_approver(Function::new(approver));
    }
    Ok(self::tree(layer))
}

/// A tree with at most so many operations at once.
#[pyfunction]
#[pyo3(signature = (tree, running_max, *, waiting_max = None))]
fn limit(tree: &Bound<'_, PyAny>, running_max: usize, waiting_max: Option<usize>) -> PyResult<PyBackend> {
    let mut layer = Limit::new(running_max);
    if let Some(waiting_max) = waiting_max {
        layer = layer.with_waiting_max(waiting_max);
    }
    Ok(self::tree(Layered::new(layer, tree_of(tree)?)))
}

/// A tree that refuses changes over a size.
#[pyfunction]
#[pyo3(signature = (tree, *, bytes_max = None, files_max = None, file_bytes_max = None))]
fn quota(tree: &Bound<'_, PyAny>, bytes_max: Option<u64>, files_max: Option<u64>, file_bytes_max: Option<u64>) -> PyResult<PyBackend> {
    let mut limits = QuotaLimits::new();
    (limits.bytes_max, limits.files_max, limits.file_bytes_max) = (bytes_max, files_max, file_bytes_max);
    Ok(self::tree(Quota::new(limits, tree_of(tree)?)))
}

/// A tree whose operations end after a time.
#[pyfunction]
#[pyo3(signature = (tree, seconds, *, operations = None))]
fn timeout(py: Python<'_>, tree: &Bound<'_, PyAny>, seconds: Seconds, operations: Option<&Bound<'_, PyMapping>>) -> PyResult<PyBackend> {
    let mut layer = Timeout::new(seconds.0);
    let items = operations.map(|operations| operations.items()).transpose()?;
    for item in items.iter().flatten() {
        let (name, seconds): (String, Seconds) = item.extract()?;
        let kind = OpKind::ALL.into_iter().find(|kind| kind.name() == name);
        layer = layer.with_operation(kind.ok_or_else(|| invalid(py, format!("no operation is named `{name}`")))?, seconds.0);
    }
    Ok(self::tree(Layered::new(layer, tree_of(tree)?)))
}

/// A tree that repeats what failed for a moment.
#[pyfunction]
#[pyo3(signature = (tree, attempts_max = 3))]
fn retry(tree: &Bound<'_, PyAny>, attempts_max: usize) -> PyResult<PyBackend> {
    Ok(self::tree(Layered::new(Retry::new(attempts_max), tree_of(tree)?)))
}

/// A tree that records every operation.
#[pyfunction]
#[pyo3(signature = (tree, sink, *, refuse_on_failure = false))]
fn audit(py: Python<'_>, tree: &Bound<'_, PyAny>, sink: Py<PyAny>, refuse_on_failure: bool) -> PyResult<PyBackend> {
    let layer = if sink.bind(py).is_callable() {
        Audit::new(Function::new(sink))
    } else {
        let path: PathBuf = sink.extract(py)?;
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Audit::new(JsonLinesSink::new(file))
    };
    let layer = layer.with_sink_failure(if refuse_on_failure { SinkFailure::Refuse } else { SinkFailure::Continue });
    Ok(self::tree(Layered::new(layer, tree_of(tree)?)))
}

/// Adds the functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRule>()?;
    module.add_function(wrap_pyfunction!(read_only, module)?)?;
    module.add_function(wrap_pyfunction!(permissions, module)?)?;
    module.add_function(wrap_pyfunction!(limit, module)?)?;
    module.add_function(wrap_pyfunction!(quota, module)?)?;
    module.add_function(wrap_pyfunction!(timeout, module)?)?;
    module.add_function(wrap_pyfunction!(retry, module)?)?;
    module.add_function(wrap_pyfunction!(audit, module)?)
}
