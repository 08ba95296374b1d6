//! What a [`Pool`](super::Pool) is told and what it answers.

use crate::ids::{Class, DeviceId, Nanos};

/// A request: one invocation of a function, from its arrival until it is answered. Numbered by the
/// caller; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A function that is deployed in the pool. Numbered by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// The clients that share their devices or their fair share: a tenant, or a client of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Devices of a kind run a function in the same time, so that they share what was measured.
/// Numbered by the caller; two GPUs of one model are of one kind, a CPU device is of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind(pub u16);

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Devices of the same kind share measured times.
    pub kind: DeviceKind,
    /// Best-effort requests that may be in flight on it at a time; at least 1. With 1 the device
    /// idles between two requests while the second is handed over; with 2 it does not.
    pub slots: u32,
    /// Bytes of device memory for the constants of functions.
    pub memory_bytes: u64,
}

/// The devices that can run a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Suits {
    /// Every device of the pool, including devices that are added later.
    #[default]
    All,
    /// These devices only. A pinned function names one. They need not be in the pool yet.
    Only(Vec<DeviceId>),
}

impl Suits {
    /// Whether a device can run the function, as far as this tells.
    pub fn contains(&self, device: DeviceId) -> bool {
        match self {
            Suits::All => true,
            Suits::Only(devices) => devices.contains(&device),
        }
    }
}

/// Times of a function on one kind of device, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Device time of one request without loading, for instance from the profile of its bundle.
    pub service: Option<Nanos>,
    /// Time to load its constants onto the device.
    pub reload: Option<Nanos>,
}

/// A function of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The group it is charged to.
    pub group: GroupId,
    /// Bytes of its constants on a device.
    pub constant_bytes: u64,
    /// Where it can run.
    pub suits: Suits,
    /// Known times by kind of device. Measured times replace them one by one. For a kind that is not
    /// listed, the pool starts from the times of any other kind, or from 0.
    pub expected: Vec<(DeviceKind, Expected)>,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSpec {
    /// The function it calls; it must be in the pool.
    pub function: FunctionId,
    /// Real-time requests are dispatched at once, whatever the slots.
    pub class: Class,
    /// When it arrives. Later than now only in simulations: the request is announced, and no policy
    /// dispatches it before that time.
    pub arrival: Nanos,
    /// A request that is still waiting at this time is rejected.
    pub deadline: Option<Nanos>,
    /// Whether it may run again if its device is lost or fails: its execution has no effect outside
    /// its outputs.
    pub may_retry: bool,
}

/// How a request ended on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// It has its outputs.
    Done {
        /// Device time without loading; teaches the pool what to expect.
        service: Nanos,
        /// The time that loading its constants took, if they had to be loaded for it.
        loaded: Option<Nanos>,
    },
    /// It failed, or was cancelled on the device. If `retryable` and the request may be retried,
    /// the pool dispatches it again; else the caller answers with the device's error.
    Failed {
        /// Whether the cause may be gone at the next attempt, perhaps on another device.
        retryable: bool,
    },
    /// The device refused it without running it. If the request may be retried, the pool dispatches
    /// it again, to another device if there is one: until the time given, the function runs on its
    /// other devices only.
    Refused {
        /// When the device may take the function again.
        until: Nanos,
    },
}

/// An event of the pool's world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// A device joins the pool, empty. Its id must not be in the pool. A lost device may come back
    /// under its id.
    DeviceAdded {
        /// The device.
        device: DeviceId,
        /// What it is.
        spec: DeviceSpec,
    },
    /// The device gets no new requests; those in flight go on. Ignored for unknown devices.
    DeviceDraining {
        /// The device.
        device: DeviceId,
    },
    /// The device gets requests again. Ignored for unknown devices.
    DeviceResumed {
        /// The device.
        device: DeviceId,
    },
    /// The device is gone, with what was resident on it. Its requests in flight are queued again at
    /// the front, in order, if they may be retried; the others are rejected. Their `Finished`, if it
    /// still comes, is ignored. Ignored for unknown devices. A drained device is removed by this
    /// event too.
    DeviceLost {
        /// The device.
        device: DeviceId,
    },
    /// A function is deployed. Its id must never have been in the pool.
    FunctionAdded {
        /// The function.
        function: FunctionId,
        /// What it is.
        spec: FunctionSpec,
    },
    /// A function is removed. Its waiting requests are rejected; those in flight finish.
    FunctionRemoved {
        /// The function.
        function: FunctionId,
    },
    /// Sets the weight of a group for `affinity` and `static`; 1 by default.
    GroupWeight {
        /// The group.
        group: GroupId,
        /// Its share of the devices is its weight divided by the sum of all groups' weights.
        weight: u32,
    },
    /// A request arrives.
    Arrived {
        /// The request.
        request: RequestId,
        /// What it asks for.
        spec: RequestSpec,
    },
    /// The client withdraws a request. A waiting request is removed without an action. A request in
    /// flight ends with its `Finished`, and is not retried. Ignored if the request has ended.
    Cancelled {
        /// The request.
        request: RequestId,
    },
    /// A request in flight ended on its device. Ignored unless it is in flight there: it may race
    /// with the loss of the device.
    Finished {
        /// The request.
        request: RequestId,
        /// The device.
        device: DeviceId,
        /// How it ended.
        end: RequestEnd,
    },
    /// The constants of a function are on a device. Comes after each load, whether asked for by
    /// [`PoolAction::Load`] or by the dispatch of a request.
    Resident {
        /// The device.
        device: DeviceId,
        /// The function.
        function: FunctionId,
    },
    /// The constants of a function left a device, or a load of them failed.
    Evicted {
        /// The device.
        device: DeviceId,
        /// The function.
        function: FunctionId,
    },
    /// Time has passed; see [`Pool::wakeup`](super::Pool::wakeup).
    Tick,
}

/// What the caller is to do. Actions are executed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// Submit the request to the device. It loads what the function needs.
    Dispatch {
        /// The request.
        request: RequestId,
        /// The device.
        device: DeviceId,
    },
    /// Answer the request with an error. It is over.
    Reject {
        /// The request.
        request: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// Load the function's constants onto a device before a request needs them. Answered by
    /// `Resident`, or by `Evicted` if it cannot be done.
    Load {
        /// The function.
        function: FunctionId,
        /// The device.
        device: DeviceId,
    },
    /// Reclaim the function's constants from a device if no request uses them there. Answered by
    /// `Evicted` if they left; a device that cannot reclaim them answers nothing.
    Unload {
        /// The function.
        function: FunctionId,
        /// The device.
        device: DeviceId,
    },
    /// A device belongs to another group from now on (`exclusive`). For information: nothing is in
    /// flight on it.
    Move {
        /// The device.
        device: DeviceId,
        /// The group that gave it; `None` if it belonged to none.
        from: Option<GroupId>,
        /// The group that has it now.
        to: GroupId,
    },
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The function is not in the pool.
    UnknownFunction,
    /// The function was removed while the request was waiting.
    FunctionRemoved,
    /// No device of the pool suits the function, not even a draining one.
    NoDevice,
    /// The constants of the function are larger than the memory of every device that suits it.
    TooLarge {
        /// Bytes of its constants.
        constant_bytes: u64,
        /// Memory of the largest device that suits it.
        largest_bytes: u64,
    },
    /// It was still waiting at its deadline.
    DeadlinePassed,
    /// Its device was lost, and it may not be retried.
    DeviceLost {
        /// The device.
        device: DeviceId,
    },
    /// It failed or lost its device too many times.
    TooManyAttempts {
        /// How often it was dispatched.
        attempts: u32,
    },
    /// The pool has as many requests waiting as its configuration allows.
    QueueFull,
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RejectReason::UnknownFunction => f.write_str("the function is not deployed"),
            RejectReason::FunctionRemoved => f.write_str("the function was removed while the request was waiting"),
            RejectReason::NoDevice => f.write_str("no device that can run the function is left"),
            RejectReason::TooLarge { constant_bytes, largest_bytes } => write!(
                f,
                "the constants of the function have {constant_bytes} bytes; the largest device that can run it has \
                 {largest_bytes}"
            ),
            RejectReason::DeadlinePassed => f.write_str("the request was still waiting at its deadline"),
            RejectReason::DeviceLost { device } => {
                write!(f, "device {} was lost, and the request may not run twice", device.0)
            }
            RejectReason::TooManyAttempts { attempts } => write!(f, "the request failed {attempts} times"),
            RejectReason::QueueFull => f.write_str("too many requests are waiting for a device"),
        }
    }
}
