//! A ring: inference requests through shared memory.

use crate::call::Tensor;
use crate::client::Client;
use crate::error::ClientError;
use atoll_control::{self as wire, Incoming, Progress, RingReport};
use atoll_core::{Class, Tenant};
use atoll_protocol::{DataType, Parameters};
use atoll_ring::limits::SLEEP_MAX;
use atoll_ring::{Call, ClientEnd, Done, Failure, Place, Reply, Request, SendError, Span};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Alignment of tensors in the arena in bytes, so that they can be used in place.
const ALIGN: u64 = 64;

/// Sizes and waiting times of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Maximum number of requests in flight. Rounded up to a power of two.
    pub slots: u32,
    /// Bytes for the tensors of all slots. Each slot has an equal part for the inputs and outputs of
    /// its request.
    pub arena_bytes: u64,
    /// How long this side spins for an answer before it sleeps.
    pub spin: Duration,
    /// How long the daemon spins for the next request before it sleeps. The daemon caps it at
    /// `atoll_ring::limits::SPIN_MAX`.
    pub daemon_spin: Duration,
}

impl Default for RingOptions {
    /// Four requests in flight with up to 1 MiB of tensors each; both sides spin for 50 µs.
    fn default() -> RingOptions {
        let spin = Duration::from_micros(50);
        RingOptions { slots: 4, arena_bytes: 4 << 20, spin, daemon_spin: spin }
    }
}

/// A ring to a daemon. It owns a connection, acts for the tenant of that connection, and ends when
/// the connection closes. Dropping the ring cancels its requests.
#[derive(Debug)]
pub struct Ring {
    end: ClientEnd,
    socket: UnixStream,
    incoming: Incoming,
    tenant: Tenant,
    spin: Duration,
    slots: Vec<Slot>,
}

#[derive(Debug)]
enum Slot {
    Free,
    Waiting,
    Answered(Reply),
}

/// A request in flight. Pass it to [`Ring::receive`]; its slot stays in use until then.
#[derive(Debug)]
#[must_use = "its slot is in use until the answer is received"]
pub struct RingTicket(u32);

impl RingTicket {
    /// The number of its slot, for bindings of other languages.
    pub fn number(&self) -> u32 {
        self.0
    }

    /// The ticket of a slot. If the slot has no request, [`Ring::receive`] returns an error.
    pub fn of_number(slot: u32) -> RingTicket {
        RingTicket(slot)
    }
}

/// An inference request. All parts are borrowed: [`Ring::send`] copies the elements of inputs.
#[derive(Clone, Debug)]
pub struct RingCall<'a> {
    model: &'a str,
    version: &'a str,
    id: &'a str,
    parameters: Parameters,
    inputs: Vec<RingInput<'a>>,
    outputs: Vec<&'a str>,
}

/// An input of a [`RingCall`]: dense, row-major, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct RingInput<'a> {
    /// Its name.
    pub name: &'a str,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: &'a [i64],
    /// The elements.
    pub bytes: &'a [u8],
}

/// The answer to a [`RingCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct RingAnswer {
    /// The version of the model.
    pub version: String,
    /// Parameters of the answer, as over HTTP.
    pub parameters: Parameters,
    /// The outputs with their names, in the requested order or that of the model.
    pub outputs: Vec<(String, Tensor)>,
}

impl<'a> RingCall<'a> {
    /// A request to a function of the tenant, or to a model by its name over HTTP. By default all
    /// outputs are sent back.
    pub fn of(model: &'a str) -> RingCall<'a> {
        let (inputs, outputs) = (Vec::new(), Vec::new());
        RingCall { model, version: "", id: "", parameters: Parameters::default(), inputs, outputs }
    }

    /// Chooses a version of the model.
    pub fn version(mut self, version: &'a str) -> RingCall<'a> {
        self.version = version;
        self
    }

    /// Sets the id of the request.
    pub fn id(mut self, id: &'a str) -> RingCall<'a> {
        self.id = id;
        self
    }

    /// Adds an input.
    pub fn input(self, name: &'a str, tensor: &'a Tensor) -> RingCall<'a> {
        let Tensor { datatype, shape, bytes } = tensor;
        self.input_of(RingInput { name, datatype: *datatype, shape, bytes })
    }

    /// Adds an input that is not in a [`Tensor`].
    pub fn input_of(mut self, input: RingInput<'a>) -> RingCall<'a> {
        self.inputs.push(input);
        self
    }

    /// Requests an output. Outputs that are not requested are discarded.
    pub fn output(mut self, name: &'a str) -> RingCall<'a> {
        self.outputs.push(name);
        self
    }

    /// Sets the class of the request; the default is that of the model.
    pub fn class(self, class: Class) -> RingCall<'a> {
        self.parameter("priority", if class == Class::RealTime { 1_u64 } else { 2 })
    }

    /// Cancels the request after this time.
    pub fn deadline(self, within: Duration) -> RingCall<'a> {
        self.parameter("deadline_us", u64::try_from(within.as_micros()).unwrap_or(u64::MAX))
    }

    /// Sets a parameter, as over HTTP.
    pub fn parameter(mut self, name: &str, value: impl Into<serde_json::Value>) -> RingCall<'a> {
        self.parameters.set(name, value);
        self
    }

    /// Replaces all parameters.
    pub fn parameters(mut self, parameters: Parameters) -> RingCall<'a> {
        self.parameters = parameters;
        self
    }
}

impl RingAnswer {
    /// The output of this name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, ClientError> {
        let found = self.outputs.iter().find(|(output, _)| output == name).map(|(_, tensor)| tensor);
        found.ok_or_else(|| ClientError::NoOutput(name.into()))
    }
}

impl Client {
    /// Opens a ring on this connection, which then carries no other requests.
    pub fn open_ring(mut self, options: &RingOptions) -> Result<Ring, ClientError> {
        let spin_us = u32::try_from(options.daemon_spin.as_micros()).unwrap_or(u32::MAX);
        let spec = wire::RingSpec { slots: options.slots, arena_bytes: options.arena_bytes, spin_us };
        let (answer, mut attachments) = self.ask(&wire::Request::OpenRing(spec))?;
        let wire::Answer::Ring(RingReport { slots, arena_bytes, memory, .. }) = answer else {
            return Err(ClientError::WrongAnswer);
        };
        let layout = atoll_ring::Layout::new(slots, arena_bytes).map_err(|_| ClientError::WrongAnswer)?;
        let end = ClientEnd::attach(attachments.take_memory(memory)?, layout)?;
        let (socket, tenant) = self.into_parts();
        // From now on this side polls the socket and never blocks on it.
        socket.set_nonblocking(true)?;
        let slots = (0..layout.slots()).map(|_| Slot::Free).collect();
        Ok(Ring { end, socket, incoming: Incoming::default(), tenant, spin: options.spin, slots })
    }
}

impl Ring {
    /// The tenant that the ring acts for.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Bytes for the inputs and outputs of one request.
    pub fn request_bytes(&self) -> u64 {
        self.end.layout().part(0).bytes
    }

    /// Sends a request and waits for its answer.
    pub fn infer(&mut self, call: &RingCall<'_>) -> Result<RingAnswer, ClientError> {
        let ticket = self.send(call)?;
        self.receive(ticket)
    }

    /// Sends a ping and waits for the answer of the daemon's ring thread. No model runs.
    pub fn ping(&mut self) -> Result<(), ClientError> {
        let slot = self.free()?;
        self.pushed(slot, &Request::Ping)?;
        match self.reply(slot)? {
            Reply::Pong => Ok(()),
            _ => Err(ClientError::WrongAnswer),
        }
    }

    /// Sends a request. [`Ring::receive`] waits for its answer; meanwhile further requests can be
    /// sent.
    ///
    /// # Errors
    /// [`ClientError::RingFull`] if all slots are in use, [`ClientError::NoRoom`] if the inputs are
    /// larger than [`Ring::request_bytes`]. Then nothing is sent.
    pub fn send(&mut self, call: &RingCall<'_>) -> Result<RingTicket, ClientError> {
        let slot = self.free()?;
        let part = self.end.layout().part(slot);
        let mut at = part.at;
        let end = part.at + part.bytes;
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for input in &call.inputs {
            let span = Span { at, bytes: input.bytes.len() as u64 };
            let behind = (at + span.bytes).next_multiple_of(ALIGN);
            if behind > end {
                let needed = call.inputs.iter().map(|input| input.bytes.len() as u64).sum();
                return Err(ClientError::NoRoom { needed, room: part.bytes });
            }
            self.end.write(at, input.bytes).map_err(|_| ClientError::WrongAnswer)?;
            let (name, shape) = (input.name.into(), input.shape.to_vec());
            inputs.push(Place { name, datatype: input.datatype, shape, span });
            at = behind;
        }
        let parameters = match call.parameters.is_empty() {
            true => String::new(),
            false => serde_json::to_string(&call.parameters).unwrap_or_default(),
        };
        let request = Request::Call(Call {
            model: call.model.into(),
            version: call.version.into(),
            id: call.id.into(),
            parameters,
            inputs,
            outputs: call.outputs.iter().map(|name| (*name).into()).collect(),
            window: Span { at, bytes: end - at },
        });
        self.pushed(slot, &request)?;
        Ok(RingTicket(slot))
    }

    /// Waits for the answer to a request.
    pub fn receive(&mut self, ticket: RingTicket) -> Result<RingAnswer, ClientError> {
        let Done { version, parameters, outputs } = match self.reply(ticket.0)? {
            Reply::Done(done) => done,
            Reply::Failed(Failure { kind, message }) => return Err(wire::Refusal { kind, message }.into()),
            Reply::Pong => return Err(ClientError::WrongAnswer),
        };
        let wrong = |_| ClientError::WrongAnswer;
        let parameters = match parameters.as_str() {
            "" => Parameters::default(),
            json => serde_json::from_str(json).map_err(|_| ClientError::WrongAnswer)?,
        };
        let output = |Place { name, datatype, shape, span }: Place| {
            let bytes = self.end.read(span).map_err(wrong)?;
            Ok((name, Tensor { datatype, shape, bytes }))
        };
        let outputs = outputs.into_iter().map(output).collect::<Result<_, ClientError>>()?;
        Ok(RingAnswer { version, parameters, outputs })
    }

    fn free(&self) -> Result<u32, ClientError> {
        let free = self.slots.iter().position(|slot| matches!(slot, Slot::Free));
        free.map(|slot| slot as u32).ok_or(ClientError::RingFull(self.slots.len()))
    }

    fn pushed(&mut self, slot: u32, request: &Request) -> Result<(), ClientError> {
        self.end.send(slot.into(), request).map_err(|error| match error {
            SendError::Message(message) => ClientError::Call(message.to_string()),
            SendError::Ring(error) => error.into(),
        })?;
        self.slots[slot as usize] = Slot::Waiting;
        Ok(())
    }

    /// Waits for the reply of a slot, and frees the slot. Keeps replies of other slots.
    fn reply(&mut self, slot: u32) -> Result<Reply, ClientError> {
        loop {
            match self.slots.get_mut(slot as usize) {
                None | Some(Slot::Free) => return Err(ClientError::Call(format!("slot {slot} has no request"))),
                Some(Slot::Waiting) => {}
                Some(answered) => {
                    if let Slot::Answered(reply) = std::mem::replace(answered, Slot::Free) {
                        return Ok(reply);
                    }
                }
            }
            match self.end.wait(self.spin, SLEEP_MAX)? {
                Some((tag, reply)) => {
                    let slot = usize::try_from(tag).ok().and_then(|tag| self.slots.get_mut(tag));
                    match slot.filter(|slot| matches!(slot, Slot::Waiting)) {
                        Some(slot) => *slot = Slot::Answered(reply),
                        None => return Err(ClientError::WrongAnswer),
                    }
                }
                None => self.look()?,
            }
        }
    }

    /// Checks whether the connection is still open. If the daemon closed the ring, the error is its
    /// reason.
    fn look(&mut self) -> Result<(), ClientError> {
        loop {
            match self.incoming.step(&self.socket) {
                Ok(Progress::More) => {}
                Ok(Progress::Closed) => return Err(ClientError::Closed),
                Ok(Progress::Done(frame)) => {
                    return match frame.decode()? {
                        (wire::Answer::Refused(refusal), _) => Err(refusal.into()),
                        _ => Err(ClientError::WrongAnswer),
                    };
                }
                Err(wire::WireError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
