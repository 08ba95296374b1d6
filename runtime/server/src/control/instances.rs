//! Instances: create, resize, remove and list them (`atoll instance`).

use super::Control;
use super::refusal::{OrRefuse, bad_request, panicked};
use super::requests::{Answered, plain};
use crate::graphs::Functions;
use crate::identity::Principal;
use crate::instances::{Instance, client};
use crate::routes::Load;
use crate::threads::{for_client, for_tenant};
use atoll_control::{Answer, InstanceReport, InstanceResize, InstanceSpec, Refusal, ShareArea, ShareEntry};
use atoll_core::packing::TIME;
use atoll_engine::{Class, DeviceStatistics, EngineStatistics, FunctionKey, ShareStatistics, Tenant};
use atoll_fleet::ShareRefusal;
use std::sync::Arc;

impl Control {
    pub(super) async fn create_instance(&self, principal: &Principal, spec: InstanceSpec) -> Answered {
        self.check_operator(principal)?;
        let function = key_of(&spec.function)?;
        let key = FunctionKey { tenant: function.tenant.clone(), name: spec.name };
        let instance = Instance {
            function: function.name,
            class: spec.class,
            sm_partition: spec.sm_partition,
            quota_request: spec.quota_request,
            quota_limit: spec.quota_limit,
            gpu_mem: spec.gpu_mem,
            latency_ms: spec.latency_ms,
            lease: None,
            autoscaled: None,
            device: None,
        };
        let (app, made) = (self.app.clone(), key.clone());
        let create = move || {
            let has_function = app.has_function(&made.tenant, &instance.function);
            app.instances.create(made, instance, has_function).or_refuse()
        };
        for_tenant(&principal.tenant, create).await.ok_or_else(panicked)??;
        self.instance(&key).await
    }

    pub(super) async fn resize_instance(&self, principal: &Principal, resize: InstanceResize) -> Answered {
        self.check_operator(principal)?;
        let InstanceResize { instance, sm_partition, quota_request, quota_limit, gpu_mem, latency_ms } = resize;
        let key = key_of(&instance)?;
        let (app, changed) = (self.app.clone(), key.clone());
        let change = move |instance: &mut Instance| {
            instance.sm_partition = sm_partition.unwrap_or(instance.sm_partition);
            instance.quota_request = quota_request.unwrap_or(instance.quota_request);
            instance.quota_limit = quota_limit.unwrap_or(instance.quota_limit);
            instance.gpu_mem = gpu_mem.or(instance.gpu_mem);
            instance.latency_ms = latency_ms.or(instance.latency_ms);
            // The autoscaler no longer owns an instance that an operator changed.
            instance.autoscaled = None;
        };
        let resize = move || {
            let resized = app.instances.resize(&changed, change).or_refuse();
            app.instances.set_draining(&changed, false);
            resized
        };
        for_tenant(&principal.tenant, resize).await.ok_or_else(panicked)??;
        self.instance(&key).await
    }

    pub(super) async fn remove_instance(&self, principal: &Principal, instance: &str) -> Answered {
        self.check_operator(principal)?;
        let (app, key) = (self.app.clone(), key_of(instance)?);
        for_tenant(&principal.tenant, move || app.instances.remove(&key).or_refuse()).await.ok_or_else(panicked)??;
        plain(Answer::Done)
    }

    pub(super) async fn instances(&self, principal: &Principal) -> Answered {
        let shares = shares(&self.engine_statistics().await?, principal);
        let refusals = self.share_refusals().await?;
        let all = self.app.instances.all().into_iter().filter(|(key, _)| principal.sees(&key.tenant));
        let report =
            |(key, instance): (FunctionKey, Arc<Instance>)| self.instance_report(&key, &instance, &shares, &refusals);
        let mut instances: Vec<InstanceReport> = all.map(report).collect();
        for (tenant, share) in self.app.gate.access().shares().iter().filter(|(tenant, _)| principal.sees(tenant)) {
            instances.push(InstanceReport {
                instance: None,
                tenant: (*tenant).clone(),
                function: None,
                class: None,
                sm_partition: f64::from(share.partition().millionths()) / 1e4,
                quota_request: f64::from(share.request().millionths()) / 1e6,
                quota_limit: f64::from(share.limit().millionths()) / 1e6,
                gpu_mem: None,
                latency_ms: None,
                devices: shares.iter().filter(|e| e.tenant == *tenant && e.instance.is_none()).cloned().collect(),
                requests: 0,
                ended: 0,
                late: 0,
                service_ms: None,
                throughput: None,
                refused: None,
                device: None,
                autoscaled: None,
                draining: false,
            });
        }
        plain(Answer::Instances { instances })
    }

    async fn instance(&self, key: &FunctionKey) -> Answered {
        let statistics = self.engine_statistics().await?;
        let instance = self.app.instances.find(key).ok_or_else(|| bad_request(format!("`{key}` was removed")))?;
        let all = entries(&statistics).collect::<Vec<_>>();
        plain(Answer::Instance(self.instance_report(key, &instance, &all, &self.share_refusals().await?)))
    }

    fn instance_report(
        &self,
        key: &FunctionKey,
        instance: &Instance,
        shares: &[ShareEntry],
        refusals: &[ShareRefusal],
    ) -> InstanceReport {
        let is_its = |entry: &&ShareEntry| entry.tenant == key.tenant && entry.instance.as_ref() == Some(&key.name);
        let function = FunctionKey { tenant: key.tenant.clone(), name: instance.function.clone() };
        let standing = self.app.instances.standing(key, instance);
        let load = self.app.instances.load(key, instance);
        let refusal = refusals.iter().find(|refusal| refusal.client == client(key));
        let refused = refusal.map(|refusal| format!("{}: {}", refusal.device, refusal.reason));
        let is_closed = || instance.device.is_some() && !self.app.engine.holds_share(&client(key));
        let closed = || instance.device.as_ref().map(|device| format!("{device}: it is lost or drained"));
        InstanceReport {
            instance: Some(key.to_string()),
            tenant: key.tenant.clone(),
            function: Some(function.to_string()),
            class: instance.class,
            sm_partition: instance.sm_partition,
            quota_request: instance.quota_request,
            quota_limit: instance.quota_limit,
            gpu_mem: instance.gpu_mem,
            latency_ms: instance.latency_ms,
            devices: shares.iter().filter(is_its).cloned().collect(),
            requests: standing.map_or(0, |standing| standing.in_flight.into()),
            ended: load.as_ref().map_or(0, Load::count_ended),
            late: load.map_or(0, |load| load.late),
            service_ms: standing.and_then(|standing| standing.service_ns).map(|ns| ns as f64 / 1e6),
            throughput: standing.and_then(|standing| standing.throughput).map(|rate| rate as f64 / 1e3),
            refused: refused.or_else(|| closed().filter(|_| is_closed())),
            device: instance.device.clone(),
            autoscaled: instance.autoscaled.clone(),
            draining: self.app.instances.is_draining(key),
        }
    }

    async fn share_refusals(&self) -> Result<Vec<ShareRefusal>, Refusal> {
        let engine = self.app.engine.clone();
        // `share_refusals` takes a lock that is held while a share is set, so it may block.
        for_client(move || engine.share_refusals()).await.ok_or_else(panicked)
    }

    fn check_operator(&self, principal: &Principal) -> Result<(), Refusal> {
        let refuse = |denial: &_| self.app.refuse(denial, principal, Class::BestEffort);
        principal.may_operate().inspect_err(refuse).or_refuse()
    }
}

/// Parses `NAME` or `TENANT:NAME`.
fn key_of(name: &str) -> Result<FunctionKey, Refusal> {
    match name.split_once(':') {
        None => Ok(FunctionKey::local(name)),
        Some((tenant, name)) => {
            let tenant = tenant.parse::<Tenant>().map_err(bad_request)?;
            Ok(FunctionKey { tenant, name: name.into() })
        }
    }
}

/// The shares of clients, with the time that they received, of the tenants that a principal sees.
pub(super) fn shares(statistics: &[EngineStatistics], principal: &Principal) -> Vec<ShareEntry> {
    entries(statistics).filter(|entry| principal.sees(&entry.tenant)).collect()
}

fn entries(statistics: &[EngineStatistics]) -> impl Iterator<Item = ShareEntry> {
    statistics.iter().flat_map(|engine| engine.shares.iter().map(|share| entry(&engine.device, share)))
}

fn entry(device: &DeviceStatistics, share: &ShareStatistics) -> ShareEntry {
    let part = |time: u32| f64::from(time) / f64::from(TIME);
    ShareEntry {
        device: device.name.clone(),
        compute_units: device.compute_units,
        granted: f64::from(share.granted.millionths()) / 1e6,
        area: share.area.map(|area| ShareArea {
            first_unit: area.y,
            units: area.h,
            time_from: part(area.x),
            time: part(area.w),
        }),
        unbound: share.unbound.clone(),
        received_unit_s: share.received_unit_ns as f64 / 1e9,
        tenant: share.client.tenant.clone(),
        instance: share.client.instance.clone(),
        promised: f64::from(share.share.request().millionths()) / 1e6,
        received: share.received_ratio,
        error_max: share.error_max,
        p99_overshoot_us: share.overshoot.quantile_ns(0.99) as f64 / 1e3,
        received_s: share.received_ns as f64 / 1e9,
        tokens: share.tokens,
        recalls: share.recalls,
    }
}
