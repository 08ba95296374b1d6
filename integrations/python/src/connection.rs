//! Connections to the control socket.

use crate::calls::{Answered, Reference, Stage, Terms, answered, call, class, digest, graph_call, price};
use crate::elements::Elements;
use crate::errors::{exception, invalid, raised};
use crate::exclusive::Exclusive;
use crate::inputs::{Given, Input};
use atoll_client::{Client, ClientError, Deploy, Interrupter, Tenant, default_socket};
use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A connection to a daemon. It carries one request at a time; other threads wait for their turn.
#[pyclass(frozen, module = "atoll._native")]
pub(crate) struct Connection {
    client: Exclusive<Option<Client>>,
    interrupter: Interrupter,
    /// Whether `interrupt` was called, or `close` by a signal handler during a request.
    is_interrupted: AtomicBool,
    /// The exception that a signal handler raised while a request waited.
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// Interval at which signal handlers run while a request waits.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Connects to a daemon. Releases the GIL meanwhile.
pub(crate) fn connected(py: Python<'_>, socket: Option<PathBuf>, tenant: Option<&str>) -> PyResult<Client> {
    let tenant = tenant.map(str::parse::<Tenant>).transpose();
    let tenant = tenant.map_err(|error| exception(py, "InvalidInput", error.to_string()))?;
    let socket = socket.unwrap_or_else(default_socket);
    py.detach(|| Client::connect_as(&socket, tenant)).map_err(|error| raised(py, &error))
}

impl Connection {
    /// Sends a request and waits for its answer without holding the GIL. Raises an exception if this
    /// thread waits for another answer, so that this is a signal handler.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        request: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        let asked = py.detach(|| {
            let mut client = self.client.lock()?;
            let answer = client.as_mut().map(request);
            if self.is_interrupted.load(Ordering::Acquire) {
                client.take();
            }
            Some(answer)
        });
        match asked {
            Some(Some(answer)) => answer.map_err(|error| self.failure(py, &error)),
            Some(None) => Err(exception(py, "ConnectionFailed", "the connection is closed".into())),
            None => {
                let message = "the client is in use by this thread; a signal handler can only close or interrupt it";
                Err(invalid(py, message))
            }
        }
    }

    /// The exception for a request that failed.
    fn failure(&self, py: Python<'_>, error: &ClientError) -> PyErr {
        let interrupted =
            |cause: &str| exception(py, "ConnectionFailed", format!("the request was interrupted: {cause}"));
        match error {
            ClientError::Interrupted => {
                let of_handler = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
                of_handler.unwrap_or_else(|| interrupted("the Python interpreter is shutting down"))
            }
            ClientError::Closed | ClientError::Wire(_) if self.is_interrupted.load(Ordering::Acquire) => {
                interrupted("the client was closed or interrupted")
            }
            _ => raised(py, error),
        }
    }

    fn shut_down(&self) {
        self.is_interrupted.store(true, Ordering::Release);
        self.interrupter.interrupt();
    }

    /// Sends a request and returns its report as JSON.
    fn report<T: Send + serde::Serialize>(
        &self,
        py: Python<'_>,
        request: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send,
    ) -> PyResult<String> {
        json(py, &self.ask(py, request)?)
    }
}

#[pymethods]
impl Connection {
    /// Connects to a control socket, by default the user's, as the user's tenant or another one.
    #[new]
    #[pyo3(signature = (socket=None, tenant=None))]
    fn new(py: Python<'_>, socket: Option<PathBuf>, tenant: Option<&str>) -> PyResult<Connection> {
        let mut client = connected(py, socket, tenant)?;
        let interrupter = client.interrupter().map_err(|error| raised(py, &error))?;
        let found = Arc::<Mutex<Option<PyErr>>>::default();
        client.watch(SIGNALS_EVERY, waits_on(found.clone())).map_err(|error| raised(py, &error))?;
        let client = Exclusive::new(Some(client));
        Ok(Connection { client, interrupter, is_interrupted: AtomicBool::new(false), raised: found })
    }

    /// The tenant that the connection acts for.
    fn tenant(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |client| Ok(client.tenant().to_string()))
    }

    /// Closes the connection once the running request of another thread has ended. In a signal
    /// handler during a request of this thread: cancels the request, which then closes the connection.
    fn close(&self, py: Python<'_>) {
        py.detach(|| match self.client.lock() {
            Some(mut client) => {
                client.take();
                // The interrupter has a duplicate of the socket, which would keep the connection open.
                self.interrupter.interrupt();
            }
            None => self.shut_down(),
        });
    }

    /// Closes the connection at once. A request of another thread is cancelled and fails there.
    fn interrupt(&self) {
        self.shut_down();
    }

    /// Calls functions, one after the other.
    #[pyo3(signature = (stages, real_time=None, deadline_us=None, instance=None))]
    fn invoke(
        &self,
        py: Python<'_>,
        stages: Vec<Stage<'_>>,
        real_time: Option<bool>,
        deadline_us: Option<u64>,
        instance: Option<String>,
    ) -> PyResult<Answered> {
        let call = call(py, stages, &Terms { real_time, deadline_us }, instance)?;
        Ok(answered(self.ask(py, |client| client.invoke(call))?))
    }

    /// Calls a graph.
    #[pyo3(signature = (graph, inputs, references, real_time=None, deadline_us=None, price_max=None, id=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn invoke_graph(
        &self,
        py: Python<'_>,
        graph: String,
        inputs: Vec<Given<'_>>,
        references: Vec<Reference>,
        real_time: Option<bool>,
        deadline_us: Option<u64>,
        price_max: Option<f64>,
        id: Option<String>,
    ) -> PyResult<Answered> {
        let terms = Terms { real_time, deadline_us };
        let call = graph_call(py, graph, (inputs, references), &terms, price_max, id)?;
        Ok(answered(self.ask(py, |client| client.invoke_graph(&call))?))
    }

    /// Begins a call of functions in the background.
    #[pyo3(signature = (future, stages, real_time=None, deadline_us=None, instance=None))]
    fn defer(
        &self,
        py: Python<'_>,
        future: &str,
        stages: Vec<Stage<'_>>,
        real_time: Option<bool>,
        deadline_us: Option<u64>,
        instance: Option<String>,
    ) -> PyResult<()> {
        let call = call(py, stages, &Terms { real_time, deadline_us }, instance)?;
        self.ask(py, |client| client.defer(future, call))
    }

    /// Begins a call of a graph in the background.
    #[pyo3(signature = (future, graph, inputs, references, real_time=None, deadline_us=None, price_max=None, id=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn defer_graph(
        &self,
        py: Python<'_>,
        future: &str,
        graph: String,
        inputs: Vec<Given<'_>>,
        references: Vec<Reference>,
        real_time: Option<bool>,
        deadline_us: Option<u64>,
        price_max: Option<f64>,
        id: Option<String>,
    ) -> PyResult<()> {
        let terms = Terms { real_time, deadline_us };
        let call = graph_call(py, graph, (inputs, references), &terms, price_max, id)?;
        self.ask(py, |client| client.defer_graph(future, &call))
    }

    /// Waits until the call of a future ends.
    #[pyo3(signature = (future, timeout_us=None))]
    fn await_future(&self, py: Python<'_>, future: &str, timeout_us: Option<u64>) -> PyResult<Answered> {
        let within = timeout_us.map(Duration::from_micros);
        Ok(answered(self.ask(py, |client| client.await_future_within(future, within))?))
    }

    /// The tenant's futures, as JSON.
    fn futures(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::futures)
    }

    /// A future, as JSON.
    fn future(&self, py: Python<'_>, future: &str) -> PyResult<String> {
        self.report(py, |client| client.future(future))
    }

    /// Cancels the call of a future.
    fn cancel_future(&self, py: Python<'_>, future: &str) -> PyResult<()> {
        self.ask(py, |client| client.cancel_future(future))
    }

    /// Drops a future with its outputs.
    fn forget_future(&self, py: Python<'_>, future: &str) -> PyResult<()> {
        self.ask(py, |client| client.forget_future(future))
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
        self.report(py, |client| client.deploy(&bundle, &how))
    }

    /// The tenant's functions, as JSON.
    fn functions(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::functions)
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

    /// Deploys a graph. Returns its description as JSON.
    #[pyo3(signature = (manifest, name=None))]
    fn deploy_graph(&self, py: Python<'_>, manifest: &str, name: Option<&str>) -> PyResult<String> {
        self.report(py, |client| client.deploy_graph(manifest, name))
    }

    /// The tenant's graphs, as JSON.
    fn graphs(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::graphs)
    }

    /// A graph with the decision about a call, as JSON.
    #[pyo3(signature = (graph, deadline_us=None, price_max=None))]
    fn explain_graph(
        &self,
        py: Python<'_>,
        graph: &str,
        deadline_us: Option<u64>,
        price_max: Option<f64>,
    ) -> PyResult<String> {
        let deadline = deadline_us.map(Duration::from_micros);
        let price_max = price(py, price_max)?;
        self.report(py, |client| client.explain_graph(graph, deadline, price_max))
    }

    /// Deletes a graph.
    fn remove_graph(&self, py: Python<'_>, graph: &str) -> PyResult<()> {
        self.ask(py, |client| client.remove_graph(graph))
    }

    /// Stores a tensor as an object. Returns its digest.
    #[pyo3(signature = (tensor, real_time=None))]
    fn put(&self, py: Python<'_>, tensor: Given<'_>, real_time: Option<bool>) -> PyResult<String> {
        let stored = Input::all(vec![tensor])?.into_iter().map(|input| input.tensor(py)).next();
        let tensor = stored.ok_or_else(|| invalid(py, "there is no tensor"))?;
        let digest = self.ask(py, |client| client.put(&tensor, class(real_time)))?;
        Ok(digest.to_string())
    }

    /// Reads an object: its type, shape and elements.
    fn get(&self, py: Python<'_>, object: &str) -> PyResult<(&'static str, Vec<i64>, Elements)> {
        let digest = digest(py, object)?;
        let tensor = self.ask(py, |client| client.get(digest))?;
        Ok((tensor.datatype.name(), tensor.shape, Elements::new(tensor.bytes)))
    }

    /// Removes an object.
    fn remove_object(&self, py: Python<'_>, object: &str) -> PyResult<()> {
        let digest = digest(py, object)?;
        self.ask(py, |client| client.remove_object(digest))
    }

    /// The tenant's objects, as JSON.
    fn objects(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::objects)
    }

    /// Creates an instance. Takes and returns JSON.
    fn create_instance(&self, py: Python<'_>, spec: &str) -> PyResult<String> {
        let spec = parsed(py, spec)?;
        self.report(py, |client| client.create_instance(spec))
    }

    /// Changes an instance. Takes and returns JSON.
    fn resize_instance(&self, py: Python<'_>, resize: &str) -> PyResult<String> {
        let resize = parsed(py, resize)?;
        self.report(py, |client| client.resize_instance(resize))
    }

    /// Removes an instance.
    fn remove_instance(&self, py: Python<'_>, instance: &str) -> PyResult<()> {
        self.ask(py, |client| client.remove_instance(instance))
    }

    /// Instances and shares of tenants, as JSON.
    fn instances(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::instances)
    }

    /// The capacity of each device, as JSON.
    fn capacity(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::capacity)
    }

    /// Grants a lease. Takes and returns JSON.
    fn grant_lease(&self, py: Python<'_>, spec: &str) -> PyResult<String> {
        let spec = parsed(py, spec)?;
        self.report(py, |client| client.grant_lease(spec))
    }

    /// Extends a lease. Takes and returns JSON.
    fn renew_lease(&self, py: Python<'_>, hold: &str) -> PyResult<String> {
        let hold = parsed(py, hold)?;
        self.report(py, |client| client.renew_lease(hold))
    }

    /// Gives a lease to another holder. Takes and returns JSON.
    fn take_over_lease(&self, py: Python<'_>, hold: &str) -> PyResult<String> {
        let hold = parsed(py, hold)?;
        self.report(py, |client| client.take_over_lease(hold))
    }

    /// Ends a lease. Takes JSON.
    fn release_lease(&self, py: Python<'_>, hold: &str) -> PyResult<()> {
        let hold = parsed(py, hold)?;
        self.ask(py, |client| client.release_lease(hold))
    }

    /// Leases, as JSON.
    fn leases(&self, py: Python<'_>) -> PyResult<String> {
        self.report(py, Client::leases)
    }
}

/// Returns a function that runs pending signal handlers; Python runs them in its main thread only.
/// The function returns false if a handler raised an exception, as that of Ctrl-C does, or if the
/// interpreter is shutting down.
fn waits_on(raised: Arc<Mutex<Option<PyErr>>>) -> impl Fn() -> bool + Send + Sync + 'static {
    move || match Python::try_attach(|py| py.check_signals()) {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            false
        }
        None => false,
    }
}

fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| exception(py, "InternalError", error.to_string()))
}

fn parsed<T: DeserializeOwned>(py: Python<'_>, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| invalid(py, error.to_string()))
}
