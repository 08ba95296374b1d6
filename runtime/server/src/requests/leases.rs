//! Requests for leases and capacity, for all protocols.

use crate::app::App;
use crate::control::devices::report;
use crate::graphs::Functions;
use crate::identity::Principal;
use crate::inference::blocking;
use crate::latency::{BOUNDS, bound_ns};
use crate::leases::{Home, LeaseError, Leases, Target};
use crate::limits::LEASE_TICK;
use atoll_control::{CapacityReport, DeviceCapacity, FreeShare, LeaseHold, LeaseReport, LeaseSpec};
use atoll_engine::{Class, FunctionKey, Tenant};
use serde::Serialize;
use std::sync::Arc;
use tokio::time::MissedTickBehavior;

/// The capacity of each device, and the part of it that leases have.
pub(crate) async fn capacity(app: &Arc<App>, caller: &Principal) -> Result<CapacityReport, LeaseError> {
    may_lease(app, caller)?;
    on(app, |app, leases| {
        let devices = report(&app.statistics(), &app.engine.devices_state(), false).devices;
        let promised = leases.promised(&app.instances);
        let count = promised.iter().map(|promised| promised.leases).sum();
        let devices = devices.into_iter().zip(promised).map(|(device, promised)| DeviceCapacity {
            device: device.device,
            state: device.state,
            compute_units: device.compute_units,
            promised_sm_pct: promised.sm_pct,
            free: promised
                .free
                .iter()
                .flat_map(|free| &free.rects)
                .map(|rect| FreeShare { sm_partition: f64::from(rect.h), quota: f64::from(rect.w) / 100.0 })
                .collect(),
            memory_bytes: promised.capacity.memory_bytes,
            promised_memory_bytes: promised.memory_bytes,
            real_time_slots: promised.capacity.real_time_slots,
            promised_real_time_slots: promised.real_time_slots,
        });
        Ok(CapacityReport { leases: count, devices: devices.collect() })
    })
    .await
}

/// The requests of a lease's instance since the grant, or since the daemon's last start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LeaseLoad {
    lease: u64,
    instance: String,
    /// Requests that were given to the instance.
    begun: u64,
    /// Those of them that have not ended.
    in_flight: u32,
    /// Device time of a request, as a mean, in nanoseconds; `None` before the first one has ended.
    service_ns: Option<u64>,
    /// Those that have ended, by the time that each took.
    ended: Vec<Ended>,
}

/// Requests that took more than `over_ns` and at most `up_to_ns` nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Ended {
    over_ns: u64,
    /// `None` without a limit.
    up_to_ns: Option<u64>,
    requests: u64,
}

impl Ended {
    fn of(bucket: usize, requests: u64) -> Ended {
        let over_ns = bucket.checked_sub(1).map_or(0, bound_ns);
        Ended { over_ns, up_to_ns: (bucket < BOUNDS).then(|| bound_ns(bucket)), requests }
    }
}

/// The load of each lease that the caller may see.
pub(crate) async fn load(app: &Arc<App>, caller: &Principal) -> Result<Vec<LeaseLoad>, LeaseError> {
    let caller = caller.clone();
    on(app, move |app, leases| {
        let of = |lease: LeaseReport| {
            let key = FunctionKey { tenant: lease.tenant, name: lease.instance };
            let instance = app.instances.find(&key)?;
            let load = app.instances.load(&key, &instance)?;
            let standing = app.instances.standing(&key, &instance);
            let counts = load.ended.into_iter().flat_map(|ended| ended.counts);
            Some(LeaseLoad {
                lease: lease.lease,
                instance: key.name,
                begun: load.begun,
                in_flight: standing.map_or(0, |standing| standing.in_flight),
                service_ns: standing.and_then(|standing| standing.service_ns),
                ended: counts.map(|(bucket, requests)| Ended::of(bucket, requests)).collect(),
            })
        };
        Ok(leases.list(&caller).into_iter().filter_map(of).collect())
    })
    .await
}

/// Grants a lease of a function of the caller's tenant.
pub(crate) async fn grant(app: &Arc<App>, caller: &Principal, spec: LeaseSpec) -> Result<LeaseReport, LeaseError> {
    may_lease(app, caller)?;
    let caller = caller.clone();
    on(app, move |app, leases| {
        let target = target(app, &caller, &spec.function)?;
        let class = spec.class.unwrap_or(target.class);
        caller.may_run(class).inspect_err(|denial| app.refuse(denial, &caller, class))?;
        leases.grant(&app.instances, &spec, &target)
    })
    .await
}

/// Extends a lease by its time to live.
pub(crate) async fn renew(app: &Arc<App>, caller: &Principal, hold: LeaseHold) -> Result<LeaseReport, LeaseError> {
    may_lease(app, caller)?;
    let (caller, arrived) = (caller.clone(), app.leases.as_ref().map(Leases::arrive));
    on(app, move |app, leases| {
        let renewed = leases.renew(&app.instances, &caller, &hold);
        drop(arrived);
        renewed
    })
    .await
}

/// Gives a lease to another holder.
pub(crate) async fn take_over(app: &Arc<App>, caller: &Principal, hold: LeaseHold) -> Result<LeaseReport, LeaseError> {
    may_lease(app, caller)?;
    let caller = caller.clone();
    on(app, move |app, leases| leases.take_over(&app.instances, &caller, &hold)).await
}

/// Ends a lease.
pub(crate) async fn release(app: &Arc<App>, caller: &Principal, hold: LeaseHold) -> Result<(), LeaseError> {
    may_lease(app, caller)?;
    let caller = caller.clone();
    on(app, move |app, leases| leases.release(&app.instances, &caller, &hold)).await
}

/// The leases that the caller may see.
pub(crate) async fn list(app: &Arc<App>, caller: &Principal) -> Result<Vec<LeaseReport>, LeaseError> {
    let caller = caller.clone();
    on(app, move |_, leases| Ok(leases.list(&caller))).await
}

/// Ends expired leases at an interval. Never returns.
pub(crate) async fn follow(app: &Arc<App>) {
    let mut ticks = tokio::time::interval(LEASE_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Ignores the error of a daemon without a store, which has no leases. The panic hook has
        // reported a panic.
        let _ = on(app, |app, leases| {
            leases.tick(&app.instances, |function| home(app, function));
            Ok(())
        })
        .await;
    }
}

/// The devices of a function.
fn home(app: &App, function: &FunctionKey) -> Home {
    match app.function_model(function) {
        Ok(model) => Home::On(model.devices.clone()),
        // While the daemon starts, models of the repository appear one after the other, so a
        // missing one counts as loading.
        Err(_) if app.has_loaded() && !app.has_function(&function.tenant, &function.name) => Home::Gone,
        Err(_) => Home::Loading,
    }
}

fn may_lease(app: &App, caller: &Principal) -> Result<(), LeaseError> {
    Ok(caller.may_lease().inspect_err(|denial| app.refuse(denial, caller, Class::BestEffort))?)
}

/// Runs blocking work on the leases.
async fn on<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App, &Leases) -> Result<T, LeaseError> + Send + 'static,
) -> Result<T, LeaseError> {
    let app = app.clone();
    let run = move || work(&app, app.leases.as_ref().ok_or(LeaseError::NoStore)?);
    blocking(run).await.unwrap_or(Err(LeaseError::Panicked))
}

/// Finds the function that a request for a lease names: `NAME` of the caller's tenant, or
/// `TENANT:NAME` if the caller sees that tenant. The function has to be on exactly one device,
/// which is the device of the lease.
fn target(app: &App, caller: &Principal, name: &str) -> Result<Target, LeaseError> {
    let unknown = || LeaseError::NoFunction(name.chars().take(256).flat_map(char::escape_debug).collect());
    let key = match name.split_once(':') {
        None => FunctionKey { tenant: caller.tenant.clone(), name: name.into() },
        Some((tenant, name)) => {
            let tenant: Tenant = tenant.parse().map_err(|_| unknown())?;
            FunctionKey { tenant, name: name.into() }
        }
    };
    if !caller.sees(&key.tenant) || !app.has_function(&key.tenant, &key.name) {
        return Err(unknown());
    }
    let not_ready = |reason: String| LeaseError::NotReady { function: key.to_string(), reason };
    let model = app.function_model(&key).map_err(not_ready)?;
    let [device] = model.devices[..] else {
        let names: Vec<&str> = model.on_its_devices(app.engine.devices()).map(String::as_str).collect();
        return Err(LeaseError::Bad(format!(
            "function `{key}` is on {}, but a lease needs one device; deploy the function with --device for each, \
             under a name for each",
            names.join(" and ")
        )));
    };
    Ok(Target { tenant: key.tenant.clone(), function: key.name.clone(), class: model.class(), device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_ended_requests_follow_each_other() {
        assert_eq!(Ended::of(0, 3), Ended { over_ns: 0, up_to_ns: Some(bound_ns(0)), requests: 3 });
        for bucket in 1..BOUNDS {
            assert_eq!(Some(Ended::of(bucket, 1).over_ns), Ended::of(bucket - 1, 1).up_to_ns);
        }
        let last = Ended::of(BOUNDS, 1);
        assert_eq!((last.over_ns, last.up_to_ns), (bound_ns(BOUNDS - 1), None));
    }
}
