//! Conversions between Python values and those of the library.

use crate::errors::raised;
use bytes::Bytes;
use jiff::Timestamp;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};
use std::time::Duration;
use treehold::store::{Namespace, Partition};
use treehold::{Error, VfsPathBuf};

/// How deeply JSON values may be nested.
const DEPTH_MAX: usize = 128;

/// A path of the tree: a `str`, or a path object.
pub(crate) struct Path(pub(crate) VfsPathBuf);

impl<'py> FromPyObject<'_, 'py> for Path {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let text = match value.cast::<PyString>() {
            Ok(text) => text.to_owned(),
            Err(_) => value.call_method0("__fspath__")?.cast_into::<PyString>()?,
        };
        let path = VfsPathBuf::parse(text.extract::<PyBackedStr>()?.as_ref() as &str);
        path.map(Self).map_err(|error| raised(py, error.into()))
    }
}

/// Returns the text of a `str` or a path object.
pub(crate) fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => value.call_method0("__fspath__")?.extract(),
    }
}

/// A namespace: a tuple of components, a list of them, or its text with slashes. An empty second component says that the first alone is the
/// partition, as `//` does.
pub(crate) struct Space(pub(crate) Namespace);

impl<'py> FromPyObject<'_, 'py> for Space {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let namespace = match value.cast::<PyString>() {
            Ok(text) => Namespace::parse(&text.extract::<PyBackedStr>()?),
            Err(_) => {
                let parts = value.extract::<Vec<PyBackedStr>>()?;
                match &parts.iter().map(|part| part as &str).collect::<Vec<_>>()[..] {
                    [tenant, "", name @ ..] if !name.is_empty() => Partition::new([tenant]).and_then(|partition| partition.namespace(name)),
                    parts => Namespace::new(parts),
                }
            }
        };
        namespace.map(Self).map_err(|error| raised(py, error))
    }
}

/// Returns the components of a namespace as a tuple, with an empty second one where the first alone is the partition of a longer one.
pub(crate) fn components<'py>(py: Python<'py>, namespace: &Namespace) -> PyResult<Bound<'py, PyTuple>> {
    let mut components: Vec<_> = namespace.components().collect();
    if components.len() > 1 && namespace.partition().components().count() == 1 {
        components.insert(1, "".into());
    }
    PyTuple::new(py, components)
}

/// Content: `bytes` without a copy, `str` as UTF-8, or any other object with a buffer.
pub(crate) struct Content(pub(crate) Bytes);

impl<'py> FromPyObject<'_, 'py> for Content {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(Self(Bytes::from_owner(PyBackedBytes::from(bytes.to_owned()))));
        }
        if let Ok(text) = value.cast::<PyString>() {
            let text: PyBackedStr = text.extract()?;
            return Ok(Self(Bytes::from_owner(Text(text))));
        }
        // Numbers and lists of numbers are no content, though `bytes` accepts them.
        let py = value.py();
        let view = py.import("builtins")?.getattr("memoryview")?.call1((value,)).map_err(|_| {
            PyTypeError::new_err(format!("content is `str`, `bytes` or an object with a buffer, not `{}`", value.get_type()))
        })?;
        let bytes = view.call_method0("tobytes")?.cast_into::<PyBytes>()?;
        Ok(Self(Bytes::from_owner(PyBackedBytes::from(bytes))))
    }
}

/// A text of Python as bytes.
struct Text(PyBackedStr);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Seconds as a number or a `timedelta`.
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = match value.getattr("total_seconds") {
            Ok(total) => total.call0()?.extract()?,
            Err(_) => value.extract()?,
        };
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| {
            let fault = match seconds {
                _ if seconds.is_nan() => "is no duration in seconds".to_owned(),
                _ if seconds < 0.0 => "is too short: the shortest duration is 0 seconds".to_owned(),
                _ => format!("is too long: the longest duration is {} seconds", Duration::MAX.as_secs()),
            };
            PyValueError::new_err(format!("{seconds} {fault}"))
        })
    }
}

/// Returns a time as a `datetime` in UTC.
pub(crate) fn datetime(py: Python<'_>, time: Timestamp) -> PyResult<Py<PyAny>> {
    static EPOCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let epoch = EPOCH.get_or_try_init(py, || {
        let module = py.import("datetime")?;
        let utc = module.getattr("timezone")?.getattr("utc")?;
        let arguments = (1970, 1, 1, 0, 0, 0, 0, utc);
        module.getattr("datetime")?.call1(arguments).map(Bound::unbind)
    })?;
    let delta = DELTA.import(py, "datetime", "timedelta")?.call1((0, 0, time.as_microsecond()))?;
    epoch.bind(py).add(delta).map(Bound::unbind)
}

/// Reads a time from a `datetime` with a time zone, or a text in RFC 3339.
pub(crate) fn timestamp(value: &Bound<'_, PyAny>) -> PyResult<Timestamp> {
    let text: String = match value.getattr("isoformat") {
        Ok(format) => format.call0()?.extract()?,
        Err(_) => value.extract()?,
    };
    text.parse().map_err(|_| PyValueError::new_err(format!("`{text}` is no time with a time zone; use a `datetime` in UTC")))
}

/// Converts JSON to Python.
pub(crate) fn from_json<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any(),
            (None, Some(number)) => number.into_pyobject(py)?.into_any(),
            (None, None) => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            items.iter().try_for_each(|item| list.append(from_json(py, item)?))?;
            list.into_any()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            fields.iter().try_for_each(|(name, field)| dict.set_item(name, from_json(py, field)?))?;
            dict.into_any()
        }
    })
}

/// Converts Python to JSON.
///
/// # Errors
/// `TypeError` for a value that JSON lacks, `ValueError` for one that is nested too deeply or is no finite number.
pub(crate) fn to_json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    json_at(value, 0)
}

fn json_at(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEPTH_MAX {
        return Err(PyValueError::new_err(format!("the value is nested over {DEPTH_MAX} levels deep")));
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        if let Ok(number) = value.extract::<i64>() {
            return Ok(number.into());
        }
        let number = value.extract::<u64>();
        return number.map(Value::from).map_err(|_| PyOverflowError::new_err(format!("{value} has over 64 bits")));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        return Number::from_f64(number).map(Value::Number).ok_or_else(|| PyValueError::new_err(format!("{number} is no number of JSON")));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut fields = Map::new();
        for (name, field) in dict {
            let name = name.cast_into::<PyString>().map_err(|_| PyTypeError::new_err("the keys of JSON objects are texts"))?;
            fields.insert(name.extract()?, json_at(&field, depth + 1)?);
        }
        return Ok(Value::Object(fields));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        return value.try_iter()?.map(|item| json_at(&item?, depth + 1)).collect::<PyResult<_>>().map(Value::Array);
    }
    Err(PyTypeError::new_err(format!("`{}` is no value of JSON", value.get_type())))
}

/// Makes an `invalid_argument` error.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raised(py, Error::invalid_argument(message))
}
