//! Sessions of CUDA programs: list, suspend and resume them (`atoll session`).

use super::Control;
use super::refusal::{OrRefuse, bad_request, panicked};
use super::requests::{Answered, plain};
use crate::app::App;
use crate::cuda::Entry;
use crate::identity::Principal;
use crate::limits::CUDA_SUSPEND_TIME;
use crate::threads::for_tenant;
use atoll_control::{Answer, CudaSessionReport, CudaSessionState, Refusal, RefusalKind};
use atoll_engine::{MemorySession, SessionPlace};
use atoll_fleet::device_named;
use std::sync::Arc;

impl Control {
    pub(super) async fn cuda_sessions(&self, principal: &Principal) -> Answered {
        let entries: Vec<_> = self.cuda.list().into_iter().filter(|entry| principal.sees(&entry.tenant)).collect();
        let app = self.app.clone();
        let reports = move || {
            let places = app.engine.memory_sessions();
            entries.iter().map(|entry| report(&app, entry, &places)).collect()
        };
        plain(Answer::CudaSessions { sessions: for_tenant(&principal.tenant, reports).await.ok_or_else(panicked)? })
    }

    pub(super) async fn suspend_cuda_session(&self, principal: &Principal, number: u64) -> Answered {
        let (entry, app) = (self.cuda_session(principal, number)?, self.app.clone());
        let suspend = move || {
            app.engine.suspend_session(entry.session(), CUDA_SUSPEND_TIME).or_refuse()?;
            Ok::<_, Refusal>(report(&app, &entry, &app.engine.memory_sessions()))
        };
        plain(Answer::CudaSession(for_tenant(&principal.tenant, suspend).await.ok_or_else(panicked)??))
    }

    pub(super) async fn resume_cuda_session(
        &self,
        principal: &Principal,
        number: u64,
        device: Option<&str>,
    ) -> Answered {
        let (entry, app) = (self.cuda_session(principal, number)?, self.app.clone());
        let names = app.engine.devices();
        let named = |name: &str| {
            let unknown = || bad_request(format!("there is no device `{name}`; there are {}", names.join(", ")));
            device_named(names, name).ok_or_else(unknown)
        };
        let device = device.map(named).transpose()?;
        let resume = move || {
            entry.resume(device).or_refuse()?;
            Ok::<_, Refusal>(report(&app, &entry, &app.engine.memory_sessions()))
        };
        plain(Answer::CudaSession(for_tenant(&principal.tenant, resume).await.ok_or_else(panicked)??))
    }

    /// A session that the principal sees.
    fn cuda_session(&self, principal: &Principal, number: u64) -> Result<Arc<Entry>, Refusal> {
        let entry = self.cuda.find(number).filter(|entry| principal.sees(&entry.tenant));
        entry.ok_or_else(|| Refusal {
            kind: RefusalKind::NotFound,
            message: format!("there is no session {number}; `atoll session ls` lists the sessions"),
        })
    }
}

fn report(app: &App, entry: &Entry, places: &[MemorySession]) -> CudaSessionReport {
    let (session, device) = (entry.session(), entry.device());
    let place = places.iter().find(|known| known.session == session).map(|known| known.place);
    let (state, idle_ns) = match place {
        Some(SessionPlace::Device { idle_ns: Some(idle_ns) }) => (CudaSessionState::Idle, Some(idle_ns)),
        Some(SessionPlace::Leaving) => (CudaSessionState::Suspending, None),
        Some(SessionPlace::Host) => (CudaSessionState::Suspended, None),
        // Without memory, its first work is running.
        Some(SessionPlace::Device { idle_ns: None }) | None => (CudaSessionState::Running, None),
    };
    let stored = entry.stored();
    CudaSessionReport {
        session: entry.number,
        tenant: entry.tenant.clone(),
        class: entry.class,
        device: app.engine.devices().get(usize::from(device.0)).cloned().unwrap_or_default(),
        memory_bytes: entry.bytes,
        state,
        idle_s: idle_ns.map(|ns| ns as f64 / 1e9),
        stored_functions: stored.functions,
        stored_calls: stored.calls,
        stored_differences: stored.differences,
    }
}
