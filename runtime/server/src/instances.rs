//! Instances of functions: named shares under which requests run.
//!
//! An instance belongs to a function and its tenant. All instances of a function use the same
//! constants. Instances are kept in the store and restored after a restart. The fleet decides on
//! which devices their shares apply.

mod route;
#[cfg(test)]
mod tests;

use crate::limits::SCALING_MS_MAX;
use crate::names::{BadName, check_name};
use crate::routes::{Load, Routed, Routes, Urgency};
use atoll_core::routing::{Choice, Standing};
use atoll_engine::{
    Class, DeviceId, EngineError, FunctionKey, InstanceMemory, ShareClient, ShareError, ShareRequest, ShareSpec, Tenant,
};
use atoll_fleet::{Inference, device_named};
use atoll_store::{DeploymentKey, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// An instance, as it is kept in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Instance {
    /// The name of its function, which belongs to the same tenant.
    pub(crate) function: String,
    /// The class of requests that state no class; `None` for that of the function.
    pub(crate) class: Option<Class>,
    /// Compute units of the device, in percent.
    pub(crate) sm_partition: f64,
    /// The fraction of the device's time that it gets whenever it has work, and the upper limit of
    /// that fraction.
    pub(crate) quota_request: f64,
    pub(crate) quota_limit: f64,
    /// Device memory for its requests and its part of the function's constants, in bytes.
    pub(crate) gpu_mem: Option<u64>,
    /// The target latency of its requests, in milliseconds.
    #[serde(default)]
    pub(crate) latency_ms: Option<u64>,
    /// The lease that it belongs to; `None` for one that an operator or the autoscaler created. The
    /// record of the lease contains the instance, so the store does not keep it as an instance.
    #[serde(skip)]
    pub(crate) lease: Option<Leased>,
    /// Why the autoscaler created it or changed its size; `None` if an operator created or last
    /// changed it.
    #[serde(default)]
    pub(crate) autoscaled: Option<String>,
    /// The device that it is on, by its name, because devices may have other numbers after a
    /// restart; `None` if it is on all devices of its function.
    #[serde(default)]
    pub(crate) device: Option<String>,
}

/// The properties of a lease that its instance needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    /// Real-time slots. With 0 it takes no real-time requests.
    pub(crate) real_time_slots: u32,
}

/// The prefix of the names of instances of leases. Other instances must not have it.
pub(crate) const LEASE_PREFIX: &str = "lease-";

/// Why an instance is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstanceError {
    #[error("{0}")]
    Name(#[from] BadName),
    #[error("there is an instance `{0}` already; change it with `atoll instance resize`, or choose another name")]
    Exists(String),
    #[error("instance `{0}` belongs to a lease; `atoll lease release` ends it, and a new lease may have other values")]
    Leased(String),
    #[error("`{0}`: names that begin with {LEASE_PREFIX} are reserved for leases; choose another name")]
    Reserved(String),
    #[error("there is no function `{0}`; `atoll fn ls` and `atoll ps` list the functions")]
    NoFunction(FunctionKey),
    #[error("there is no instance `{0}`; `atoll instance ls` lists the instances")]
    Unknown(String),
    #[error("{0}")]
    Share(ShareError),
    #[error("a target latency_ms of {0}; 1 to {SCALING_MS_MAX}, a day, are possible")]
    Latency(u64),
    #[error("there is no place for an instance of `{function}`: {reason}")]
    NoPlace { function: FunctionKey, reason: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Engine(EngineError),
}

impl From<EngineError> for InstanceError {
    fn from(error: EngineError) -> InstanceError {
        match error {
            EngineError::Share(error) => InstanceError::Share(error),
            other => InstanceError::Engine(other),
        }
    }
}

/// All instances.
pub(crate) struct Instances {
    store: Option<Arc<Store>>,
    engine: Arc<dyn Inference>,
    all: RwLock<BTreeMap<FunctionKey, Arc<Instance>>>,
    /// Load and speed of instances, by which requests that name no instance are routed.
    routes: Arc<Routes>,
    /// Instances that will be removed when their requests have ended. They get no new requests.
    draining: RwLock<BTreeSet<FunctionKey>>,
    /// Held while an instance changes. The change may block, and readers of `all` must not wait for
    /// it.
    change: Mutex<()>,
}

impl Instance {
    /// Its share, checked.
    pub(crate) fn share(&self, tenant: &Tenant) -> Result<ShareSpec, ShareError> {
        share(tenant, self.sm_partition, self.quota_request, self.quota_limit)
    }

    /// Its share and its target latency, checked.
    fn checked(&self, tenant: &Tenant) -> Result<ShareSpec, InstanceError> {
        match self.latency_ms {
            Some(ms) if !(1..=SCALING_MS_MAX).contains(&ms) => Err(InstanceError::Latency(ms)),
            _ => self.share(tenant).map_err(InstanceError::Share),
        }
    }

    /// The target latency of its requests.
    fn target(&self) -> Option<Duration> {
        self.latency_ms.map(Duration::from_millis)
    }

    /// Whether it serves requests of this class. The instance of a lease serves real-time requests
    /// only if the lease has a slot.
    pub(crate) fn serves(&self, class: Class) -> bool {
        class == Class::BestEffort || self.lease.is_none_or(|lease| lease.real_time_slots > 0)
    }
}

/// A checked share. Time that a client does not use is lent to other clients of its tenant first.
pub(crate) fn share(
    tenant: &Tenant,
    sm_partition: f64,
    quota_request: f64,
    quota_limit: f64,
) -> Result<ShareSpec, ShareError> {
    // FNV-1a. If the hashes of two tenants collide, they lend to each other first, which is
    // harmless.
    let group =
        tenant.as_str().bytes().fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ShareSpec::new(&ShareRequest { sm_partition, quota_request, quota_limit, group })
}

/// The function of an instance.
fn function_of(key: &FunctionKey, instance: &Instance) -> FunctionKey {
    FunctionKey { tenant: key.tenant.clone(), name: instance.function.clone() }
}

/// The client of the engine that stands for an instance.
pub(crate) fn client(key: &FunctionKey) -> ShareClient {
    ShareClient { tenant: key.tenant.clone(), instance: Some(key.name.clone()) }
}

/// Binds an instance of the autoscaler that an older version stored without a device.
///
/// # Errors
/// If there are several devices. The autoscaler counts an instance as one on a single device.
fn on_one_device(mut instance: Instance, devices: &[String]) -> Result<Instance, String> {
    if instance.autoscaled.is_some() && instance.device.is_none() {
        let [only] = devices else { return Err("an older version created it on all devices".into()) };
        instance.device = Some(only.clone());
    }
    Ok(instance)
}

/// Sets the share of an instance on its devices.
fn hold(engine: &dyn Inference, key: &FunctionKey, instance: &Instance, share: ShareSpec) -> Result<(), EngineError> {
    let (client, function) = (client(key), function_of(key, instance));
    let Some(name) = &instance.device else { return engine.set_share(&client, Some(&function), share) };
    let unknown = || EngineError::UnknownDevice { name: name.clone(), known: engine.devices().join(", ") };
    let device = device_named(engine.devices(), name).ok_or_else(unknown)?;
    engine.set_share_on(&client, &function, share, device)
}

impl Instances {
    /// Restores the instances of a store. Their shares apply once their functions are loaded. An
    /// instance whose record is damaged or whose share is not possible any more, for example
    /// because its device is gone, is logged and left out. One of the autoscaler is removed from
    /// the store, too; the autoscaler creates others if there is room.
    pub(crate) fn new(engine: Arc<dyn Inference>, store: Option<Arc<Store>>) -> Instances {
        let (mut all, routes) = (BTreeMap::new(), Arc::new(Routes::new()));
        for (deployment, record) in store.iter().flat_map(|store| store.instances()) {
            let key = FunctionKey { tenant: deployment.tenant.clone(), name: deployment.name.clone() };
            let read = serde_json::from_str::<Instance>(&record).map_err(|error| error.to_string());
            let is_autoscaled = read.as_ref().is_ok_and(|instance| instance.autoscaled.is_some());
            let placed = read.and_then(|instance| {
                let instance = on_one_device(instance, engine.devices())?;
                let share = instance.share(&key.tenant).map_err(|error| error.to_string())?;
                hold(&*engine, &key, &instance, share).map_err(|error| error.to_string())?;
                routes.set(&function_of(&key, &instance), &key.name, share.limit(), instance.target());
                Ok(instance)
            });
            match placed {
                Ok(instance) => drop(all.insert(key, Arc::new(instance))),
                Err(error) if is_autoscaled => {
                    tracing::warn!(instance = %key, error, "an instance of the autoscaler is not restored");
                    let removed = store.iter().try_for_each(|store| store.remove_instance(&deployment).map(drop));
                    if let Err(error) = removed {
                        tracing::error!(instance = %key, %error, "its record cannot be removed");
                    }
                }
                Err(error) => tracing::error!(instance = %key, error, "an instance cannot be restored"),
            }
        }
        let functions: BTreeSet<FunctionKey> = all.iter().map(|(key, instance)| function_of(key, instance)).collect();
        let instances = Instances {
            store,
            engine,
            all: RwLock::new(all),
            routes,
            draining: RwLock::default(),
            change: Mutex::default(),
        };
        functions.iter().for_each(|function| instances.limit_memory(function));
        instances
    }

    /// Sets the memory limits of a function's instances, which share its constants.
    fn limit_memory(&self, function: &FunctionKey) {
        let all = self.all().into_iter().filter(|(key, instance)| function_of(key, instance) == *function);
        let all: Vec<(FunctionKey, Arc<Instance>)> = all.collect();
        for (key, instance) in &all {
            let limit = instance.gpu_mem.map(|bytes| InstanceMemory { bytes, sharers: all.len() as u32 });
            self.engine.limit_memory(&client(key), limit);
        }
    }

    /// The instance with this name.
    pub(crate) fn find(&self, key: &FunctionKey) -> Option<Arc<Instance>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// All instances, by tenant and name.
    pub(crate) fn all(&self) -> Vec<(FunctionKey, Arc<Instance>)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(key, instance)| (key.clone(), instance.clone())).collect()
    }

    /// The names of a function's instances.
    pub(crate) fn names_of(&self, function: &FunctionKey) -> Vec<String> {
        let is_its = |(key, instance): &(FunctionKey, Arc<Instance>)| {
            key.tenant == function.tenant && instance.function == function.name
        };
        self.all().into_iter().filter(is_its).map(|(key, _)| key.name).collect()
    }

    /// Chooses an instance for a request that names none: the one that is expected to finish it
    /// first, among those that have the class of the request or no class of their own, and that
    /// hold on `device` if it is given. Skips those in `except`, instances of leases, draining
    /// instances, and those whose share a device refused. `None` if there is no such instance.
    pub(crate) fn choose(
        &self,
        function: &FunctionKey,
        urgency: Urgency,
        except: &[String],
        device: Option<DeviceId>,
    ) -> Option<Choice<String>> {
        self.routes.choose(function, urgency, |name| {
            if except.iter().any(|other| other == name) {
                return false;
            }
            let key = FunctionKey { tenant: function.tenant.clone(), name: name.into() };
            // The instance of a lease serves only requests that name it.
            let may_serve = |instance: Arc<Instance>| {
                instance.class.is_none_or(|own| own == urgency.class)
                    && instance.lease.is_none()
                    && !self.is_draining(&key)
            };
            let client = client(&key);
            let is_there = |device| self.engine.device_of_share(&client).is_none_or(|bound| bound == device);
            self.find(&key).is_some_and(may_serve) && self.engine.holds_share(&client) && device.is_none_or(is_there)
        })
    }

    /// Whether a function has an instance for a request that names none.
    pub(crate) fn has_one(&self, function: &FunctionKey, urgency: Urgency) -> bool {
        self.choose(function, urgency, &[], None).is_some()
    }

    /// Whether no instance can finish a request that names none before its deadline.
    pub(crate) fn is_late(&self, function: &FunctionKey, urgency: Urgency) -> bool {
        urgency.deadline.is_some() && self.choose(function, urgency, &[], None).is_some_and(|choice| choice.is_late)
    }

    /// Counts a request as running under an instance until it ends. `None` without an instance.
    pub(crate) fn begin(&self, function: &FunctionKey, instance: Option<&str>, urgency: Urgency) -> Option<Routed> {
        instance.map(|name| self.routes.begin(function, name, urgency))
    }

    /// The load and speed of an instance; `None` if the routes do not contain it.
    pub(crate) fn standing(&self, key: &FunctionKey, instance: &Instance) -> Option<Standing> {
        let function = function_of(key, instance);
        self.routes.standing(&function, &key.name)
    }

    /// The requests of an instance since it was created or restored; `None` if the routes do not
    /// contain it.
    pub(crate) fn load(&self, key: &FunctionKey, instance: &Instance) -> Option<Load> {
        self.routes.load(&function_of(key, instance), &key.name)
    }

    /// The requests of all instances.
    pub(crate) fn loads(&self) -> Vec<(FunctionKey, Load)> {
        let all = self.all().into_iter();
        all.filter_map(|(key, instance)| self.load(&key, &instance).map(|load| (key, load))).collect()
    }

    /// Whether an instance is draining: it gets no new requests, and is removed when its own have
    /// ended.
    pub(crate) fn is_draining(&self, key: &FunctionKey) -> bool {
        self.draining.read().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Starts or stops draining an instance of the autoscaler. Returns false if the instance does
    /// not exist or is not the autoscaler's.
    pub(crate) fn set_draining(&self, key: &FunctionKey, is_draining: bool) -> bool {
        let mut draining = self.draining.write().unwrap_or_else(PoisonError::into_inner);
        if self.find(key).is_none_or(|instance| instance.autoscaled.is_none()) {
            draining.remove(key);
            return false;
        }
        match is_draining {
            true => drop(draining.insert(key.clone())),
            false => drop(draining.remove(key)),
        }
        true
    }

    /// Removes an instance if it is still draining and still the autoscaler's. Blocks.
    pub(crate) fn remove_drained(&self, key: &FunctionKey) -> Result<(), InstanceError> {
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        match self.find(key) {
            Some(instance) if instance.autoscaled.is_some() && self.is_draining(key) => self.remove_now(key, &instance),
            _ => Ok(()),
        }
    }

    /// Creates an instance. Blocks.
    pub(crate) fn create(&self, key: FunctionKey, instance: Instance, has_function: bool) -> Result<(), InstanceError> {
        check_name(&key.name)?;
        let share = instance.checked(&key.tenant)?;
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if self.find(&key).is_some() {
            return Err(InstanceError::Exists(key.to_string()));
        }
        if key.name.starts_with(LEASE_PREFIX) != instance.lease.is_some() {
            return Err(InstanceError::Reserved(key.name));
        }
        if !has_function {
            return Err(InstanceError::NoFunction(FunctionKey { tenant: key.tenant, name: instance.function }));
        }
        self.put(key, instance, share, None)
    }

    /// Changes an instance by `change`. Blocks.
    pub(crate) fn resize(&self, key: &FunctionKey, change: impl FnOnce(&mut Instance)) -> Result<(), InstanceError> {
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.find(key).ok_or_else(|| InstanceError::Unknown(key.to_string()))?;
        if before.lease.is_some() {
            return Err(InstanceError::Leased(key.to_string()));
        }
        let mut instance = Instance::clone(&before);
        change(&mut instance);
        let share = instance.checked(&key.tenant)?;
        self.put(key.clone(), instance, share, Some(&before))
    }

    /// Sets the share and stores the instance. On an error, restores the earlier share.
    fn put(
        &self,
        key: FunctionKey,
        instance: Instance,
        share: ShareSpec,
        before: Option<&Instance>,
    ) -> Result<(), InstanceError> {
        let function = function_of(&key, &instance);
        // The memory limit is set before requests can run under the instance. The number of sharers
        // includes a new instance.
        let others = self.names_of(&function).iter().filter(|name| **name != key.name).count() as u32;
        let limit = |instance: &Instance| {
            let limit = instance.gpu_mem.map(|bytes| InstanceMemory { bytes, sharers: others + 1 });
            self.engine.limit_memory(&client(&key), limit);
        };
        let undo = || before.map_or_else(|| self.engine.limit_memory(&client(&key), None), limit);
        limit(&instance);
        hold(&*self.engine, &key, &instance, share).inspect_err(|_| undo())?;
        if let Some(store) = self.store.as_ref().filter(|_| instance.lease.is_none()) {
            let record = serde_json::to_string(&instance).expect("checked numbers and texts can be serialized");
            let stored =
                store.put_instance(DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() }, record);
            if let Err(error) = stored {
                let holds_again = |before: &Instance| {
                    before.share(&key.tenant).is_ok_and(|share| hold(&*self.engine, &key, before, share).is_ok())
                };
                if !before.is_some_and(holds_again) {
                    self.engine.remove_share(&client(&key));
                }
                undo();
                return Err(error.into());
            }
        }
        tracing::info!(instance = %key, %function, quota_request = instance.quota_request, "instance set");
        self.routes.set(&function, &key.name, share.limit(), instance.target());
        self.all.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(instance));
        self.limit_memory(&function);
        Ok(())
    }

    /// Removes an instance; its requests end. An error for the instance of a lease. Blocks.
    pub(crate) fn remove(&self, key: &FunctionKey) -> Result<(), InstanceError> {
        match self.find(key) {
            Some(instance) if instance.lease.is_some() => Err(InstanceError::Leased(key.to_string())),
            _ => self.remove_any(key),
        }
    }

    /// Removes an instance; also one of a lease. Blocks.
    pub(crate) fn remove_any(&self, key: &FunctionKey) -> Result<(), InstanceError> {
        let _change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let instance = self.find(key).ok_or_else(|| InstanceError::Unknown(key.to_string()))?;
        self.remove_now(key, &instance)
    }

    fn remove_now(&self, key: &FunctionKey, instance: &Instance) -> Result<(), InstanceError> {
        if let Some(store) = self.store.as_ref().filter(|_| instance.lease.is_none()) {
            store.remove_instance(&DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() })?;
        }
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        let function = function_of(key, instance);
        self.draining.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.routes.remove(&function, &key.name);
        self.engine.limit_memory(&client(key), None);
        self.limit_memory(&function);
        self.engine.remove_share(&client(key));
        tracing::info!(instance = %key, "instance removed");
        Ok(())
    }
}
