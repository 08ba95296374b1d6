//! The messages of the protocol: requests and answers.

use crate::blob::Blob;
use crate::cuda_sessions::CudaSessionReport;
use crate::deferred::{DeferredCall, FutureReport, InvokeGraph};
use crate::devices::DevicesReport;
use crate::functions::{CompileStage, Deploy, FunctionSummary, Statistics};
use crate::graph::GraphReport;
use crate::instances::{InstanceReport, InstanceResize, InstanceSpec};
use crate::leases::{CapacityReport, LeaseHold, LeaseReport, LeaseSpec};
use crate::objects::{ObjectSummary, Put};
use crate::refusal::Refusal;
use crate::ring::{RingReport, RingSpec};
use crate::status::StatusReport;
use crate::trace::TracePiece;
use crate::usage::{ProcessReport, UsageReport};
use atoll_core::{Class, Tenant};
use atoll_protocol::{DataType, TensorMetadata};
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A request. Requests are allowed at any time and in any order. They apply to the tenant of the
/// connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Starts the connection. The daemon's own user and root may choose the tenant. Answered with
    /// [`Answer::Welcome`].
    Hello {
        /// The tenant to act for; `None` for the peer's own.
        tenant: Option<Tenant>,
    },
    /// Deploys a function, or replaces the one of the same name. Answered with
    /// [`Answer::Deployed`].
    Deploy(Deploy),
    /// Lists the tenant's functions. Answered with [`Answer::Functions`].
    Functions,
    /// Describes one function, with its inputs and outputs. Answered with [`Answer::Description`].
    Describe {
        /// Its name.
        function: String,
    },
    /// Unloads and deletes a function. Answered with [`Answer::Done`].
    Remove {
        /// Its name.
        function: String,
    },
    /// Calls functions. Answered with [`Answer::Invoked`].
    Invoke(Invoke),
    /// Deploys a graph of functions, or replaces the one of the same name. Answered with
    /// [`Answer::Graph`].
    DeployGraph {
        /// Its name; `None` for the name in the manifest.
        name: Option<String>,
        /// Its manifest, in TOML or JSON.
        manifest: String,
    },
    /// Lists the tenant's graphs. Answered with [`Answer::Graphs`].
    Graphs,
    /// Describes one graph, with the decision that a request would get now. Answered with
    /// [`Answer::Graph`].
    ExplainGraph {
        /// Its name.
        graph: String,
        /// The deadline of that request, in microseconds; `None` for the graph's own.
        #[serde(default)]
        deadline_us: Option<u64>,
        /// Its price limit, in units of account; `None` for the graph's own.
        #[serde(default)]
        price_max: Option<f64>,
    },
    /// Deletes a graph; its functions stay. Answered with [`Answer::Done`].
    RemoveGraph {
        /// Its name.
        graph: String,
    },
    /// Calls a graph. Answered with [`Answer::Invoked`].
    InvokeGraph(InvokeGraph),
    /// Starts a call in the background. It continues after the connection closes. Later calls of
    /// the tenant can use its outputs ([`Input::Future`]). Answered with [`Answer::Done`] at once.
    Defer {
        /// The name of the future, unique within the tenant.
        future: String,
        /// The call.
        call: DeferredCall,
    },
    /// Waits until the call of a future ends. Its outputs are kept for a minute after the end.
    /// Answered with [`Answer::Invoked`].
    Await {
        /// The future.
        future: String,
        /// The longest time to wait, in microseconds; `None` to wait until the end. The call
        /// continues after it.
        #[serde(default)]
        timeout_us: Option<u64>,
    },
    /// Lists the tenant's futures. Answered with [`Answer::Futures`].
    Futures {
        /// Only this one; refused if there is none of this name.
        #[serde(default)]
        future: Option<String>,
    },
    /// Cancels the call of a future. The future stays, as one that failed. Answered with
    /// [`Answer::Done`] when the call has ended.
    Cancel {
        /// The future.
        future: String,
    },
    /// Drops a future with its outputs. A call that has not ended continues. Answered with
    /// [`Answer::Done`].
    Forget {
        /// The future.
        future: String,
    },
    /// Creates an instance of a function. Only for root and the daemon's own user, unless they
    /// chose a tenant. Answered with [`Answer::Instance`].
    CreateInstance(InstanceSpec),
    /// Changes an instance; its requests continue. Only for root and the daemon's own user, unless
    /// they chose a tenant. Answered with [`Answer::Instance`].
    ResizeInstance(InstanceResize),
    /// Removes an instance; its requests end. Only for root and the daemon's own user, unless they
    /// chose a tenant. Answered with [`Answer::Done`].
    RemoveInstance {
        /// Its name, as in [`InstanceReport::instance`].
        instance: String,
    },
    /// Lists instances, and shares of tenants: of all tenants for root and the daemon's own user,
    /// unless they chose a tenant. Answered with [`Answer::Instances`].
    Instances,
    /// Reports the capacity of each device and the part that leases have. Only for tenants with the
    /// right to hold leases, like the other requests about leases except [`Request::Leases`].
    /// Answered with [`Answer::Capacity`].
    Capacity,
    /// Grants an instance of a function as a lease, which ends unless it is renewed. A request with
    /// the same id and contents gets the same lease. Answered with [`Answer::Lease`].
    GrantLease(LeaseSpec),
    /// Extends a lease by its time to live, from now. Answered with [`Answer::Lease`].
    RenewLease(LeaseHold),
    /// Gives a lease to another holder, with a higher epoch. Answered with [`Answer::Lease`].
    TakeOverLease(LeaseHold),
    /// Ends a lease and removes its instance. Also succeeds if the lease has already ended.
    /// Answered with [`Answer::Done`].
    ReleaseLease(LeaseHold),
    /// Lists leases: of all tenants for root and the daemon's own user, unless they chose a tenant.
    /// Answered with [`Answer::Leases`].
    Leases,
    /// Stores an object. Answered with [`Answer::Stored`].
    Put(Put),
    /// Reads an object. Answered with [`Answer::Object`].
    Get {
        /// Its digest.
        digest: Digest,
    },
    /// Removes an object from the tenant's objects. Answered with [`Answer::Done`].
    Drop {
        /// Its digest.
        digest: Digest,
    },
    /// Lists the tenant's objects. Answered with [`Answer::Objects`].
    Objects,
    /// Reports the usage of the tenant's store, and counters of its functions. Answered with
    /// [`Answer::Statistics`].
    Statistics,
    /// Reports usage: of all tenants for root and the daemon's own user, unless they chose a
    /// tenant; otherwise of the connection's tenant. Answered with [`Answer::Usage`].
    Usage,
    /// Reports the loaded functions and their current state, for the same tenants. Answered with
    /// [`Answer::Processes`].
    Processes,
    /// Reports the current state of the daemon, for the same tenants. Answered with
    /// [`Answer::Status`].
    Status,
    /// Reads recorded events of a device, for the same tenants. Answered with [`Answer::Trace`].
    Trace {
        /// The number of the device: its index in [`TracePiece::devices`].
        #[serde(default)]
        device: u16,
        /// First record to read: [`TracePiece::next`] of the previous batch, 0 for the oldest kept
        /// record, `None` for records from now on.
        from: Option<u64>,
    },
    /// Makes the daemon read its keys and certificates again. Only for root and the daemon's own
    /// user, unless they chose a tenant. Answered with [`Answer::Reloaded`].
    Reload,
    /// Lists the devices. Answered with [`Answer::Devices`].
    Devices,
    /// Lists sessions of CUDA programs: of all tenants for root and the daemon's own user, unless
    /// they chose a tenant. Answered with [`Answer::CudaSessions`].
    CudaSessions,
    /// Moves the memory of a session of a CUDA program to host memory, once its running work has
    /// ended. The program's next call brings it back. Answered with [`Answer::CudaSession`].
    SuspendCudaSession {
        /// Its number, as in [`CudaSessionReport::session`].
        session: u64,
    },
    /// Brings a suspended session of a CUDA program back, or moves one to another device. Answered
    /// with [`Answer::CudaSession`].
    ResumeCudaSession {
        /// Its number, as in [`CudaSessionReport::session`].
        session: u64,
        /// The device; `None` for the one that it is or was on.
        #[serde(default)]
        device: Option<String>,
    },
    /// Opens a ring for requests through shared memory. The connection then belongs to the ring and
    /// carries no further requests. Answered with [`Answer::Ring`].
    OpenRing(RingSpec),
    /// Drains a device, so that it gets no new requests, or resumes it. Only for root and the
    /// daemon's own user, unless they chose a tenant. Answered with [`Answer::Done`].
    Drain {
        /// The device.
        device: String,
        /// False to resume it.
        drained: bool,
    },
}

/// A call of one function, or of several one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    /// The functions and their inputs.
    pub call: Call,
    /// The instance of the first function whose share the call uses. `None` lets the daemon choose
    /// an instance for a call of one function. Without an instance, the call uses the share of the
    /// tenant, if it has one.
    #[serde(default)]
    pub instance: Option<String>,
    /// The class; `None` for that of the instance, or of the first function.
    pub class: Option<Class>,
    /// Cancels the call after this time, in microseconds.
    pub deadline_us: Option<u64>,
}

/// The functions and inputs of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// A new call.
    Stages {
        /// The functions in order. An input may be an output of an earlier function, which then
        /// stays on the device.
        stages: Vec<Stage>,
        /// Whether the connection remembers the call, for [`Call::Again`].
        remember: bool,
    },
    /// Repeats a remembered call with other contents. Bytes are not remembered, so all inputs that
    /// were sent as bytes must be given again.
    Again {
        /// The remembered call, from [`Invoked::plan`].
        plan: u32,
        /// Contents that replace those of the first call.
        rename: Vec<Rename>,
    },
}

/// One function of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Name of the function.
    pub function: String,
    /// Sources of its inputs.
    pub inputs: BTreeMap<String, Input>,
    /// What to do with its outputs; outputs that are not listed are discarded. `None` sends all
    /// outputs of the last function, and none of others.
    pub outputs: Option<BTreeMap<String, OutputAction>>,
}

/// A new content for an input of a remembered call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Index of the function in the call.
    pub stage: usize,
    /// The input.
    pub input: String,
    /// Its content.
    pub to: Input,
}

/// Source of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// Bytes in this message.
    Bytes {
        /// Their type and shape.
        form: Form,
        /// The bytes.
        blob: Blob,
    },
    /// An object of the tenant.
    Object {
        /// Its digest.
        digest: Digest,
        /// Its datatype and shape. Needed if the object has none; otherwise replaces those of the
        /// object.
        form: Option<Form>,
    },
    /// An output of an earlier function of the call.
    Output {
        /// Index of the function.
        stage: usize,
        /// Its output.
        name: String,
    },
    /// An output of a future. The call waits until the future ends.
    Future {
        /// The future.
        future: String,
        /// The name of the output. If several functions have an output of this name, the last
        /// function's is used.
        output: String,
    },
}

/// What to do with an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputAction {
    /// Send it back.
    Send,
    /// Store it as an object of the tenant, and send back its digest.
    Keep,
}

/// Type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Type of the elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

/// An answer of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The tenant that the connection acts for.
    Welcome {
        /// The tenant.
        tenant: Tenant,
    },
    /// A stage of a compilation begins; the answer to the request follows later.
    Compiling(CompileStage),
    /// The deployed function.
    Deployed(FunctionSummary),
    /// The tenant's functions.
    Functions {
        /// By name.
        functions: Vec<FunctionSummary>,
    },
    /// Description of a function.
    Description {
        /// Its properties.
        function: FunctionSummary,
        /// Its inputs.
        inputs: Vec<TensorMetadata>,
        /// Its outputs.
        outputs: Vec<TensorMetadata>,
    },
    /// A graph of functions.
    Graph(GraphReport),
    /// The tenant's graphs.
    Graphs {
        /// By name.
        graphs: Vec<GraphReport>,
    },
    /// An instance.
    Instance(InstanceReport),
    /// Instances, and tenants with shares.
    Instances {
        /// Instances by tenant and name, then tenants with shares.
        instances: Vec<InstanceReport>,
    },
    /// The capacity of each device, and the part that leases have.
    Capacity(CapacityReport),
    /// A lease.
    Lease(LeaseReport),
    /// Leases.
    Leases {
        /// By number.
        leases: Vec<LeaseReport>,
    },
    /// Result of a call.
    Invoked(Invoked),
    /// The tenant's futures.
    Futures {
        /// By name.
        futures: Vec<FutureReport>,
    },
    /// The object was stored.
    Stored {
        /// Its digest.
        digest: Digest,
    },
    /// Contents of an object.
    Object {
        /// Its type and shape.
        form: Option<Form>,
        /// The bytes.
        blob: Blob,
    },
    /// The tenant's objects.
    Objects {
        /// By digest.
        objects: Vec<ObjectSummary>,
    },
    /// Usage of the tenant's store, and counters of its functions.
    Statistics(Statistics),
    /// Usage by device, tenant, function and class.
    Usage(UsageReport),
    /// Loaded functions and executors.
    Processes(ProcessReport),
    /// The current state of the daemon.
    Status(StatusReport),
    /// Recorded events.
    Trace(TracePiece),
    /// The devices.
    Devices(DevicesReport),
    /// Sessions of CUDA programs.
    CudaSessions {
        /// By number.
        sessions: Vec<CudaSessionReport>,
    },
    /// A session of a CUDA program.
    CudaSession(CudaSessionReport),
    /// An open ring.
    Ring(RingReport),
    /// The keys and certificates were read again.
    Reloaded {
        /// Number of keys that can be used; `None` without a keys file.
        keys: Option<usize>,
        /// Whether there are certificates.
        tls: bool,
    },
    /// Success, without further data.
    Done,
    /// The request was refused.
    Refused(Refusal),
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoked {
    /// The requested outputs.
    pub outputs: Vec<Output>,
    /// Time of each phase, in nanoseconds.
    pub timing: Timing,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Number of the remembered call, for [`Call::Again`].
    pub plan: Option<u32>,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Index of its function in the call.
    pub stage: usize,
    /// Its name.
    pub name: String,
    /// Its type and shape.
    pub form: Form,
    /// Its contents.
    pub value: Value,
}

/// Contents of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Bytes in this message.
    Blob(Blob),
    /// An object in the store.
    Object(Digest),
}

/// Phases of a call, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the parts are those of the engine's `InvocationTiming`")]
pub struct Timing {
    pub queue_ns: u64,
    pub input_ns: u64,
    pub compute_ns: u64,
    pub output_ns: u64,
}
