//! The extensions for shared memory: regions of system shared memory and of CUDA shared memory can be
//! registered, listed and used ([`crate::shared_memory`]). Without a device that can open memory of
//! clients, the registration of CUDA shared memory is refused, as by a Triton without GPUs.

use super::error::{Kind, RequestError};
use super::memory::reserve;
use crate::app::App;
use crate::bodies::BodyRoom;
use crate::identity::{Denial, Principal};
use crate::model::Model;
use crate::shared_memory::{CudaRegister, Sharing, Window};
use crate::threads::for_client;
use atoll_engine::Class;
use atoll_protocol::{
    CudaRegionStatus, InferRequest, RegionStatus, RegisterRequest, SharedRange, SharedTensor, Tensor,
};
use std::sync::Arc;

/// Registers a region.
pub(crate) async fn register(
    app: &Arc<App>,
    caller: &Arc<Principal>,
    name: String,
    request: RegisterRequest,
) -> Result<(), RequestError> {
    caller.may_share_memory().inspect_err(|denial| app.refuse(denial, caller, Class::BestEffort))?;
    let (app, caller) = (app.clone(), caller.clone());
    let register = move || app.regions.register(app.gate.access(), &caller, &name, &request);
    for_client(register).await.ok_or_else(RequestError::panicked)?
}

/// Registers a region of CUDA shared memory.
pub(crate) async fn register_cuda(
    app: &Arc<App>,
    caller: &Arc<Principal>,
    name: String,
    request: CudaRegister,
) -> Result<(), RequestError> {
    let devices = app.engine.imports();
    if devices.is_empty() {
        return Err(refused_cuda(&name, app.engine.devices()));
    }
    caller.may_share_cuda_memory().inspect_err(|denial| app.refuse(denial, caller, Class::BestEffort))?;
    let (app, caller) = (app.clone(), caller.clone());
    let register = move || app.regions.register_cuda(&devices, &caller, &name, &request);
    for_client(register).await.ok_or_else(RequestError::panicked)?
}

/// Unregisters a region of the caller, or all of them if the name is empty.
pub(crate) fn unregister(app: &App, caller: &Principal, name: &str, sharing: Sharing) {
    app.regions.unregister(caller, name, sharing);
}

/// One region of CUDA shared memory of the caller, or all if the name is empty.
pub(crate) fn cuda_status(app: &App, caller: &Principal, name: &str) -> Result<Vec<CudaRegionStatus>, RequestError> {
    app.regions.cuda_status(caller, name)
}

/// One region of the caller, or all if the name is empty.
pub(crate) fn status(app: &App, caller: &Principal, name: &str) -> Result<Vec<RegionStatus>, RequestError> {
    app.regions.status(caller, name)
}

/// The places of a request's outputs in shared memory, and the reserved memory of the inputs that
/// were read from there.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Places in the order of the requested outputs; `None` for outputs that are sent in the
    /// answer.
    pub(super) outputs: Vec<Option<Window>>,
    _room: Option<BodyRoom>,
}

impl Shared {
    /// For inputs that were copied from a ring: no outputs in regions.
    pub(crate) fn holding(room: BodyRoom) -> Shared {
        Shared { outputs: Vec::new(), _room: Some(room) }
    }
}

/// The weight by which the thread of [`fetch`] is chosen: `usize::MAX` if it reads a file, which
/// may take any time.
pub(crate) fn fetch_weight(request: &InferRequest) -> usize {
    if request.shared_inputs.is_empty() { 0 } else { usize::MAX }
}

/// Bytes of a request's inputs in shared memory, according to the request.
fn shared_bytes(inputs: &[SharedTensor]) -> usize {
    let sizes = inputs.iter().map(|input| input.range.byte_size);
    usize::try_from(sizes.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
}

/// Copies the inputs of a request from shared memory into the request, and looks up the places of
/// its outputs. Memory for the inputs is reserved from the budget of bodies, after their names,
/// datatypes and shapes were checked against the model.
pub(crate) fn fetch(
    app: &App,
    caller: &Principal,
    model: &Model,
    request: &mut InferRequest,
) -> Result<Shared, RequestError> {
    let locate = |range: &SharedRange| {
        let window = app.regions.window(caller, range);
        // Checks the right again: the region may have been registered while the tenant still had it.
        may_use(caller, window.as_ref().ok()).inspect_err(|denial| app.refuse(denial, caller, Class::BestEffort))?;
        window
    };
    let range = |output: &atoll_protocol::RequestedOutput| output.shared.as_ref().map(locate).transpose();
    let outputs = request.outputs.iter().map(range).collect::<Result<_, _>>()?;
    if request.shared_inputs.is_empty() {
        return Ok(Shared { outputs, _room: None });
    }
    let inputs = std::mem::take(&mut request.shared_inputs);
    let (tensors, room) =
        take_inputs(app, caller.limits.class, model, inputs, locate, |window| app.regions.read(window))?;
    request.inputs.extend(tensors);
    Ok(Shared { outputs, _room: Some(room) })
}

/// Checks inputs in shared memory and copies them. `locate` checks a range, and `read` copies its
/// bytes. Memory is reserved from the budget of bodies, after names, datatypes, shapes and ranges
/// were checked.
pub(crate) fn take_inputs<W>(
    app: &App,
    class: Class,
    model: &Model,
    inputs: Vec<SharedTensor>,
    locate: impl Fn(&SharedRange) -> Result<W, RequestError>,
    read: impl Fn(&W) -> Result<Vec<u8>, RequestError>,
) -> Result<(Vec<Tensor>, BodyRoom), RequestError> {
    let (bytes, most) = (shared_bytes(&inputs), app.body_bytes_max);
    if bytes > most {
        return Err(RequestError::new(
            Kind::TooLarge,
            format!(
                "the inputs in shared memory have {bytes} bytes; the limit is {most}, as for those in a body: send \
                smaller batches, or start the daemon with a larger --body-bytes-max"
            ),
        ));
    }
    let mut windows = Vec::with_capacity(inputs.len());
    for input in &inputs {
        windows.push(locate(&input.range)?);
        input.check()?;
        model.fit_shape(&input.name, input.datatype, &input.shape)?;
    }
    let mut room = app.bodies.room(class);
    reserve(&mut room, bytes)?;
    let tensor = |(input, window): (SharedTensor, W)| Ok(input.tensor(read(&window)?)?);
    let tensors = inputs.into_iter().zip(windows).map(tensor).collect::<Result<_, RequestError>>()?;
    Ok((tensors, room))
}

/// Whether a tenant may use a window. For a region that does not exist, a right for any kind is
/// enough.
fn may_use(caller: &Principal, window: Option<&Window>) -> Result<(), Denial> {
    match window.map(Window::sharing) {
        Some(Sharing::System) => caller.may_share_memory(),
        Some(Sharing::Cuda) => caller.may_share_cuda_memory(),
        None => caller.may_share_memory().or_else(|denial| caller.may_share_cuda_memory().map_err(|_| denial)),
    }
}

/// The error for the registration of CUDA shared memory where no device can open it.
fn refused_cuda(region: &str, devices: &[String]) -> RequestError {
    let region: String = region.chars().take(64).flat_map(char::escape_debug).collect();
    let devices = devices.join(", ");
    RequestError::new(
        Kind::Unsupported,
        format!(
            "failed to register CUDA shared memory region `{region}`: CUDA shared memory is not supported by the \
            daemon's devices ({devices}); it needs an NVIDIA GPU in an executor process. Use system shared memory, or \
            send the tensors in the request"
        ),
    )
}
