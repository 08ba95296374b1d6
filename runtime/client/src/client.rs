//! The connection to a daemon.

use crate::call::{Answer, Call, Content, Plan, Tensor, Value};
use crate::error::ClientError;
use crate::graphs::{GraphCall, micros};
use crate::trace::Trace;
use crate::waiting::Watch;
use atoll_control as wire;
use atoll_control::{
    Attachments, CapacityReport, CompileStage, CudaSessionReport, DevicesReport, FunctionSummary, GraphReport,
    Incoming, InstanceReport, InstanceResize, InstanceSpec, Invoke, Invoked, LeaseHold, LeaseReport, LeaseSpec,
    ObjectSummary, Outgoing, ProcessReport, Progress, Put, Rename, Request, Statistics, StatusReport, UsageReport,
    WireError,
};
use atoll_core::{Class, Tenant};
use atoll_protocol::TensorMetadata;
use atoll_sealed::{Digest, Sealed};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    pub(crate) socket: UnixStream,
    tenant: Tenant,
    pub(crate) watch: Option<Watch>,
}

/// Options of a deployment.
#[derive(Clone, Debug, Default)]
pub struct Deploy {
    /// Name of the function; `None` for the name of its graph.
    pub name: Option<String>,
    /// The class of calls that state no class.
    pub class: Option<Class>,
    /// Whether only its tenant may call it.
    pub private: bool,
    /// The device to load it on, as in `host:1`; `None` if the daemon's placement policy
    /// decides.
    pub device: Option<String>,
    /// The bundle's signature in the format of minisign, as `atoll sign` writes it.
    pub signature: Option<String>,
}

/// The keys and certificates of a daemon after a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of keys that can be used; `None` without a keys file.
    pub keys: Option<usize>,
    /// Whether there are certificates.
    pub tls: bool,
}

/// A function with its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its properties.
    pub function: FunctionSummary,
    /// Its inputs, in order.
    pub inputs: Vec<TensorMetadata>,
    /// Its outputs, in order.
    pub outputs: Vec<TensorMetadata>,
}

/// Extracts the expected answer, or returns an error.
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
    /// daemon assigns to the caller's user.
    pub fn connect(socket: &Path) -> Result<Client, ClientError> {
        Client::connect_as(socket, None)
    }

    /// Connects as a given tenant. Only root and the daemon's own user may act for a tenant other
    /// than their own.
    pub fn connect_as(socket: &Path, tenant: Option<Tenant>) -> Result<Client, ClientError> {
        let stream =
            UnixStream::connect(socket).map_err(|source| ClientError::Unreachable { socket: socket.into(), source })?;
        let mut client = Client { socket: stream, tenant: Tenant::default(), watch: None };
        client.tenant = expect!(client.ask(&Request::Hello { tenant })?.0, wire::Answer::Welcome { tenant } => tenant)?;
        Ok(client)
    }

    /// The tenant that the connection acts for.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Deploys a bundle file, or replaces the function of the same name. Returns when the function
    /// can be called, which may take minutes if the daemon compiles its code.
    pub fn deploy(&mut self, bundle: &Path, how: &Deploy) -> Result<FunctionSummary, ClientError> {
        self.deploy_observed(bundle, how, &mut |_| ())
    }

    /// Like [`Client::deploy`]. Calls `observe` at the beginning of each stage if the daemon compiles
    /// the code of the bundle.
    pub fn deploy_observed(
        &mut self,
        bundle: &Path,
        how: &Deploy,
        observe: &mut dyn FnMut(CompileStage),
    ) -> Result<FunctionSummary, ClientError> {
        let failed = |source| ClientError::File { path: bundle.into(), source };
        let content = Sealed::of_reader("atoll-bundle", &mut File::open(bundle).map_err(failed)?).map_err(failed)?;
        let mut attachments = Attachments::default();
        let blob = attachments.add_sealed(&content)?;
        let Deploy { name, class, private, device, signature } = how.clone();
        let request = wire::Deploy { name, class, private, device, signature, progress: true, bundle: blob };
        let mut answer = self.ask_with(&Request::Deploy(request), attachments)?.0;
        while let wire::Answer::Compiling(stage) = answer {
            observe(stage);
            answer = self.receive()?.0;
        }
        expect!(answer, wire::Answer::Deployed(function) => function)
    }

    /// Usage of all tenants, for root and the daemon's own user if they chose no tenant; otherwise
    /// of the connection's tenant.
    pub fn usage(&mut self) -> Result<UsageReport, ClientError> {
        expect!(self.ask(&Request::Usage)?.0, wire::Answer::Usage(report) => report.complete())
    }

    /// Loaded functions and their current state, of the tenants that [`Client::usage`] covers.
    pub fn processes(&mut self) -> Result<ProcessReport, ClientError> {
        expect!(self.ask(&Request::Processes)?.0, wire::Answer::Processes(report) => report.complete())
    }

    /// The current state of the daemon, for the tenants that [`Client::usage`] covers.
    pub fn status(&mut self) -> Result<StatusReport, ClientError> {
        expect!(self.ask(&Request::Status)?.0, wire::Answer::Status(report) => report.complete())
    }

    /// Makes the daemon read its keys and certificates again. Only for root and the daemon's own
    /// user, if they chose no tenant.
    pub fn reload(&mut self) -> Result<Reloaded, ClientError> {
        expect!(self.ask(&Request::Reload)?.0, wire::Answer::Reloaded { keys, tls } => Reloaded { keys, tls })
    }

    /// The devices, and the queue in front of them.
    pub fn devices(&mut self) -> Result<DevicesReport, ClientError> {
        expect!(self.ask(&Request::Devices)?.0, wire::Answer::Devices(report) => report)
    }

    /// Drains a device, or resumes it if `drained` is false. A drained device finishes its requests
    /// and gets no new ones. Only for root and the daemon's own user, if they chose no tenant.
    pub fn drain(&mut self, device: &str, drained: bool) -> Result<(), ClientError> {
        let request = Request::Drain { device: device.into(), drained };
        expect!(self.ask(&request)?.0, wire::Answer::Done => ())
    }

    /// The open sessions of CUDA programs by number, for the tenants that [`Client::usage`] covers.
    pub fn cuda_sessions(&mut self) -> Result<Vec<CudaSessionReport>, ClientError> {
        expect!(self.ask(&Request::CudaSessions)?.0, wire::Answer::CudaSessions { sessions } => sessions)
    }

    /// Moves the memory of a session of a CUDA program to host memory. Waits for its running work.
    /// The program's next call brings it back.
    pub fn suspend_cuda_session(&mut self, session: u64) -> Result<CudaSessionReport, ClientError> {
        expect!(self.ask(&Request::SuspendCudaSession { session })?.0, wire::Answer::CudaSession(report) => report)
    }

    /// Brings a suspended session of a CUDA program back to its device, or moves a session to another
    /// device of the same kind.
    pub fn resume_cuda_session(
        &mut self,
        session: u64,
        device: Option<&str>,
    ) -> Result<CudaSessionReport, ClientError> {
        let request = Request::ResumeCudaSession { session, device: device.map(str::to_owned) };
        expect!(self.ask(&request)?.0, wire::Answer::CudaSession(report) => report)
    }

    /// Recorded events of a device (an index into [`Trace::devices`]; device 0 always exists), for
    /// the tenants that [`Client::usage`] covers. `from` is [`Trace::next`] of the previous batch
    /// of that device, 0 for the oldest kept record, or `None` for records from now on.
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

    /// Describes a function.
    pub fn describe(&mut self, function: &str) -> Result<Description, ClientError> {
        let answer = self.ask(&Request::Describe { function: function.into() })?.0;
        expect!(
            answer,
            wire::Answer::Description { function, inputs, outputs } => Description { function, inputs, outputs }
        )
    }

    /// Unloads and deletes a function.
    pub fn remove_function(&mut self, function: &str) -> Result<(), ClientError> {
        expect!(self.ask(&Request::Remove { function: function.into() })?.0, wire::Answer::Done => ())
    }

    /// Calls functions and waits for the result.
    pub fn invoke(&mut self, call: Call) -> Result<Answer, ClientError> {
        let (request, attachments) = invoke_request(call)?;
        self.invoked(&Request::Invoke(request), attachments)
    }

    /// Repeats a remembered call with other contents for some inputs; only these contents are sent.
    pub fn again(&mut self, plan: Plan, rename: &[(usize, &str, Content)]) -> Result<Answer, ClientError> {
        let mut attachments = Attachments::default();
        let one = |(stage, input, content): &(usize, &str, Content)| -> std::io::Result<Rename> {
            Ok(Rename { stage: *stage, input: (*input).into(), to: content.attach(&mut attachments)? })
        };
        let rename: std::io::Result<Vec<Rename>> = rename.iter().map(one).collect();
        let call = wire::Call::Again { plan: plan.0, rename: rename? };
        self.invoked(&Request::Invoke(Invoke { call, instance: None, class: None, deadline_us: None }), attachments)
    }

    /// Deploys a graph of functions, or replaces the one of the same name. The manifest is TOML or
    /// JSON; `name` replaces the name in it.
    pub fn deploy_graph(&mut self, manifest: &str, name: Option<&str>) -> Result<GraphReport, ClientError> {
        let request = Request::DeployGraph { name: name.map(str::to_owned), manifest: manifest.into() };
        expect!(self.ask(&request)?.0, wire::Answer::Graph(graph) => graph)
    }

    /// The tenant's graphs, by name.
    pub fn graphs(&mut self) -> Result<Vec<GraphReport>, ClientError> {
        expect!(self.ask(&Request::Graphs)?.0, wire::Answer::Graphs { graphs } => graphs)
    }

    /// Describes a graph.
    pub fn graph(&mut self, graph: &str) -> Result<GraphReport, ClientError> {
        self.explain_graph(graph, None, None)
    }

    /// Describes a graph, with the decision that a request with these limits would get now.
    /// `price_max` is in units of account. A limit that is `None` is that of the graph.
    pub fn explain_graph(
        &mut self,
        graph: &str,
        deadline: Option<Duration>,
        price_max: Option<f64>,
    ) -> Result<GraphReport, ClientError> {
        let deadline_us = deadline.map(micros);
        let request = Request::ExplainGraph { graph: graph.into(), deadline_us, price_max };
        expect!(self.ask(&request)?.0, wire::Answer::Graph(graph) => graph)
    }

    /// Deletes a graph. Its functions stay.
    pub fn remove_graph(&mut self, graph: &str) -> Result<(), ClientError> {
        expect!(self.ask(&Request::RemoveGraph { graph: graph.into() })?.0, wire::Answer::Done => ())
    }

    /// Calls a graph and waits for its outputs.
    pub fn invoke_graph(&mut self, call: &GraphCall) -> Result<Answer, ClientError> {
        let (call, attachments) = call.request()?;
        self.invoked(&Request::InvokeGraph(call), attachments)
    }

    /// Creates an instance of a function: a share under which its requests run. Only for root and
    /// the daemon's own user, if they chose no tenant.
    pub fn create_instance(&mut self, spec: InstanceSpec) -> Result<InstanceReport, ClientError> {
        expect!(self.ask(&Request::CreateInstance(spec))?.0, wire::Answer::Instance(instance) => instance)
    }

    /// Changes an instance; its requests continue. Only for root and the daemon's own user, if they
    /// chose no tenant.
    pub fn resize_instance(&mut self, resize: InstanceResize) -> Result<InstanceReport, ClientError> {
        expect!(self.ask(&Request::ResizeInstance(resize))?.0, wire::Answer::Instance(instance) => instance)
    }

    /// Removes an instance; its requests end. Only for root and the daemon's own user, if they
    /// chose no tenant.
    pub fn remove_instance(&mut self, instance: &str) -> Result<(), ClientError> {
        expect!(self.ask(&Request::RemoveInstance { instance: instance.into() })?.0, wire::Answer::Done => ())
    }

    /// Instances and shares of tenants, of the tenants that [`Client::usage`] covers.
    pub fn instances(&mut self) -> Result<Vec<InstanceReport>, ClientError> {
        expect!(self.ask(&Request::Instances)?.0, wire::Answer::Instances { instances } => instances)
    }

    /// The capacity of each device, and the part that leases have. Only for tenants with the right
    /// to hold leases, like all requests about leases except [`Client::leases`].
    pub fn capacity(&mut self) -> Result<CapacityReport, ClientError> {
        expect!(self.ask(&Request::Capacity)?.0, wire::Answer::Capacity(report) => report)
    }

    /// Grants an instance of a function as a lease. A request with the same id and contents gets the
    /// same lease.
    pub fn grant_lease(&mut self, spec: LeaseSpec) -> Result<LeaseReport, ClientError> {
        expect!(self.ask(&Request::GrantLease(spec))?.0, wire::Answer::Lease(lease) => lease)
    }

    /// Extends a lease by its time to live, from now.
    pub fn renew_lease(&mut self, hold: LeaseHold) -> Result<LeaseReport, ClientError> {
        expect!(self.ask(&Request::RenewLease(hold))?.0, wire::Answer::Lease(lease) => lease)
    }

    /// Gives a lease to the holder in `hold`, with a higher epoch.
    pub fn take_over_lease(&mut self, hold: LeaseHold) -> Result<LeaseReport, ClientError> {
        expect!(self.ask(&Request::TakeOverLease(hold))?.0, wire::Answer::Lease(lease) => lease)
    }

    /// Ends a lease and removes its instance. Also succeeds if the lease has already ended.
    pub fn release_lease(&mut self, hold: LeaseHold) -> Result<(), ClientError> {
        expect!(self.ask(&Request::ReleaseLease(hold))?.0, wire::Answer::Done => ())
    }

    /// Leases, of the tenants that [`Client::usage`] covers.
    pub fn leases(&mut self) -> Result<Vec<LeaseReport>, ClientError> {
        expect!(self.ask(&Request::Leases)?.0, wire::Answer::Leases { leases } => leases)
    }

    /// Stores a tensor as an object of a class (default best-effort) and returns its digest.
    pub fn put(&mut self, tensor: &Tensor, class: Option<Class>) -> Result<Digest, ClientError> {
        let mut attachments = Attachments::default();
        let blob = attachments.add(&tensor.bytes)?;
        self.stored(Put { form: Some(tensor.form()), class, blob }, attachments)
    }

    /// Stores bytes as an object of a class (default best-effort) and returns their digest.
    pub fn put_bytes(&mut self, content: &Sealed, class: Option<Class>) -> Result<Digest, ClientError> {
        let mut attachments = Attachments::default();
        let blob = attachments.add_sealed(content)?;
        self.stored(Put { form: None, class, blob }, attachments)
    }

    /// Reads an object. One without a type and shape is returned as a vector of bytes.
    pub fn get(&mut self, digest: Digest) -> Result<Tensor, ClientError> {
        let (answer, mut attachments) = self.ask(&Request::Get { digest })?;
        let (form, blob) = expect!(answer, wire::Answer::Object { form, blob } => (form, blob))?;
        let bytes = attachments.take(blob)?.into_vec()?;
        let plain = || wire::Form { datatype: atoll_protocol::DataType::Uint8, shape: vec![bytes.len() as i64] };
        let wire::Form { datatype, shape } = form.unwrap_or_else(plain);
        Ok(Tensor { datatype, shape, bytes })
    }

    /// Removes an object from the tenant's objects.
    pub fn remove_object(&mut self, digest: Digest) -> Result<(), ClientError> {
        expect!(self.ask(&Request::Drop { digest })?.0, wire::Answer::Done => ())
    }

    /// The tenant's objects, by digest.
    pub fn objects(&mut self) -> Result<Vec<ObjectSummary>, ClientError> {
        expect!(self.ask(&Request::Objects)?.0, wire::Answer::Objects { objects } => objects)
    }

    /// Usage of the tenant's store, and counters of its functions.
    pub fn statistics(&mut self) -> Result<Statistics, ClientError> {
        expect!(self.ask(&Request::Statistics)?.0, wire::Answer::Statistics(statistics) => statistics)
    }

    fn stored(&mut self, put: Put, attachments: Attachments) -> Result<Digest, ClientError> {
        expect!(self.ask_with(&Request::Put(put), attachments)?.0, wire::Answer::Stored { digest } => digest)
    }

    pub(crate) fn invoked(&mut self, request: &Request, attachments: Attachments) -> Result<Answer, ClientError> {
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

    /// The socket, and the tenant of the connection.
    pub(crate) fn into_parts(self) -> (UnixStream, Tenant) {
        (self.socket, self.tenant)
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<(wire::Answer, Attachments), ClientError> {
        self.ask_with(request, Attachments::default())
    }

    pub(crate) fn ask_with(
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
        // If sending failed because the daemon closed the connection, it may have sent the reason
        // before.
        self.receive().map_err(|error| match sent {
            Err(broken) if !matches!(error, ClientError::Refused(_)) => broken.into(),
            _ => error,
        })
    }

    fn receive(&mut self) -> Result<(wire::Answer, Attachments), ClientError> {
        let mut incoming = Incoming::default();
        loop {
            let step = match (incoming.step(&self.socket), &self.watch) {
                (Err(error), Some(watch)) if watch.has_waited(&error) => {
                    watch.check(&self.socket)?;
                    continue;
                }
                (step, _) => step?,
            };
            match step {
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

/// A call of functions as a request.
pub(crate) fn invoke_request(call: Call) -> std::io::Result<(Invoke, Attachments)> {
    let mut attachments = Attachments::default();
    let stages: std::io::Result<Vec<_>> = call.stages.iter().map(|stage| stage.attach(&mut attachments)).collect();
    let stages = wire::Call::Stages { stages: stages?, remember: call.remember };
    let deadline_us = call.deadline.map(micros);
    Ok((Invoke { call: stages, instance: call.instance, class: call.class, deadline_us }, attachments))
}
