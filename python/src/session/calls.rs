//! Tool calls, and the schemas of tools.

use super::PySession;
use crate::errors::raised;
use crate::values::{from_json, invalid, to_json};
use crate::work::{Work, class, operations};
use pyo3::prelude::*;
use treehold::Result;
use treehold::layer::Allowance;
use treehold::session::CallNotes;
use treehold::tools::consent;
use treehold::tools::{ToolCall, ToolFormat, ToolOutput, ToolSet};
use treehold::workspace::Workspace;

/// Returns the schemas of the built-in tools.
#[pyfunction]
#[pyo3(signature = (format = "openai", *, set = "default"))]
pub(super) fn tools<'py>(py: Python<'py>, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
    schemas(py, &Workspace::builder().build(), format, set)
}

/// Returns the schemas of a workspace's tools.
pub(crate) fn schemas<'py>(py: Python<'py>, workspace: &Workspace, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
    let format = match format {
        "openai" => ToolFormat::OpenAi,
        "anthropic" => ToolFormat::Anthropic,
        "mcp" => ToolFormat::Mcp,
        other => return Err(invalid(py, format!("no form of tools is named `{other}`; use `openai`, `anthropic` or `mcp`"))),
    };
    from_json(py, &workspace.tools().export(tool_set(py, set)?, format))
}

/// The answer to a tool call.
#[pyclass(frozen, name = "ToolResult", module = "treehold")]
pub(crate) struct PyToolResult(ToolOutput);

class!(PyToolResult);

#[pymethods]
impl PyToolResult {
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    #[getter]
    fn is_error(&self) -> bool {
        self.0.is_error
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.data.as_ref().map(|data| from_json(py, data)).transpose()
    }

    /// The error of the call.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.error.as_ref().map(|error| raised(py, error.into()).into_value(py).into_any())
    }

    /// Why the changes of the call to its thread are not saved.
    #[getter]
    fn unsaved(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.unsaved.as_ref().map(|error| raised(py, error.into()).into_value(py).into_any())
    }

    #[getter]
    fn code(&self) -> Option<&str> {
        self.0.error.as_ref().map(|error| error.code.as_str())
    }

    fn __repr__(&self) -> String {
        format!("ToolResult(is_error={}, {:?})", self.0.is_error, self.0.text)
    }
}

operations! { PySession {
    #[pyo3(signature = (tool, arguments = None, *, set = "default", call_id = None, actor = None, consented = false))]
    fn call, acall(
        this, py, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str, call_id: Option<String>, actor: Option<String>,
        consented: bool
    ) {
        this.call_work(py, tool, arguments, set, call_id, actor, consented)
    }

    #[pyo3(signature = (tool, arguments = None, *, set = "default"))]
    fn question, aquestion(this, py, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) {
        this.question_work(py, tool, arguments, set)
    }
} }

impl PySession {
    fn parsed(&self, py: Python<'_>, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) -> PyResult<Result<ToolCall>> {
        let arguments = arguments.map_or_else(|| Ok(serde_json::json!({})), to_json)?;
        Ok(self.workspace(py)?.tools().decode(tool_set(py, set)?, tool, arguments))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn call_work(
        &self,
        py: Python<'_>,
        tool: &str,
        arguments: Option<&Bound<'_, PyAny>>,
        set: &str,
        call_id: Option<String>,
        actor: Option<String>,
        consented: bool,
    ) -> PyResult<Work<PyToolResult>> {
        let session = self.session(py)?;
        let call = self.parsed(py, tool, arguments, set)?;
        let mut notes = CallNotes::new();
        (notes.tool_call_id, notes.actor) = (call_id, actor);
        Ok(Work::new(async move {
            Ok(PyToolResult(match call {
                Ok(call) => {
                    let allowed = if consented { consent::asked(&*session.backend(), &call, session.scope()).await? } else { None };
                    let allowance = Allowance::new(allowed.map(|(_, protected)| protected).unwrap_or_default());
                    allowance.during(session.call_with(call, notes)).await
                }
                Err(error) => ToolOutput::from_error(&error),
            }))
        }))
    }

    fn question_work(&self, py: Python<'_>, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) -> PyResult<Work<Option<String>>> {
        let session = self.session(py)?;
        let call = self.parsed(py, tool, arguments, set)?;
        Ok(Work::new(async move {
            // A call that is malformed changes nothing.
            let Ok(call) = call else { return Ok(None) };
            let asked = consent::asked(&*session.backend(), &call, session.scope()).await?;
            Ok(asked.map(|(question, _)| question.text()))
        }))
    }
}

fn tool_set(py: Python<'_>, name: &str) -> PyResult<ToolSet> {
    let names = || ToolSet::ALL.map(|set| format!("`{}`", set.name())).join(", ");
    let set = ToolSet::ALL.into_iter().find(|set| set.name().replace('-', "_") == name.replace('-', "_"));
    set.ok_or_else(|| invalid(py, format!("no set of tools is named `{name}`; use one of {}", names())))
}
