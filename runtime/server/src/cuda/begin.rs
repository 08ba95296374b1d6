//! Admission of a session.

use super::backend::{Collected, EngineBackend};
use super::code::SessionCode;
use super::counts::{Counts, TenantSession};
use super::errors::{of_kernel, of_task};
use super::facts;
use super::live::Live;
use crate::app::App;
use crate::control::Control;
use crate::identity::{Principal, Reason};
use crate::instances::share;
use crate::limits::{CUDA_BYTES_DEFAULT, CUDA_SESSIONS_MAX, CUDA_SESSIONS_PER_TENANT_MAX, CUDA_VARIABLES_BYTES};
use atoll_engine::{Class, DeviceId, FlushWork, FunctionKey, InvokeError, ShareClient, Tenant};
use atoll_fleet::device_named;
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
    let device = device(app, terms.device.as_deref())?;
    let statistics = app.engine.statistics().into_iter().nth(usize::from(device.0));
    let on_device = statistics.map(|statistics| statistics.device).unwrap_or_default();
    let bytes = memory_bytes(&principal, class, on_device.memory_total_bytes, (&hello, &terms));
    let number = app.cuda.begun.fetch_add(1, Relaxed);
    let name = format!("cuda session {number}");
    let device_name = app.engine.devices()[usize::from(device.0)].clone();
    let engine = app.engine.clone();
    let code = SessionCode::begin(
        (control.deployed.clone(), control.warm.clone()),
        engine.clone(),
        &principal.tenant,
        name,
        (class, device_name.clone()),
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
    };
    // From here on, dropping the backend releases everything. The first task allocates the memory.
    let first = FlushWork::Fill { to: 0, pattern: [0; 8], bytes: bytes.min(8) };
    let began = backend.entry.with(|live| live.submit(vec![first]));
    began.map_err(|error: InvokeError| (of_task(&error), format!("{bytes} bytes of memory: {error}")))?;
    let at = app.engine.memory_address(backend.entry.session());
    backend.memory.at = at.ok_or_else(|| {
        let text = format!("{device_name} does not run CUDA sessions: it does not know the addresses of its memory");
        (Code::NOT_SUPPORTED, text)
    })?;
    let variables = Span { at: backend.memory.at + bytes, bytes: CUDA_VARIABLES_BYTES };
    backend.entry.with(|live| live.code.set_memory(variables));
    let facts = facts::of_device(&device_name, on_device.compute_units).write();
    let memory = backend.memory;
    tracing::info!(session = %backend.base, device = device_name, bytes, ?class, "CUDA session begins");
    Ok((backend, memory, facts))
}

/// The device of a session: the named one, or the first whose compute units are CPU cores.
fn device(app: &App, name: Option<&str>) -> Result<DeviceId, Refused> {
    let names = app.engine.devices();
    let is_cpu = |device: &DeviceId| app.engine.traits().get(usize::from(device.0)).is_some_and(|t| t.is_cpu);
    match name {
        Some(name) => device_named(names, name).ok_or_else(|| {
            (Code::INVALID_DEVICE, format!("there is no device `{name}`; there are {}", names.join(", ")))
        }),
        None => (0..names.len()).map(|at| DeviceId(at as u16)).find(is_cpu).ok_or_else(|| {
            let text = "sessions of a daemon run on host devices, and this daemon has none; use `atoll run --listen`";
            (Code::NO_DEVICE, text.to_owned())
        }),
    }
}

/// The memory of a session in bytes: what it asks for, or else the default, limited to half of its
/// tenant's quota and an eighth of the device.
fn memory_bytes(principal: &Principal, class: Class, device_bytes: u64, (hello, terms): (&Hello, &Terms)) -> u64 {
    let quota = principal.limits.device;
    let quota = if class == Class::BestEffort { quota.all.min(quota.best_effort) } else { quota.all };
    let asked = terms.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
    let asked = asked.or_else(|| (hello.memory_bytes > 0).then_some(hello.memory_bytes));
    // Rounded down to whole pages.
    asked.unwrap_or(CUDA_BYTES_DEFAULT.min(quota / 2).min(device_bytes / 8)).clamp(4096, 1 << 42) / 4096 * 4096
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
