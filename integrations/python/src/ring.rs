//! Rings.

use crate::connection::connected;
use crate::errors::{exception, invalid, raised};
use crate::inputs::{Given, Input, Output, output};
use atoll_client::{ClientError, Parameters, RingCall, RingOptions, RingTicket};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// A ring to a daemon. One thread may use it at a time.
#[pyclass(frozen, module = "atoll._native")]
pub(crate) struct Ring(Mutex<Option<atoll_client::Ring>>);

/// Why the ring was not used.
enum Unusable {
    Closed,
    InUse,
    Failed(ClientError),
}

impl Unusable {
    fn raised(&self, py: Python<'_>) -> PyErr {
        match self {
            Unusable::Closed => exception(py, "ConnectionFailed", "the ring is closed".into()),
            Unusable::InUse => invalid(py, "another thread uses the ring; open one for each thread"),
            Unusable::Failed(error) => raised(py, error),
        }
    }
}

impl Ring {
    /// Does not wait for another thread: this one may hold the interpreter, which the other one
    /// needs.
    fn ring(&self) -> Result<MutexGuard<'_, Option<atoll_client::Ring>>, Unusable> {
        match self.0.try_lock() {
            Ok(ring) => Ok(ring),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Unusable::InUse),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut atoll_client::Ring) -> Result<T, ClientError>) -> Result<T, Unusable> {
        work(self.ring()?.as_mut().ok_or(Unusable::Closed)?).map_err(Unusable::Failed)
    }
}

#[pymethods]
impl Ring {
    /// Opens a ring on a connection of its own.
    #[new]
    #[pyo3(signature = (socket=None, tenant=None, slots=0, arena_bytes=0, spin_us=50, daemon_spin_us=50))]
    fn new(
        py: Python<'_>,
        socket: Option<PathBuf>,
        tenant: Option<&str>,
        slots: u32,
        arena_bytes: u64,
        spin_us: u32,
        daemon_spin_us: u32,
    ) -> PyResult<Ring> {
        let default = RingOptions::default();
        let options = RingOptions {
            slots: if slots == 0 { default.slots } else { slots },
            arena_bytes: if arena_bytes == 0 { default.arena_bytes } else { arena_bytes },
            spin: Duration::from_micros(spin_us.into()),
            daemon_spin: Duration::from_micros(daemon_spin_us.into()),
        };
        let client = connected(py, socket, tenant)?;
        let ring = py.detach(|| client.open_ring(&options)).map_err(|error| raised(py, &error))?;
        Ok(Ring(Mutex::new(Some(ring))))
    }

    /// The tenant that the ring acts for.
    fn tenant(&self, py: Python<'_>) -> PyResult<String> {
        self.with(|ring| Ok(ring.tenant().to_string())).map_err(|error| error.raised(py))
    }

    /// Bytes for the inputs and outputs of one request.
    fn request_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(|ring| Ok(ring.request_bytes())).map_err(|error| error.raised(py))
    }

    /// Sends a request. Returns the number of its slot.
    #[pyo3(signature = (model, inputs, outputs, version="", id="", parameters=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn send(
        &self,
        py: Python<'_>,
        model: &str,
        inputs: Vec<Given<'_>>,
        outputs: Vec<String>,
        version: &str,
        id: &str,
        parameters: Option<&str>,
    ) -> PyResult<u32> {
        let inputs = Input::all(inputs)?;
        let mut call = RingCall::of(model).version(version).id(id);
        for input in &inputs {
            call = call.input_of(input.borrowed(py));
        }
        for name in &outputs {
            call = call.output(name);
        }
        if let Some(parameters) = parameters {
            let parameters = serde_json::from_str::<Parameters>(parameters);
            call = call.parameters(parameters.map_err(|error| invalid(py, format!("the parameters: {error}")))?);
        }
        let ticket = self.with(|ring| ring.send(&call)).map_err(|error| error.raised(py))?;
        Ok(ticket.number())
    }

    /// Waits for the answer to the request in a slot.
    fn receive(&self, py: Python<'_>, slot: u32) -> PyResult<Vec<Output>> {
        let received = py.detach(|| self.with(|ring| ring.receive(RingTicket::of_number(slot))));
        let answer = received.map_err(|error| error.raised(py))?;
        Ok(answer.outputs.into_iter().map(|(name, tensor)| output(name, tensor)).collect())
    }

    /// Waits for an answer of the daemon that no model takes part in.
    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(atoll_client::Ring::ping)).map_err(|error| error.raised(py))
    }

    /// Closes the ring, and cancels its requests.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let ring = self.ring().map_err(|error| error.raised(py))?.take();
        py.detach(|| drop(ring));
        Ok(())
    }
}
