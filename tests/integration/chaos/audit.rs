//! Invariants of an idle daemon: nothing runs, no resource is leaked, usage adds up, and promises
//! are kept.

use super::books::Promise;
use super::crowd::Shared;
use super::house::{HOSTILE, Holdings, House};
use crate::executors::wait_until;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Digest, ProcessReport, UsageEntry, UsageReport};
use std::collections::{BTreeMap, BTreeSet};

/// Memory files of objects. They are counted separately: one for each object in memory.
const OBJECT_FILES: [&str; 2] = ["/memfd:atoll-object", "/memfd:atoll-control"];

/// Holdings of an idle daemon with everything deployed and every executor running.
#[derive(Clone, Debug)]
pub(super) struct Idle {
    holdings: Holdings,
    constants: u64,
    executors: f64,
}

impl Idle {
    pub(super) fn of(house: &House) -> Result<Idle> {
        let (usage, metrics) = (house.usage()?, house.metrics()?);
        Ok(Idle {
            holdings: without_objects(house.holdings()?),
            constants: memory(&usage, "constants"),
            executors: executors(&metrics)?,
        })
    }
}

fn without_objects(mut holdings: Holdings) -> Holdings {
    holdings.descriptors.retain(|kind, _| !OBJECT_FILES.contains(&kind.as_str()));
    holdings.segments.retain(|kind, _| !OBJECT_FILES.contains(&kind.as_str()));
    holdings
}

fn executors(metrics: &BTreeMap<String, f64>) -> Result<f64> {
    metrics.get("atoll_executors").copied().context("executors are counted")
}

fn memory(usage: &UsageReport, kind: &str) -> u64 {
    usage.rows.iter().filter_map(|row| row.memory.get(kind)).map(|memory| memory.bytes).sum()
}

/// Waits until a check succeeds; returns its last error otherwise.
fn wait_for(mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = Ok(());
    let waited = wait_until("as it was", || {
        last = check();
        Ok(last.is_ok())
    });
    waited.map_err(|error| last.err().unwrap_or(error))
}

/// Checks that the daemon is idle and holds no more than an idle daemon.
pub(super) fn is_idle(house: &House, idle: &Idle) -> Result<()> {
    wait_for(|| {
        let (report, usage) = (house.processes()?, house.usage()?);
        check_ledger(&report, &usage)?;
        let constants = memory(&usage, "constants");
        ensure!(constants == idle.constants, "{constants} bytes of constants are held, {} were", idle.constants);
        let are_all_there = executors(&house.metrics()?)? == idle.executors;
        check_holdings(&without_objects(house.holdings()?), &idle.holdings, are_all_there)
    })
}

fn check_ledger(report: &ProcessReport, usage: &UsageReport) -> Result<()> {
    ensure!(report.lost.is_none(), "the device is lost: {:?}", report.lost);
    for function in &report.functions {
        ensure!(function.running == 0 && function.waiting == 0, "an invocation is left: {function:?}");
    }
    ensure!(memory(usage, "invocations") == 0, "invocations hold memory: {:?}", usage.rows);
    let billed: u64 = usage.rows.iter().flat_map(|row| row.memory.values()).map(|memory| memory.bytes).sum();
    ensure!(billed == report.memory_used_bytes, "{billed} bytes are on bills, {} are in use", report.memory_used_bytes);
    Ok(())
}

/// Missing executors mean missing descriptors; surplus ones are an error.
fn check_holdings(now: &Holdings, idle: &Holdings, are_all_there: bool) -> Result<()> {
    for (now, idle, what) in
        [(&now.descriptors, &idle.descriptors, "descriptors"), (&now.segments, &idle.segments, "shared segments")]
    {
        if are_all_there {
            ensure!(now == idle, "{what}: {now:?}, idle {idle:?}");
        }
        let surplus: Vec<_> =
            now.iter().filter(|(kind, count)| idle.get(*kind).is_none_or(|idle| *count > idle)).collect();
        ensure!(surplus.is_empty(), "{what} are left behind: {surplus:?} of {idle:?}");
    }
    Ok(())
}

/// Checks that the daemon counted what clients were told, and that every executed block is on one
/// bill.
pub(super) fn bills_add_up(house: &House, shared: &Shared, generation: u64) -> Result<()> {
    let usage = house.usage()?;
    let mut tenants: BTreeMap<String, Vec<&UsageEntry>> = BTreeMap::new();
    usage.rows.iter().for_each(|row| tenants.entry(row.tenant.to_string()).or_default().push(row));
    for (tenant, rows) in tenants {
        let counted: u64 = rows.iter().filter_map(|row| row.invocations.get("success")).sum();
        let calls = shared.books().calls(generation, &tenant);
        let known = calls.right..=calls.right + calls.unknown;
        ensure!(
            known.contains(&counted),
            "{tenant} has {counted} results by the daemon's count, {known:?} by that of its clients"
        );
    }
    // What a hostile executor claims of its own work need not be true.
    let (hostile, others): (Vec<_>, Vec<_>) = usage.rows.iter().partition(|row| row.tenant.as_str() == HOSTILE);
    let is_honest = hostile.iter().all(|row| row.invocations.values().all(|count| *count == 0));
    let billed: f64 = others.iter().map(|row| row.device_s).sum();
    let busy = usage.device_s.context("the device's own count")?;
    // The work of launches that were lost with an executor is on no bill.
    let lost = house
        .metrics()?
        .iter()
        .filter(|(name, _)| name.starts_with("atoll_executor_losses_total"))
        .map(|(_, count)| count)
        .sum::<f64>();
    let is_right = if lost == 0.0 && is_honest { (billed - busy).abs() < 1e-6 } else { billed <= busy + 1e-6 };
    ensure!(is_right, "{billed} s are billed, the device was busy for {busy} s");
    Ok(())
}

/// Checks that promised objects and functions exist with their contents, removed ones do not, and
/// the files match the index. Removes objects of dead clients.
pub(super) fn promises_are_kept(house: &House, shared: &Shared, is_alive: impl Fn(u32) -> bool) -> Result<()> {
    let tenants: BTreeSet<&str> = House::functions().map(|(tenant, _)| tenant).collect();
    // Checked when no client is reading, since reading moves objects into and out of memory. Two
    // tenants may have the same object.
    let in_memory = || -> Result<usize> {
        let mut digests = BTreeSet::new();
        for tenant in &tenants {
            let listed = house.client(tenant)?.objects()?;
            digests
                .extend(listed.into_iter().filter(|object| object.in_memory).map(|object| object.digest.to_string()));
        }
        Ok(digests.len())
    };
    let (mut objects, mut bundles) = (BTreeSet::new(), BTreeSet::new());
    for &tenant in &tenants {
        let own = House::functions().filter(|(owner, _)| *owner == tenant).map(|(_, function)| function);
        check_functions(house, shared, tenant, &own.collect::<Vec<_>>())?;
        check_objects(house, shared, tenant, &is_alive)?;
        let mut client = house.client(tenant)?;
        bundles.extend(client.functions()?.into_iter().map(|function| format!("{}.kg", function.bundle)));
        for object in client.objects()? {
            objects.insert(object.digest.to_string());
        }
    }
    ensure!(house.stored("objects")? == objects, "files {:?}, objects {objects:?}", house.stored("objects")?);
    ensure!(house.stored("functions")? == bundles, "files {:?}, functions {bundles:?}", house.stored("functions")?);
    wait_for(|| {
        let open = house.holdings()?.descriptors;
        let files: usize = OBJECT_FILES.iter().filter_map(|kind| open.get(*kind)).sum();
        let in_memory = in_memory()?;
        ensure!(files == in_memory, "{files} memory files of {in_memory} objects: {open:?}");
        Ok(())
    })
}

fn check_functions(house: &House, shared: &Shared, tenant: &str, own: &[&str]) -> Result<()> {
    let mut client = house.client(tenant)?;
    let there: BTreeSet<String> = client.functions()?.into_iter().map(|function| function.name).collect();
    if let Some(missing) = own.iter().find(|name| !there.contains(**name)) {
        bail!("function `{missing}` of {tenant} is gone");
    }
    for function in client.functions()? {
        ensure!(function.failure.is_none(), "{tenant}: {function:?}");
    }
    let promises = std::mem::take(&mut shared.books().functions);
    let (ours, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        promises.into_iter().partition(|((owner, _), _)| owner == tenant);
    shared.books().functions = others;
    for (key, promise) in &ours {
        ensure!(*promise == Promise::Unknown || there.contains(&key.1), "function `{}` of {tenant} is gone", key.1);
    }
    for name in there.iter().filter(|name| !own.contains(&name.as_str())) {
        ensure!(
            ours.contains_key(&(tenant.to_owned(), name.clone())),
            "function `{name}` of {tenant} was removed, but exists"
        );
        client.remove_function(name)?;
    }
    Ok(())
}

fn check_objects(house: &House, shared: &Shared, tenant: &str, is_alive: &impl Fn(u32) -> bool) -> Result<()> {
    let mut client = house.client(tenant)?;
    let there: BTreeSet<Digest> = client.objects()?.into_iter().map(|object| object.digest).collect();
    let promises: Vec<(Digest, Promise)> = shared
        .books()
        .objects
        .iter()
        .filter(|((owner, _), _)| owner == tenant)
        .map(|((_, digest), promise)| (*digest, *promise))
        .collect();
    let known: BTreeSet<Digest> = promises.iter().map(|(digest, _)| *digest).collect();
    if let Some(surplus) = there.difference(&known).next() {
        bail!("object {surplus} of {tenant} was removed, but exists");
    }
    for (digest, promise) in promises {
        ensure!(promise == Promise::Unknown || there.contains(&digest), "object {digest} of {tenant} is gone");
        if there.contains(&digest) {
            let found = Digest::of(&client.get(digest)?.bytes);
            ensure!(found == digest, "object {digest} of {tenant} holds what {found} should");
        }
        if matches!(promise, Promise::Kept(salt) if is_alive(salt)) {
            continue;
        }
        if there.contains(&digest) {
            client.remove_object(digest)?;
        }
        shared.books().objects.remove(&(tenant.to_owned(), digest));
    }
    Ok(())
}

/// All objects.
fn objects(house: &House) -> Result<Vec<(String, Digest)>> {
    let tenants: BTreeSet<&str> = House::functions().map(|(tenant, _)| tenant).collect();
    let mut objects = Vec::new();
    for tenant in tenants {
        objects.extend(house.client(tenant)?.objects()?.into_iter().map(|object| (tenant.to_owned(), object.digest)));
    }
    Ok(objects)
}

/// Removes everything, and checks that no memory remains in use.
pub(super) fn everything_can_be_removed(house: &House, empty: &Holdings) -> Result<()> {
    for (tenant, digest) in objects(house)? {
        house.client(&tenant)?.remove_object(digest)?;
    }
    for (tenant, function) in House::functions() {
        house.client(tenant)?.remove_function(function)?;
    }
    let (status, body) =
        atoll_tests::http::ask(&house.daemon.http, "POST", "/v2/repository/models/model/unload", "{}")?;
    ensure!(status == 200, "{body}");
    wait_for(|| {
        let (report, usage) = (house.processes()?, house.usage()?);
        check_ledger(&report, &usage)?;
        ensure!(report.memory_used_bytes == 0 && report.functions.is_empty(), "{report:?}");
        // Only the daemon's own executor remains.
        let left = executors(&house.metrics()?)?;
        ensure!(left <= 1.0, "{left} executors run nothing");
        // The model of the repository was loaded from the start.
        check_holdings(&house.holdings()?, empty, false)
    })
}
