//! The connection.

use crate::call::{Answer, Call, Content, Plan, Tensor, Value};
use crate::error::ClientError;
use crate::trace::Trace;
use atoll_control as wire;
use atoll_control::{
    Attachments, FunctionSummary, Incoming, Invoke, Invoked, ObjectSummary, Outgoing, ProcessReport, Progress, Put,
    Rename, Request, Statistics, StatusReport, UsageReport, WireError,
};
use atoll_core::{Class, Tenant};
use atoll_protocol::TensorMetadata;
use atoll_sealed::{Digest, Sealed};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    tenant: Tenant,
}

/// How to deploy a function.
#[derive(Clone, Debug, Default)]
pub struct Deploy {
    /// What it is to be called; the name of its graph where `None`.
    pub name: Option<String>,
    /// The class of calls that do not name one.
    pub class: Option<Class>,
    /// Whether to keep it from everybody but its tenant.
    pub private: bool,
    /// The device that it is to be on, as in `host:1`; the emptiest one where `None`.
    pub device: Option<String>,
}

/// A function, with what it takes and gives.
#[derive(Clone, Debug)]
pub struct Description {
    /// What is known of it.
    pub function: FunctionSummary,
    /// Its inputs, in its order.
    pub inputs: Vec<TensorMetadata>,
    /// Its outputs, in its order.
    pub outputs: Vec<TensorMetadata>,
}

/// The one answer that fits, or what went wrong.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            _ => Err(ClientError::WrongAnswer),
        }
    };
}

impl Client {
    /// Connects to the daemon that listens on a socket. The connection acts for the tenant that the
    /// daemon sees in the caller's user.
    pub fn connect(socket: &Path) -> Result<Client, ClientError> {
        Client::connect_as(socket, None)
    }

    /// Connects to act for a tenant, which the daemon's own user and root may.
    pub fn connect_as(socket: &Path, tenant: Option<Tenant>) -> Result<Client, ClientError> {
        let stream =
            UnixStream::connect(socket).map_err(|source| ClientError::Unreachable { socket: socket.into(), source })?;
        let mut client = Client { socket: stream, tenant: Tenant::default() };
        client.tenant = expect!(client.ask(&Request::Hello { tenant })?.0, wire::Answer::Welcome { tenant } => tenant)?;
        Ok(client)
    }

    /// Whom the connection acts for.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Deploys the function in a bundle's file, or replaces the one of its name. Returns when it
    /// can be called.
    pub fn deploy(&mut self, bundle: &Path, how: &Deploy) -> Result<FunctionSummary, ClientError> {
        let failed = |source| ClientError::File { path: bundle.into(), source };
        let content = Sealed::of_reader("atoll-bundle", &mut File::open(bundle).map_err(failed)?).map_err(failed)?;
        let mut attachments = Attachments::default();
        let blob = attachments.add_sealed(&content)?;
        let Deploy { name, class, private, device } = how.clone();
        let request = wire::Deploy { name, class, private, device, bundle: blob };
        let (answer, _) = self.ask_with(&Request::Deploy(request), attachments)?;
        expect!(answer, wire::Answer::Deployed(function) => function)
    }

    /// Who used how much: everybody for root and the daemon's own user, if they did not name a
    /// tenant; otherwise the connection's tenant.
    pub fn usage(&mut self) -> Result<UsageReport, ClientError> {
        expect!(self.ask(&Request::Usage)?.0, wire::Answer::Usage(report) => report.complete())
    }

    /// What is loaded and what it does now, of the same tenants.
    pub fn processes(&mut self) -> Result<ProcessReport, ClientError> {
        expect!(self.ask(&Request::Processes)?.0, wire::Answer::Processes(report) => report.complete())
    }

    /// What the daemon does at the moment, of the same tenants.
    pub fn status(&mut self) -> Result<StatusReport, ClientError> {
        expect!(self.ask(&Request::Status)?.0, wire::Answer::Status(report) => report.complete())
    }

    /// What happened on a device (its place in [`Trace::devices`]; there is always a first one)
    /// from a place on ([`Trace::next`] of the answer before for that device; 0 begins with the
    /// oldest that is kept), or from now on, of the same tenants.
    pub fn trace(&mut self, device: u16, from: Option<u64>) -> Result<Trace, ClientError> {
        let (answer, mut attachments) = self.ask(&Request::Trace { device, from })?;
        let piece = expect!(answer, wire::Answer::Trace(piece) => piece)?;
        let bytes = attachments.take(piece.records)?.into_vec()?;
        Trace::new(piece, &bytes).ok_or(ClientError::WrongAnswer)
    }

    /// The tenant's functions, by name.
    pub fn functions(&mut self) -> Result<Vec<FunctionSummary>, ClientError> {
        expect!(self.ask(&Request::Functions)?.0, wire::Answer::Functions { functions } => functions)
    }

    /// One function.
    pub fn describe(&mut self, function: &str) -> Result<Description, ClientError> {
        let answer = self.ask(&Request::Describe { function: function.into() })?.0;
        expect!(answer, wire::Answer::Description { function, inputs, outputs } => Description { function, inputs, outputs })
    }

    /// Takes a function off the device and forgets it.
    pub fn remove_function(&mut self, function: &str) -> Result<(), ClientError> {
        expect!(self.ask(&Request::Remove { function: function.into() })?.0, wire::Answer::Done => ())
    }

    /// Calls functions, and waits for what they give.
    pub fn invoke(&mut self, call: Call) -> Result<Answer, ClientError> {
        let mut attachments = Attachments::default();
        let stages: std::io::Result<Vec<_>> = call.stages.iter().map(|stage| stage.attach(&mut attachments)).collect();
        let stages = wire::Call::Stages { stages: stages?, remember: call.remember };
        let deadline_us = call.deadline.map(|within| u64::try_from(within.as_micros()).unwrap_or(u64::MAX));
        let request = Invoke { call: stages, class: call.class, deadline_us };
        self.invoked(&Request::Invoke(request), attachments)
    }

    /// Repeats a call that the daemon remembers, with other contents in its inputs: nothing but
    /// those is sent.
    pub fn again(&mut self, plan: Plan, rename: &[(usize, &str, Content)]) -> Result<Answer, ClientError> {
        let mut attachments = Attachments::default();
        let one = |(stage, input, content): &(usize, &str, Content)| -> std::io::Result<Rename> {
            Ok(Rename { stage: *stage, input: (*input).into(), to: content.attach(&mut attachments)? })
        };
        let rename: std::io::Result<Vec<Rename>> = rename.iter().map(one).collect();
        let call = wire::Call::Again { plan: plan.0, rename: rename? };
        self.invoked(&Request::Invoke(Invoke { call, class: None, deadline_us: None }), attachments)
    }

    /// Keeps a tensor as an object, for a class if one is given, and gives its name.
    pub fn put(&mut self, tensor: &Tensor, class: Option<Class>) -> Result<Digest, ClientError> {
        let mut attachments = Attachments::default();
        let blob = attachments.add(&tensor.bytes)?;
        self.stored(Put { form: Some(tensor.form()), class, blob }, attachments)
    }

    /// Keeps bytes as an object, for a class if one is given, and gives its name.
    pub fn put_bytes(&mut self, content: &Sealed, class: Option<Class>) -> Result<Digest, ClientError> {
        let mut attachments = Attachments::default();
        let blob = attachments.add_sealed(content)?;
        self.stored(Put { form: None, class, blob }, attachments)
    }

    /// Reads an object that is a tensor. One that is not comes as a vector of bytes.
    pub fn get(&mut self, digest: Digest) -> Result<Tensor, ClientError> {
        let (answer, mut attachments) = self.ask(&Request::Get { digest })?;
        let (form, blob) = expect!(answer, wire::Answer::Object { form, blob } => (form, blob))?;
        let bytes = attachments.take(blob)?.into_vec()?;
        let plain = || wire::Form { datatype: atoll_protocol::DataType::Uint8, shape: vec![bytes.len() as i64] };
        let wire::Form { datatype, shape } = form.unwrap_or_else(plain);
        Ok(Tensor { datatype, shape, bytes })
    }

    /// Gives up an object.
    pub fn remove_object(&mut self, digest: Digest) -> Result<(), ClientError> {
        expect!(self.ask(&Request::Drop { digest })?.0, wire::Answer::Done => ())
    }

    /// The tenant's objects, by name.
    pub fn objects(&mut self) -> Result<Vec<ObjectSummary>, ClientError> {
        expect!(self.ask(&Request::Objects)?.0, wire::Answer::Objects { objects } => objects)
    }

    /// What the tenant has and did.
    pub fn statistics(&mut self) -> Result<Statistics, ClientError> {
        expect!(self.ask(&Request::Statistics)?.0, wire::Answer::Statistics(statistics) => statistics)
    }

    fn stored(&mut self, put: Put, attachments: Attachments) -> Result<Digest, ClientError> {
        expect!(self.ask_with(&Request::Put(put), attachments)?.0, wire::Answer::Stored { digest } => digest)
    }

    fn invoked(&mut self, request: &Request, attachments: Attachments) -> Result<Answer, ClientError> {
        let (answer, mut attachments) = self.ask_with(request, attachments)?;
        let Invoked { outputs, timing, preemptions, plan } =
            expect!(answer, wire::Answer::Invoked(invoked) => invoked)?;
        let mut value = |output: wire::Output| -> Result<(usize, String, Value), ClientError> {
            let value = match output.value {
                wire::Value::Object(digest) => Value::Object(digest),
                wire::Value::Blob(blob) => {
                    let bytes = attachments.take(blob)?.into_vec()?;
                    Value::Tensor(Tensor { datatype: output.form.datatype, shape: output.form.shape, bytes })
                }
            };
            Ok((output.stage, output.name, value))
        };
        let outputs = outputs.into_iter().map(&mut value).collect::<Result<_, _>>()?;
        Ok(Answer { outputs, timing, preemptions, plan: plan.map(Plan) })
    }

    fn ask(&mut self, request: &Request) -> Result<(wire::Answer, Attachments), ClientError> {
        self.ask_with(request, Attachments::default())
    }

    fn ask_with(
        &mut self,
        request: &Request,
        attachments: Attachments,
    ) -> Result<(wire::Answer, Attachments), ClientError> {
        let mut outgoing = Outgoing::new(request, attachments)?;
        let sent = loop {
            match outgoing.step(&self.socket) {
                Ok(Progress::More) => {}
                Ok(Progress::Done(()) | Progress::Closed) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // A daemon that closed the connection may have said why before it did.
        self.receive().map_err(|error| match sent {
            Err(broken) if !matches!(error, ClientError::Refused(_)) => broken.into(),
            _ => error,
        })
    }

    fn receive(&mut self) -> Result<(wire::Answer, Attachments), ClientError> {
        let mut incoming = Incoming::default();
        loop {
            match incoming.step(&self.socket)? {
                Progress::More => {}
                Progress::Closed => return Err(ClientError::Closed),
                Progress::Done(frame) => {
                    return match frame.decode()? {
                        (wire::Answer::Refused(refusal), _) => Err(refusal.into()),
                        answer => Ok(answer),
                    };
                }
            }
        }
    }
}

impl From<atoll_sealed::NotSealed> for ClientError {
    fn from(error: atoll_sealed::NotSealed) -> ClientError {
        ClientError::Wire(WireError::from(error))
    }
}
