//! Connections to the control socket.

use crate::errors::{exception, raised};
use crate::inputs::{Given, Input, Output, output};
use atoll_client::{Call, Class, Client, ClientError, Deploy, Tenant, Value, default_socket};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection to a daemon. Threads that share it wait for each other.
#[pyclass(frozen, module = "atoll._native")]
pub(crate) struct Connection(Mutex<Option<Client>>);

/// Connects to a daemon while other threads run.
pub(crate) fn connected(py: Python<'_>, socket: Option<PathBuf>, tenant: Option<&str>) -> PyResult<Client> {
    let tenant = tenant.map(str::parse::<Tenant>).transpose();
    let tenant = tenant.map_err(|error| exception(py, "InvalidInput", error.to_string()))?;
    let socket = socket.unwrap_or_else(default_socket);
    py.detach(|| Client::connect_as(&socket, tenant)).map_err(|error| raised(py, &error))
}

/// The class that `real_time` says.
fn class(real_time: Option<bool>) -> Option<Class> {
    real_time.map(|real_time| if real_time { Class::RealTime } else { Class::BestEffort })
}

impl Connection {
    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer, while other threads run.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        request: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        match py.detach(|| self.client().as_mut().map(request)) {
            Some(answer) => answer.map_err(|error| raised(py, &error)),
            None => Err(exception(py, "ConnectionFailed", "the connection is closed".into())),
        }
    }
}

#[pymethods]
impl Connection {
    /// Connects to a control socket, by default the user's, as the user's tenant or another one.
    #[new]
    #[pyo3(signature = (socket=None, tenant=None))]
    fn new(py: Python<'_>, socket: Option<PathBuf>, tenant: Option<&str>) -> PyResult<Connection> {
        Ok(Connection(Mutex::new(Some(connected(py, socket, tenant)?))))
    }

    /// The tenant that the connection acts for.
    fn tenant(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |client| Ok(client.tenant().to_string()))
    }

    /// Closes the connection.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.client().take()));
    }

    /// Calls a function.
    #[pyo3(signature = (function, inputs, outputs=None, real_time=None, deadline_us=None, instance=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn invoke(
        &self,
        py: Python<'_>,
        function: &str,
        inputs: Vec<Given<'_>>,
        outputs: Option<Vec<String>>,
        real_time: Option<bool>,
        deadline_us: Option<u64>,
        instance: Option<String>,
    ) -> PyResult<Vec<Output>> {
        let mut call = Call::of(function);
        for input in Input::all(inputs)? {
            call = call.input(&input.name, input.tensor(py));
        }
        for name in outputs.unwrap_or_default() {
            call = call.send(name);
        }
        if let Some(class) = class(real_time) {
            call = call.class(class);
        }
        if let Some(deadline_us) = deadline_us {
            call = call.deadline(Duration::from_micros(deadline_us));
        }
        if let Some(instance) = instance {
            call = call.instance(instance);
        }
        let answer = self.ask(py, |client| client.invoke(call))?;
        let sent = answer.outputs.into_iter().filter_map(|(_, name, value)| match value {
            Value::Tensor(tensor) => Some(output(name, tensor)),
            Value::Object(_) => None,
        });
        Ok(sent.collect())
    }

    /// Deploys a bundle. Returns the function's description as JSON.
    #[pyo3(signature = (bundle, name=None, real_time=None, private=false, device=None))]
    fn deploy(
        &self,
        py: Python<'_>,
        bundle: PathBuf,
        name: Option<String>,
        real_time: Option<bool>,
        private: bool,
        device: Option<String>,
    ) -> PyResult<String> {
        let how = Deploy { name, class: class(real_time), private, device, signature: None };
        let function = self.ask(py, |client| client.deploy(&bundle, &how))?;
        json(py, &function)
    }

    /// The tenant's functions, as JSON.
    fn functions(&self, py: Python<'_>) -> PyResult<String> {
        let functions = self.ask(py, Client::functions)?;
        json(py, &functions)
    }

    /// A function's inputs and outputs, as JSON.
    fn describe(&self, py: Python<'_>, function: &str) -> PyResult<String> {
        let described = self.ask(py, |client| client.describe(function))?;
        json(py, &serde_json::json!({ "inputs": described.inputs, "outputs": described.outputs }))
    }

    /// Removes a function.
    fn remove(&self, py: Python<'_>, function: &str) -> PyResult<()> {
        self.ask(py, |client| client.remove_function(function))
    }
}

fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| exception(py, "InternalError", error.to_string()))
}
