//! The interface through which the server uses the devices.

use crate::decisions::DecisionCounts;
use crate::dispatcher::DeviceState;
use crate::member::Reopened;
use crate::shares::{ShareRefusal, ShareRoom};
use atoll_core::DeviceId;
use atoll_core::placement::Why;
use atoll_core::scaling::Decision;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FlushRequest, FunctionInfo, FunctionKey, FunctionOptions, Imports,
    InstanceMemory, InvocationId, InvokeError, MemorySession, Reply, SessionId, ShareClient, ShareSpec, SuspendError,
    SuspendedSession, TraceBatch,
};
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::time::Duration;

/// A loaded function and its devices.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The devices that hold it; at least one. The first holds the state of its sessions.
    pub devices: Vec<DeviceId>,
    /// Its properties, as reported by the engine of the first device.
    pub info: FunctionInfo,
}

/// The state of the devices and of the queue in front of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStatus {
    /// The placement policy; `None` if each function has one device.
    pub policy: Option<&'static str>,
    /// Requests that wait for a device.
    pub waiting: u64,
    /// Each device, in the order of [`Inference::devices`].
    pub devices: Vec<DeviceState>,
    /// The decisions of the policy so far.
    pub decisions: DecisionCounts,
}

/// The properties of a device on which costs depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTraits {
    /// Its kind. Devices of the same kind run a function in the same time.
    pub kind: String,
    /// Whether its compute units are CPU cores.
    pub is_cpu: bool,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// The compute capability of an NVIDIA GPU: 90 is 9.0.
    pub capability: Option<u32>,
}

/// The devices of a daemon, or a test double.
pub trait Inference: Send + Sync + 'static {
    /// The names of the devices, indexed by [`DeviceId`].
    fn devices(&self) -> &[String];

    /// The properties of the devices, in the same order. The devices of a test double all differ in
    /// kind and have unlimited memory.
    fn traits(&self) -> Vec<DeviceTraits> {
        let of =
            |name: &String| DeviceTraits { kind: name.clone(), is_cpu: true, memory_bytes: u64::MAX, capability: None };
        self.devices().iter().map(of).collect()
    }

    /// The devices that can open device memory of clients, in the order of [`Inference::devices`].
    fn imports(&self) -> Vec<Arc<dyn Imports>> {
        Vec::new()
    }

    /// Loads a function on the named device, or where the placement policy wants it. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownDevice`] if there is no such device, [`EngineError::AlreadyLoaded`] if
    /// any device has a function with this name, or the error of the device's engine.
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError>;

    /// Unloads a function. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotLoaded`] if no device has it.
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;

    /// Sets or changes the share of a client: on the devices of a function, or on all devices if no
    /// function is given. If a function is loaded later, its shares are set on its devices. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::Share`] if a device cannot honour its shares together. On error nothing has
    /// changed. A test double accepts every share.
    fn set_share(
        &self,
        _client: &ShareClient,
        _function: Option<&FunctionKey>,
        _share: ShareSpec,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    /// As [`Inference::set_share`], on one of the devices of the function only. Requests of the
    /// instance run there. If the device is lost, drained, or without the function, the share is
    /// not in force ([`Inference::holds_share`]). Blocks. A test double sets the share on all
    /// devices.
    ///
    /// # Errors
    ///
    /// As [`Inference::set_share`], and [`EngineError::Unservable`] if the function is loaded, but
    /// not on this device, or if the device is lost.
    fn set_share_on(
        &self,
        client: &ShareClient,
        function: &FunctionKey,
        share: ShareSpec,
        _device: DeviceId,
    ) -> Result<(), EngineError> {
        self.set_share(client, Some(function), share)
    }

    /// The device to which [`Inference::set_share_on`] bound a client; `None` if it is not bound.
    fn device_of_share(&self, _client: &ShareClient) -> Option<DeviceId> {
        None
    }

    /// The room for shares of each device, in the order of [`Inference::devices`]. Blocks. Empty
    /// for a test double.
    fn share_rooms(&self) -> Vec<ShareRoom> {
        Vec::new()
    }

    /// Removes the shares of a client; `false` if it has none. Cancels the invocations of an
    /// instance. Blocks.
    fn remove_share(&self, _client: &ShareClient) -> bool {
        false
    }

    /// Sets the memory limit of an instance on all devices, or removes it.
    fn limit_memory(&self, _client: &ShareClient, _limit: Option<InstanceMemory>) {}

    /// The shares that are not in effect, because a device refused them when their function was
    /// loaded.
    fn share_refusals(&self) -> Vec<ShareRefusal> {
        Vec::new()
    }

    /// Whether the share of a client is in effect on the devices of its function. Does not block.
    fn holds_share(&self, _client: &ShareClient) -> bool {
        true
    }

    /// Invokes a chain of functions, one after the other. There must be a device that holds all of
    /// them. The reply is called exactly once.
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Whether the thread that submits a request encodes strings or computes inputs, which may take
    /// long. A test double does neither.
    fn encodes(&self, _request: &ChainRequest) -> bool {
        false
    }

    /// Invokes a chain of functions on this device, without the placement policy; `why` is for
    /// traces. If the device is drained, lost, or lacks a function, the answer is
    /// [`InvokeError::Unavailable`]; the request is not sent to another device. A test double
    /// ignores the device.
    fn submit_to(&self, _device: DeviceId, _why: Why, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    /// The device of an invocation; `None` if the invocation waits for a device or has ended.
    fn place_of(&self, id: InvocationId) -> Option<DeviceId> {
        Some(DeviceId::of_id(id.0))
    }

    /// The device with the fewest requests, other than `beside`, that can run a function; `None` if
    /// there is none.
    fn other_device(&self, _function: &FunctionKey, _beside: DeviceId) -> Option<DeviceId> {
        None
    }

    /// Stops or resumes sending requests to a device. Requests on the device finish there.
    /// Functions that are on no other device cannot be called while it is drained.
    ///
    /// # Errors
    /// [`EngineError::UnknownDevice`] if there is no such device. A test double without devices
    /// always fails.
    fn set_drained(&self, device: &str, _is_drained: bool) -> Result<(), EngineError> {
        Err(EngineError::UnknownDevice { name: device.into(), known: self.devices().join(", ") })
    }

    /// The state of the devices and of the queue in front of them.
    fn devices_state(&self) -> FleetStatus {
        FleetStatus::default()
    }

    /// Cancels an invocation.
    fn cancel(&self, id: InvocationId);

    /// Opens a session of a stateful function, on the function's device. The session is closed once
    /// it has been idle for `idle`.
    ///
    /// # Errors
    /// If there is no such function, it keeps no state, or its tenant has too many sessions. A test
    /// double without sessions always fails.
    fn open_session(&self, _function: &FunctionKey, _idle: Duration) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    /// Closes a session. Its memory is freed when its running step has ended.
    fn close_session(&self, _session: SessionId) {}

    /// Runs the next step of a session: one invocation of its function. A failed step leaves the
    /// session's state unchanged.
    fn submit_step(&self, _session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    /// Opens a CUDA session on the function's device; see
    /// [`EngineHandle::open_memory`](atoll_engine::EngineHandle::open_memory). Closed by
    /// [`Inference::close_session`].
    ///
    /// # Errors
    /// If there is no such function, or its tenant has too many sessions. A test double always
    /// fails.
    fn open_memory(&self, _function: &FunctionKey, _bytes: u64) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    /// The address at which kernels see the memory of a CUDA session, after its first flush. `None`
    /// if the device does not know it. Blocks.
    fn memory_address(&self, _session: SessionId) -> Option<u64> {
        None
    }

    /// Moves the memory of a CUDA session to host memory; see
    /// [`EngineHandle::suspend_session`](atoll_engine::EngineHandle::suspend_session). Blocks for at
    /// most `patience`.
    ///
    /// # Errors
    /// If there is no such session, or no host memory for it, or its memory is lost, or its running
    /// work does not end in time.
    fn suspend_session(&self, _session: SessionId, _patience: Duration) -> Result<(), SuspendError> {
        Err(SuspendError::NoSession)
    }

    /// Keeps a CUDA session from being suspended until its next flush arrives, or until
    /// [`Inference::release_session`]. Returns whether it is suspended already, or on its way.
    fn hold_session(&self, _session: SessionId) -> bool {
        false
    }

    /// Ends [`Inference::hold_session`].
    fn release_session(&self, _session: SessionId) {}

    /// Takes the contents of a suspended CUDA session, which is closed. Blocks.
    ///
    /// # Errors
    /// If there is no such session, or it is not suspended.
    fn take_suspended(&self, _session: SessionId) -> Result<SuspendedSession, SuspendError> {
        Err(SuspendError::NoSession)
    }

    /// Opens a CUDA session with the contents of a suspended one, on the device of a function.
    /// Blocks.
    ///
    /// # Errors
    /// As [`Inference::open_memory`], with the contents.
    fn open_suspended(&self, _function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        Err(Box::new((InvokeError::NoSession, contents)))
    }

    /// The CUDA sessions that have memory, on a device or suspended. Blocks.
    fn memory_sessions(&self) -> Vec<MemorySession> {
        Vec::new()
    }

    /// Runs the next flush of a CUDA session: one invocation of its function.
    fn submit_flush(&self, _session: SessionId, _request: FlushRequest, reply: Reply) -> InvocationId {
        reply(Err(InvokeError::NoSession));
        InvocationId(u64::MAX)
    }

    /// The statistics of each device's engine, in the order of [`Inference::devices`].
    /// Blocks until each engine's thread has answered.
    fn statistics(&self) -> Vec<EngineStatistics>;

    /// Records in the trace of the pool, if there is one, that the autoscaler decided to change the
    /// instances of a function.
    fn note_scaled(&self, _function: &FunctionKey, _decision: &Decision) {}

    /// The names of all traces: those of the devices in order, followed by that of the pool, if
    /// there is one.
    fn traced(&self) -> Vec<String> {
        self.devices().to_vec()
    }

    /// The trace records of the entry of [`Inference::traced`] with this index, which is a device
    /// or the pool. Starts at record `from`, or with the next record if `None`. Returns `None` if
    /// recording has stopped. Blocks until the engine's thread has answered.
    fn trace(&self, _device: DeviceId, _from: Option<u64>) -> Option<TraceBatch> {
        None
    }
}

/// The device with this name among those of a daemon. A kind without a number, such as `host`,
/// means `host:0`.
pub fn device_named(names: &[String], name: &str) -> Option<DeviceId> {
    let is_it = |known: &String| known == name || known.strip_suffix(":0").is_some_and(|kind| kind == name);
    names.iter().position(is_it).map(|at| DeviceId(at as u16))
}
