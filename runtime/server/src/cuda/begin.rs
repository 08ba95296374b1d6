//! Admission of a session.

use super::backend::{Collected, EngineBackend};
use super::code::SessionCode;
use super::counts::{Counts, TenantSession};
use super::errors::{of_kernel, of_task};
use super::facts::{self, Limits};
use super::live::Live;
use crate::app::App;
use crate::control::Control;
use crate::identity::{Principal, Reason};
use crate::instances::share;
use crate::limits::{CUDA_BYTES_DEFAULT, CUDA_SESSIONS_MAX, CUDA_SESSIONS_PER_TENANT_MAX, CUDA_VARIABLES_BYTES};
use atoll_engine::{Class, DeviceId, FlushWork, FunctionKey, InvokeError, ShareClient, Tenant};
use atoll_fleet::{DeviceTraits, device_named};
use atoll_session::{Code, Hello, Span, Terms};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Why a session is refused: an error for the program, and a message.
type Refused = (Code, String);

/// Who asks for a session.
#[derive(Debug)]
pub(super) enum Caller {
    /// A user of this machine, by user id.
    User(u32),
    /// A client over the network, which a token, a certificate, or the rule for anonymous requests
    /// has identified.
    Client(Arc<Principal>, SocketAddr),
}

impl Caller {
    /// The tenant that it acts for: the one of the terms, if it may choose.
    fn principal(&self, control: &Control, wanted: Option<Tenant>) -> Result<Principal, Refused> {
        match self {
            Caller::User(uid) => {
                control.principal(*uid, wanted).map_err(|error| (Code::NOT_PERMITTED, error.to_string()))
            }
            Caller::Client(principal, _) => match wanted {
                Some(wanted) if wanted != principal.tenant => {
                    control.app.refuse_unknown(Reason::User);
                    let text = format!("this client may act for tenant `{}` only", principal.tenant);
                    Err((Code::NOT_PERMITTED, text))
                }
                _ => Ok(Principal::clone(principal)),
            },
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::User(uid) => write!(f, "user {uid}"),
            Caller::Client(principal, address) => write!(f, "tenant `{}` at {address}", principal.tenant),
        }
    }
}

/// Admits a session, with its memory. `client` is the socket of the client. Also returns the facts
/// for the client.
pub(super) fn begin(
    control: &Control,
    caller: &Caller,
    (hello, terms): (Hello, &str),
    client: OwnedFd,
) -> Result<(EngineBackend, Span, Vec<u8>), Refused> {
    let app = &control.app;
    let terms = Terms::read(terms).map_err(|error| (Code::INVALID_VALUE, error.to_string()))?;
    let tenant = terms.tenant.as_ref().map(|name| name.parse()).transpose();
    let tenant = tenant.map_err(|error: atoll_engine::BadTenant| (Code::INVALID_VALUE, error.to_string()))?;
    let principal = caller.principal(control, tenant)?;
    let class = if terms.is_real_time == Some(true) { Class::RealTime } else { Class::BestEffort };
    principal.may_run(class).map_err(|denial| {
        app.refuse(&denial, &principal, class);
        (Code::NOT_PERMITTED, denial.to_string())
    })?;
    if app.cuda.open.load(Relaxed) > CUDA_SESSIONS_MAX {
        return Err((Code::DEVICE_UNAVAILABLE, format!("all {CUDA_SESSIONS_MAX} sessions are taken")));
    }
    let seat = TenantSession::begin(&app.cuda, &principal.tenant).ok_or_else(|| {
        app.refuse_unknown(Reason::Connections);
        let tenant = &principal.tenant;
        let text = format!("tenant `{tenant}` has {CUDA_SESSIONS_PER_TENANT_MAX} sessions, the most of a tenant");
        (Code::DEVICE_UNAVAILABLE, text)
    })?;
    let (device, capability) = device(app, terms.device.as_deref())?;
    let limits = Limits::of(capability);
    let statistics = app.engine.statistics().into_iter().nth(usize::from(device.0));
    let on_device = statistics.map(|statistics| statistics.device).unwrap_or_default();
    let room = (on_device.memory_total_bytes, capability.is_some());
    let bytes = memory_bytes(&principal, class, room, asked(&hello, &terms));
    let number = app.cuda.begun.fetch_add(1, Relaxed);
    let name = format!("cuda session {number}");
    let device_name = app.engine.devices()[usize::from(device.0)].clone();
    let engine = app.engine.clone();
    let code = SessionCode::begin(
        (control.deployed.clone(), control.warm.clone()),
        engine.clone(),
        &principal.tenant,
        name,
        (class, device_name.clone(), limits.capability),
    );
    let code = code.map_err(|error| (of_kernel(&error), error.to_string()))?;
    let (base, share) = (code.base.clone(), own_share(app, &principal, &code.base, &terms)?);
    let opened = engine.open_memory(&base, bytes + CUDA_VARIABLES_BYTES);
    let session = opened.map_err(|error| (of_task(&error), error.to_string())).inspect_err(|_| {
        share.iter().for_each(|share| {
            engine.remove_share(share);
        });
    })?;
    app.cuda.memory_bytes.fetch_add(bytes, Relaxed);
    let tenant = principal.tenant.clone();
    let live = Live {
        engine,
        principal,
        running: app.running.clone(),
        counts: app.cuda.clone(),
        code,
        session,
        at: Arc::new(AtomicU64::new(session.0)),
        class,
        share,
        client,
    };
    let registry = control.cuda.clone();
    let entry = registry.add((number, bytes), &tenant, live);
    let mut backend = EngineBackend {
        counts: app.cuda.clone(),
        registry,
        entry,
        base,
        memory: Span { at: 0, bytes },
        work: Collected::default(),
        broken: None,
        late: None,
        seat,
        limits,
    };
    // From here on, dropping the backend releases everything. The first task allocates the memory.
    let first = FlushWork::Fill { to: 0, pattern: [0; 8], bytes: bytes.min(8) };
    let began = backend.entry.with(|live| live.submit(vec![first]));
    began.map_err(|error: InvokeError| (of_task(&error), format!("{bytes} bytes of memory: {error}")))?;
    let at = app.engine.memory_address(backend.entry.session());
    backend.memory.at = at.ok_or_else(|| {
        let text = format!(
            "{device_name} does not run CUDA sessions: no memory is reserved for tenants; start the daemon with \
             --tenant-memory"
        );
        (Code::NOT_SUPPORTED, text)
    })?;
    let variables = Span { at: backend.memory.at + bytes, bytes: CUDA_VARIABLES_BYTES };
    backend.entry.with(|live| live.code.set_memory(variables));
    let facts = facts::of_device(&device_name, on_device.compute_units, limits).write();
    let memory = backend.memory;
    tracing::info!(session = %backend.base, device = device_name, bytes, ?class, "CUDA session begins");
    Ok((backend, memory, facts))
}

/// The device of a session, and its compute capability if it is a GPU: the named one, or the first whose
/// compute units are CPU cores, or the first NVIDIA GPU.
fn device(app: &App, name: Option<&str>) -> Result<(DeviceId, Option<u32>), Refused> {
    let (names, traits) = (app.engine.devices(), app.engine.traits());
    let of = |device: DeviceId| traits.get(usize::from(device.0));
    let device = match name {
        Some(name) => device_named(names, name).ok_or_else(|| {
            (Code::INVALID_DEVICE, format!("there is no device `{name}`; there are {}", names.join(", ")))
        })?,
        None => {
            let first = |wanted: fn(&DeviceTraits) -> bool| traits.iter().position(wanted);
            let found = first(|device| device.is_cpu).or_else(|| first(|device| device.capability.is_some()));
            let text = "sessions of a daemon run on host devices and NVIDIA GPUs, and this daemon has neither";
            DeviceId(found.ok_or_else(|| (Code::NO_DEVICE, text.to_owned()))? as u16)
        }
    };
    match of(device) {
        Some(DeviceTraits { is_cpu: false, capability: None, .. }) => {
            let text = format!("{} is neither a host device nor an NVIDIA GPU", names[usize::from(device.0)]);
            Err((Code::NOT_SUPPORTED, text))
        }
        traits => Ok((device, traits.and_then(|traits| traits.capability))),
    }
}

/// The memory in bytes that a session asks for.
fn asked(hello: &Hello, terms: &Terms) -> Option<u64> {
    let asked = terms.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
    asked.or_else(|| (hello.memory_bytes > 0).then_some(hello.memory_bytes))
}

/// The memory of a session in bytes: what it asks for, or else the default, limited to half of its
/// tenant's quota and an eighth of the device. On a GPU, the fence encloses a session's memory, with
/// that for variables, so both together are a power of two. Without a wish, they are at most a 32nd of
/// the device, half of what a tenant gets without a quota.
fn memory_bytes(principal: &Principal, class: Class, (device_bytes, is_gpu): (u64, bool), asked: Option<u64>) -> u64 {
    let quota = principal.limits.device;
    let quota = if class == Class::BestEffort { quota.all.min(quota.best_effort) } else { quota.all };
    let part = if is_gpu { 32 } else { 8 };
    let default = CUDA_BYTES_DEFAULT.min(quota / 2).min(device_bytes / part);
    // Rounded down to whole pages.
    let bytes = asked.unwrap_or(default).clamp(4096, 1 << 42) / 4096 * 4096;
    if !is_gpu {
        return bytes;
    }
    let all = match asked {
        Some(_) => (bytes + CUDA_VARIABLES_BYTES).next_power_of_two(),
        None => 1 << bytes.ilog2(),
    };
    all.max(2 * CUDA_VARIABLES_BYTES) - CUDA_VARIABLES_BYTES
}

/// Sets the share that a session asks for.
fn own_share(
    app: &App,
    principal: &Principal,
    base: &FunctionKey,
    terms: &Terms,
) -> Result<Option<ShareClient>, Refused> {
    let Terms { sm_partition, quota_request, quota_limit, .. } = *terms;
    if [sm_partition, quota_request, quota_limit].iter().all(Option::is_none) {
        return Ok(None);
    }
    // A share reserves a part of the device, as instances do.
    principal.may_operate().or_else(|_| principal.may_lease()).map_err(|denial| {
        app.refuse(&denial, principal, Class::BestEffort);
        (Code::NOT_PERMITTED, denial.to_string())
    })?;
    let request = quota_request.or(quota_limit).unwrap_or(1.0);
    let spec = share(&principal.tenant, sm_partition.unwrap_or(100.0), request, quota_limit.unwrap_or(1.0));
    let spec = spec.map_err(|error| (Code::INVALID_VALUE, error.to_string()))?;
    let client = ShareClient { tenant: principal.tenant.clone(), instance: Some(base.name.clone()) };
    let set = app.engine.set_share(&client, Some(base), spec);
    set.map_err(|error| (Code::DEVICE_UNAVAILABLE, error.to_string()))?;
    Ok(Some(client))
}

/// An open session. It is counted until this is dropped.
pub(super) struct Open(Arc<Counts>);

impl Open {
    pub(super) fn new(counts: Arc<Counts>) -> Open {
        counts.open.fetch_add(1, Relaxed);
        Open(counts)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
