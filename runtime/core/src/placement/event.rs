//! Events and actions of a [`Pool`](super::Pool).

use crate::ids::{Class, DeviceId, Nanos};

/// A request: one invocation of a function, from its arrival until it is answered. The caller
/// assigns the number and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A function that is deployed in the pool. The caller counts the numbers up from 0 or 1: the pool's
/// tables grow with the highest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// The unit of fairness and of exclusive devices: a tenant, or one of its clients. The caller counts
/// the numbers up, as those of functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A kind of device. All devices of a kind run a function in the same time, so they share measured
/// times. The caller assigns the number; for example, two GPUs of one model have one kind, and a
/// CPU device has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind(pub u16);

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Devices of the same kind share measured times.
    pub kind: DeviceKind,
    /// Largest number of best-effort requests in flight on it, at least 1. With 1 the device idles
    /// between two requests while the second is dispatched; with 2 it does not.
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
    /// Whether the device is listed as suitable. Its memory is checked elsewhere.
    pub fn contains(&self, device: DeviceId) -> bool {
        match self {
            Suits::All => true,
            Suits::Only(devices) => devices.contains(&device),
        }
    }
}

/// Known times of a function on one kind of device.
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
    /// The group to which its requests count.
    pub group: GroupId,
    /// Bytes of its constants on a device.
    pub constant_bytes: u64,
    /// The devices that can run it.
    pub suits: Suits,
    /// Known times by kind of device. Each counts as one measurement. For an unknown time the pool
    /// uses the shortest of the other kinds, or 0.
    pub expected: Vec<(DeviceKind, Expected)>,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSpec {
    /// The function that it calls. A request for a function that is not in the pool is rejected.
    pub function: FunctionId,
    /// Its class. Real-time requests are dispatched at once, even if no slot is free.
    pub class: Class,
    /// Whether its device runs it together with other requests of the function, as a batch. Such
    /// requests do not wait in the pool, where no batch can form: they are dispatched at once,
    /// whatever their class.
    pub is_batched: bool,
    /// When it arrives. In simulations this may be later than now: the request is then announced,
    /// and no policy dispatches it before that time.
    pub arrival: Nanos,
    /// A request that is still waiting at this time is rejected.
    pub deadline: Option<Nanos>,
    /// Whether it may run again if its device is lost or fails. It may if its execution has no
    /// effects besides its outputs.
    pub may_retry: bool,
}

impl RequestSpec {
    /// Whether it waits for a free slot of a device. All others are dispatched at once.
    pub(super) fn takes_slot(&self) -> bool {
        self.class == Class::BestEffort && !self.is_batched
    }
}

/// How a request ended on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// It succeeded.
    Done {
        /// Device time without loading. The pool learns its expected time from it.
        service: Nanos,
        /// The time that it took to load constants, if they were loaded for this request.
        loaded: Option<Nanos>,
    },
    /// It failed, or was cancelled on the device. If `retryable` is set and the request may be
    /// retried, the pool dispatches it again. Otherwise the caller answers with the device's error.
    Failed {
        /// Whether another attempt, perhaps on another device, may succeed.
        retryable: bool,
    },
    /// The device refused it without running it. If the request may be retried, the pool dispatches
    /// it again. Until the given time, the function runs only on its other devices, if it has any.
    Refused {
        /// When the device may run the function again.
        until: Nanos,
    },
}

/// An event for the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// A device without resident functions joins the pool. Its id must not be in the pool; a lost
    /// device may return under the same id.
    DeviceAdded {
        /// The device.
        device: DeviceId,
        /// Its kind, slots and memory.
        spec: DeviceSpec,
    },
    /// The device gets no new requests; those in flight continue. Ignored for unknown devices.
    DeviceDraining {
        /// The device.
        device: DeviceId,
    },
    /// The device gets requests again. Ignored for unknown devices.
    DeviceResumed {
        /// The device.
        device: DeviceId,
    },
    /// The device and the constants on it are gone. Requests in flight on it are queued again at
    /// their old position if they may be retried; the others are rejected. A later `Finished` of
    /// these requests is ignored. This event also removes a drained device. Ignored for unknown
    /// devices.
    DeviceLost {
        /// The device.
        device: DeviceId,
    },
    /// A function is deployed. Its id must never have been in the pool.
    FunctionAdded {
        /// The function.
        function: FunctionId,
        /// Its group, size, devices and expected times.
        spec: FunctionSpec,
    },
    /// A function can run on these devices from now on. Its requests in flight continue where they
    /// are. Ignored for unknown functions.
    SuitsChanged {
        /// The function.
        function: FunctionId,
        /// Its devices.
        suits: Suits,
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
        /// Its function, class, deadline and retry option.
        spec: RequestSpec,
    },
    /// The client cancels a request. A waiting request is removed without an action. A request in
    /// flight ends with its `Finished`, and is not retried. Ignored if the request has ended.
    Cancelled {
        /// The request.
        request: RequestId,
    },
    /// A request in flight ended on its device. Ignored unless it is in flight there: the event may
    /// race with the loss of the device.
    Finished {
        /// The request.
        request: RequestId,
        /// The device.
        device: DeviceId,
        /// How it ended.
        end: RequestEnd,
    },
    /// The constants of a function are on a device. Sent after each load, whether it was caused by
    /// [`PoolAction::Load`] or by the dispatch of a request.
    Resident {
        /// The device.
        device: DeviceId,
        /// The function.
        function: FunctionId,
    },
    /// The constants of a function were evicted from a device, or their load failed.
    Evicted {
        /// The device.
        device: DeviceId,
        /// The function.
        function: FunctionId,
    },
    /// Time has passed; see [`Pool::wakeup`](super::Pool::wakeup).
    Tick,
}

/// An action for the caller. Actions are executed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAction {
    /// Submit the request to the device, which loads the function's constants if necessary.
    Dispatch {
        /// The request.
        request: RequestId,
        /// The device.
        device: DeviceId,
    },
    /// Answer the request with an error. The request has ended.
    Reject {
        /// The request.
        request: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// Load the function's constants onto a device before a request needs them. The caller sends
    /// `Resident` afterwards, or `Evicted` if the load fails.
    Load {
        /// The function.
        function: FunctionId,
        /// The device.
        device: DeviceId,
    },
    /// Reclaim the function's constants from a device if no request uses them there. The caller
    /// sends `Evicted` afterwards, or nothing if the device keeps them.
    Unload {
        /// The function.
        function: FunctionId,
        /// The device.
        device: DeviceId,
    },
    /// A device belongs to another group from now on (policy `exclusive`). The caller need not act:
    /// nothing is in flight on the device.
    Move {
        /// The device.
        device: DeviceId,
        /// The group that had it; `None` if it belonged to none.
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
        /// Memory of the largest suitable device, in bytes.
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
    /// The configured number of requests is waiting already.
    QueueFull,
}

impl RejectReason {
    /// All labels, for metrics.
    pub const LABELS: [&str; 8] = [
        "unknown_function",
        "function_removed",
        "no_device",
        "too_large",
        "deadline_passed",
        "device_lost",
        "too_many_attempts",
        "queue_full",
    ];

    /// Its index in [`RejectReason::LABELS`].
    pub fn index(&self) -> usize {
        match self {
            RejectReason::UnknownFunction => 0,
            RejectReason::FunctionRemoved => 1,
            RejectReason::NoDevice => 2,
            RejectReason::TooLarge { .. } => 3,
            RejectReason::DeadlinePassed => 4,
            RejectReason::DeviceLost { .. } => 5,
            RejectReason::TooManyAttempts { .. } => 6,
            RejectReason::QueueFull => 7,
        }
    }
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
