//! The messages: a closed list of requests, and what is answered.

use crate::blob::Blob;
use crate::status::StatusReport;
use crate::trace::TracePiece;
use crate::usage::{ProcessReport, UsageReport};
use atoll_core::{Class, Tenant};
use atoll_protocol::{DataType, TensorMetadata};
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a client asks. Legal at any time, in any order; each is for the tenant of the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Who am I? Or, from the daemon's own user and from root: let me act for this tenant. Answered
    /// with [`Answer::Welcome`].
    Hello {
        /// The tenant to act for; the peer's own where `None`.
        tenant: Option<Tenant>,
    },
    /// Deploy a function, or replace the one of its name. Answered with [`Answer::Deployed`].
    Deploy(Deploy),
    /// The tenant's functions. Answered with [`Answer::Functions`].
    Functions,
    /// One function, with its inputs and outputs. Answered with [`Answer::Description`].
    Describe {
        /// Its name.
        function: String,
    },
    /// Take a function off the device and forget it. Answered with [`Answer::Done`].
    Remove {
        /// Its name.
        function: String,
    },
    /// Call functions. Answered with [`Answer::Invoked`].
    Invoke(Invoke),
    /// Keep an object. Answered with [`Answer::Stored`].
    Put(Put),
    /// Read an object. Answered with [`Answer::Object`].
    Get {
        /// Its name.
        digest: Digest,
    },
    /// Give up an object. Answered with [`Answer::Done`].
    Drop {
        /// Its name.
        digest: Digest,
    },
    /// The tenant's objects. Answered with [`Answer::Objects`].
    Objects,
    /// What the tenant has and did. Answered with [`Answer::Statistics`].
    Statistics,
    /// Who used how much; root and the daemon's own user see everybody's unless they named a
    /// tenant. Answered with [`Answer::Usage`].
    Usage,
    /// What is loaded and what it does now, of the same tenants. Answered with
    /// [`Answer::Processes`].
    Processes,
    /// What the daemon does at the moment, of the same tenants. Answered with [`Answer::Status`].
    Status,
    /// What happened on a device to the work of the same tenants. Answered with [`Answer::Trace`].
    Trace {
        /// The number of the device: its place in [`TracePiece::devices`].
        #[serde(default)]
        device: u16,
        /// From where on, by [`TracePiece::next`] of the piece before; 0 begins with the oldest
        /// that is kept, `None` with what happens from now on.
        from: Option<u64>,
    },
}

/// A function to deploy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// What it is to be called; the name of its graph where `None`.
    pub name: Option<String>,
    /// The class of invocations that do not name one.
    pub class: Option<Class>,
    /// Whether it is to be kept from everybody but its tenant; others are served over HTTP as well.
    pub private: bool,
    /// The device that it is to be on; the emptiest one where `None`.
    #[serde(default)]
    pub device: Option<String>,
    /// The bundle.
    pub bundle: Blob,
}

/// A call of functions, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoke {
    /// What to call.
    pub call: Call,
    /// The class; that of the first function where `None`.
    pub class: Option<Class>,
    /// Give up after so many microseconds.
    pub deadline_us: Option<u64>,
}

/// What to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Said for the first time.
    Stages {
        /// The functions in order; an input may come from an output of an earlier one, and then
        /// never leaves the device.
        stages: Vec<Stage>,
        /// Whether the connection is to remember this, for [`Call::Again`].
        remember: bool,
    },
    /// What was remembered, with other contents in its inputs. Inputs whose bytes were sent with
    /// the first call have to be among them: bytes are not remembered.
    Again {
        /// Which, from [`Invoked::plan`].
        plan: u32,
        /// Contents that take the place of those of the first call.
        rename: Vec<Rename>,
    },
}

/// One function of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub function: String,
    /// Where its inputs come from.
    pub inputs: BTreeMap<String, Input>,
    /// What is to become of its outputs; those not named are not wanted. `None` sends all of them,
    /// if this is the last function.
    pub outputs: Option<BTreeMap<String, Fate>>,
}

/// An input of a remembered call that is to have another content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Index of the function in the call.
    pub stage: usize,
    /// The input.
    pub input: String,
    /// Its content.
    pub to: Input,
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// From this message.
    Bytes {
        /// How to read them.
        form: Form,
        /// The bytes.
        blob: Blob,
    },
    /// An object of the tenant's.
    Object {
        /// Its name.
        digest: Digest,
        /// How to read it, where the object does not say, or says otherwise.
        form: Option<Form>,
    },
    /// An output of an earlier function of the call.
    Output {
        /// Index of the function.
        stage: usize,
        /// Its output.
        name: String,
    },
}

/// What is to become of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is sent back.
    Send,
    /// It becomes an object of the tenant's, whose name is sent back.
    Keep,
}

/// How bytes are to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Type of the elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

/// An object to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// How to read it.
    pub form: Option<Form>,
    /// For which class it is kept; best-effort where `None`.
    pub class: Option<Class>,
    /// The bytes.
    pub blob: Blob,
}

/// What a daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// Whom the connection acts for.
    Welcome {
        /// The tenant.
        tenant: Tenant,
    },
    /// A function was deployed.
    Deployed(FunctionSummary),
    /// The tenant's functions.
    Functions {
        /// By name.
        functions: Vec<FunctionSummary>,
    },
    /// One function.
    Description {
        /// What is known of it.
        function: FunctionSummary,
        /// Its inputs.
        inputs: Vec<TensorMetadata>,
        /// Its outputs.
        outputs: Vec<TensorMetadata>,
    },
    /// Functions were called.
    Invoked(Invoked),
    /// An object is kept.
    Stored {
        /// Its name.
        digest: Digest,
    },
    /// An object.
    Object {
        /// How to read it.
        form: Option<Form>,
        /// The bytes.
        blob: Blob,
    },
    /// The tenant's objects.
    Objects {
        /// By name.
        objects: Vec<ObjectSummary>,
    },
    /// What the tenant has and did.
    Statistics(Statistics),
    /// Who used how much.
    Usage(UsageReport),
    /// What is loaded.
    Processes(ProcessReport),
    /// What the daemon does at the moment.
    Status(StatusReport),
    /// What happened.
    Trace(TracePiece),
    /// It was done, and there is nothing to tell.
    Done,
    /// It was not done.
    Refused(Refusal),
}

/// A deployed function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSummary {
    /// Its name among its tenant's.
    pub name: String,
    /// What it is called over HTTP; nothing if it is private.
    pub model: Option<String>,
    /// The SHA-256 of its bundle.
    pub bundle: Digest,
    /// Size of its bundle.
    pub bundle_bytes: u64,
    /// Size of its constants.
    pub weights_bytes: u64,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// When it was deployed, in seconds since 1970.
    pub deployed_s: u64,
    /// The device that it is on; `None` where it cannot be called.
    #[serde(default)]
    pub device: Option<String>,
    /// Why it cannot be called, if it cannot.
    pub failure: Option<String>,
}

/// What a call gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoked {
    /// The outputs that were wanted.
    pub outputs: Vec<Output>,
    /// Where the time went, in nanoseconds.
    pub timing: Timing,
    /// How often it was told to leave the device for others.
    pub preemptions: u32,
    /// What to say to call the same again, if it is remembered.
    pub plan: Option<u32>,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Index of its function in the call.
    pub stage: usize,
    /// Its name.
    pub name: String,
    /// How to read it.
    pub form: Form,
    /// Where it is.
    pub value: Value,
}

/// Where an output is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// In this message.
    Blob(Blob),
    /// In the store.
    Object(Digest),
}

/// Where the time of a call went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the parts are those of the engine's `InvocationTiming`")]
pub struct Timing {
    pub queue_ns: u64,
    pub input_ns: u64,
    pub compute_ns: u64,
    pub output_ns: u64,
}

/// An object of a tenant's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSummary {
    /// Its name.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
    /// For which class it is kept.
    pub class: Class,
    /// How to read it.
    pub form: Option<Form>,
    /// When the tenant put it, in seconds since 1970.
    pub created_s: u64,
    /// When the tenant last used it, in seconds since 1970.
    pub used_s: u64,
    /// Whether it is in memory, and not only on the disk.
    pub in_memory: bool,
}

/// What a tenant has and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Whose.
    pub tenant: Tenant,
    /// Bytes of its objects.
    pub object_bytes: u64,
    /// Bytes of objects it may have.
    pub object_bytes_max: u64,
    /// How many objects it has.
    pub objects: u64,
    /// How many it may have.
    pub objects_max: u64,
    /// How many functions it may have.
    pub functions_max: u64,
    /// Its functions since they were brought onto the device.
    pub functions: Vec<FunctionCounts>,
}

/// What a function did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// Its name.
    pub name: String,
    /// Invocations that gave a result.
    pub success: u64,
    /// Invocations that were admitted and gave none.
    pub failure: u64,
    /// Invocations that were refused.
    pub rejected: u64,
    /// Invocations that wait or run now.
    pub pending: u64,
    /// Time on the device, in nanoseconds.
    pub compute_ns: u64,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Whose fault it is, and what to do.
    pub kind: RefusalKind,
    /// In words, for people.
    pub message: String,
}

/// Whose fault a refusal is, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// The request is wrong; asking again is no use.
    BadRequest,
    /// There is no such function or object, or it is not the tenant's: which of the two is not
    /// told.
    NotFound,
    /// The peer may not do this.
    Denied,
    /// The tenant has used up what it may have.
    Quota,
    /// Too much is going on; try again later.
    Busy,
    /// The deadline passed.
    Deadline,
    /// The function failed on the device.
    Function,
    /// The daemon failed, or the machine it runs on.
    Daemon,
}

impl RefusalKind {
    /// Whether whoever asked is at fault.
    pub fn is_clients(self) -> bool {
        matches!(self, RefusalKind::BadRequest | RefusalKind::NotFound | RefusalKind::Denied)
    }
}
