//! Functions deployed over the control socket: loads them onto the device, keeps them in the store,
//! and finds them by name.

mod error;
mod room;
mod session;

pub(crate) use error::DeployError;

use crate::code::{CodeError, CodeGate, CodeRights};
use crate::compiler::CompileProgress;
use crate::identity::{Access, TenantLimits};
use crate::inference::blocking;
use crate::model::Model;
use crate::names::check_name;
use crate::repository::Settings;
use atoll_engine::{Class, EngineError, FunctionKey, FunctionOptions, Tenant};
use atoll_fleet::Inference;
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::MODEL_VERSION;
use atoll_sealed::{Digest, Sealed};
use atoll_store::{Deployment, DeploymentKey, HeldBundle, Store, StoreError};
use room::{Room, bundles};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::OwnedMutexGuard;

/// A deployed function.
#[derive(Clone)]
pub(crate) struct DeployedFunction {
    pub(crate) key: FunctionKey,
    pub(crate) deployment: Deployment,
    pub(crate) weights_bytes: u64,
    /// Number of its constants. Each takes a file descriptor of the daemon. The descriptors count
    /// against the tenant's limit even while the function is not loaded.
    pub(crate) constants: u64,
    /// The loaded model, or the reason why it cannot be called (for example a damaged file, or no
    /// room on the device).
    pub(crate) model: Result<Arc<Model>, String>,
}

/// The name of the bundle that a client has sent, for messages.
const UPLOADED: &str = "the uploaded file";

/// A deployment that passed the quotas of its tenant; nothing is written yet.
struct Draft {
    key: FunctionKey,
    digest: Digest,
    /// Size of the bundle.
    bytes: u64,
}

/// Options of a deployment.
pub(crate) struct DeployOptions {
    pub(crate) name: Option<String>,
    pub(crate) class: Class,
    pub(crate) private: bool,
    /// The device to load it on; `None` if the daemon chooses.
    pub(crate) device: Option<String>,
    /// The signature of the bundle.
    pub(crate) signature: Option<String>,
}

/// All deployed functions.
pub(crate) struct Deployed {
    engine: Arc<dyn Inference>,
    store: Arc<Store>,
    trust_tenants: bool,
    /// The limits of tenants.
    access: Access,
    gate: CodeGate,
    /// Entries of a tenant change only while that tenant's [`Turn`] is held.
    functions: RwLock<BTreeMap<FunctionKey, Arc<DeployedFunction>>>,
    /// How often `functions` has changed.
    changes: AtomicU64,
    turns: Turns,
}

/// Serializes deployments and removals of each tenant. Waiting for a turn blocks no thread and no
/// other tenant.
#[derive(Default)]
struct Turns(Mutex<BTreeMap<Tenant, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, tenant: &Tenant) -> Turn {
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(tenant.clone()).or_default().clone();
        Turn { tenant: tenant.clone(), _turn: turn.lock_owned().await }
    }
}

/// The exclusive right to change a tenant's functions.
pub(crate) struct Turn {
    tenant: Tenant,
    _turn: OwnedMutexGuard<()>,
}

impl Deployed {
    pub(crate) fn new(
        engine: Arc<dyn Inference>,
        store: Arc<Store>,
        trust_tenants: bool,
        access: Access,
        gate: CodeGate,
    ) -> Deployed {
        let waiting = store.deployments().into_iter().map(|(DeploymentKey { tenant, name }, deployment)| {
            let key = FunctionKey { tenant, name };
            let model = Err("it is being loaded onto the device again".into());
            let constants = deployment.constants;
            (key.clone(), Arc::new(DeployedFunction { key, deployment, weights_bytes: 0, constants, model }))
        });
        let functions = RwLock::new(waiting.collect());
        Deployed {
            engine,
            store,
            trust_tenants,
            access,
            gate,
            functions,
            changes: AtomicU64::new(0),
            turns: Turns::default(),
        }
    }

    /// Waits for the tenant's turn.
    pub(crate) async fn turn(&self, tenant: &Tenant) -> Turn {
        self.turns.take(tenant).await
    }

    /// Loads the functions of the store onto their devices: first those that need no compilation,
    /// then those whose code has to be compiled. A function that cannot be loaded stays listed with
    /// the reason.
    pub(crate) async fn restore(self: &Arc<Self>) {
        let mut postponed = Vec::new();
        for (key, deployment) in self.store.deployments() {
            let (this, function) = (self.clone(), FunctionKey { tenant: key.tenant.clone(), name: key.name.clone() });
            let known = deployment.clone();
            match blocking(move || this.would_compile(&function, &known)).await {
                Some(true) => postponed.push((key, deployment)),
                _ => self.restore_one(key, deployment).await,
            }
        }
        for (key, deployment) in postponed {
            self.restore_one(key, deployment).await;
        }
    }

    async fn restore_one(self: &Arc<Self>, DeploymentKey { tenant, name }: DeploymentKey, deployment: Deployment) {
        let turn = self.turn(&tenant).await;
        let (this, key) = (self.clone(), FunctionKey { tenant, name });
        // Ignores a panic: the panic hook has reported it.
        let _ = blocking(move || this.restore_now(&turn, &key, deployment)).await;
    }

    fn restore_now(&self, _turn: &Turn, key: &FunctionKey, deployment: Deployment) {
        // The tenant may have removed or replaced it in the meantime.
        if self.find(key).is_none_or(|function| function.model.is_ok() || function.deployment != deployment) {
            return;
        }
        let function = self.load_again(key, deployment);
        match &function.model {
            Ok(_) => tracing::info!(function = %key, "deployed function is loaded again"),
            Err(reason) => tracing::error!(function = %key, reason, "deployed function cannot be loaded again"),
        }
        self.insert(function);
    }

    /// How often the functions have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn find(&self, key: &FunctionKey) -> Option<Arc<DeployedFunction>> {
        self.functions.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The public function of this name: `NAME`, or `TENANT:NAME`.
    pub(crate) fn public(&self, name: &str) -> Option<Arc<DeployedFunction>> {
        let key = match name.split_once(':') {
            None => FunctionKey::local(name),
            Some((tenant, name)) => FunctionKey { tenant: tenant.parse().ok()?, name: name.into() },
        };
        // Each function has one name only, so `local:NAME` finds nothing.
        self.find(&key).filter(|function| !function.deployment.private && function.key.to_string() == name)
    }

    /// All public functions.
    pub(crate) fn all_public(&self) -> Vec<Arc<DeployedFunction>> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.values().filter(|function| !function.deployment.private).cloned().collect()
    }

    /// All functions of all tenants.
    pub(crate) fn all(&self) -> Vec<Arc<DeployedFunction>> {
        self.functions.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Names of functions, deployed or not, with a section `[scaling.NAME]` in the configuration.
    pub(crate) fn scaled_names(&self) -> impl Iterator<Item = &String> {
        self.access.scaled_names()
    }

    /// All functions of a tenant, by name.
    pub(crate) fn of(&self, tenant: &Tenant) -> Vec<Arc<DeployedFunction>> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.values().filter(|function| function.key.tenant == *tenant).cloned().collect()
    }

    /// Deploys a bundle under a name, replacing the tenant's function of that name. On an error the
    /// old function stays deployed; if it was already unloaded, it is loaded again. Blocks, also
    /// while the code of an untrusted bundle is compiled; calls `progress` at each stage of that.
    pub(crate) fn deploy(
        &self,
        turn: &Turn,
        limits: &TenantLimits,
        options: DeployOptions,
        content: &Sealed,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Arc<DeployedFunction>, DeployError> {
        let draft = self.draft(&turn.tenant, limits, options.name.clone(), content)?;
        let held = self.store.write_bundle(content, draft.digest)?;
        self.deploy_file(draft, options, &held, progress)
    }

    /// Checks name and quotas before a bundle is written. Reads the whole content at the end only,
    /// for its digest: the size of a bundle that is beyond the quota costs nothing.
    fn draft(
        &self,
        tenant: &Tenant,
        limits: &TenantLimits,
        name: Option<String>,
        content: &Sealed,
    ) -> Result<Draft, DeployError> {
        let wanted = content.bytes();
        Room::beside(self.of(tenant).iter(), tenant, limits).check_largest(wanted)?;
        let unread = |source| StoreError::Io { what: "cannot read", path: "the bundle".into(), source };
        let file = content.as_fd().try_clone_to_owned().map_err(unread)?;
        let outline = Bundle::outline(&file.into(), Path::new(UPLOADED)).map_err(|error| error.about(UPLOADED))?;
        let name = name.unwrap_or(outline.name);
        check_name(&name)?;
        let key = FunctionKey { tenant: tenant.clone(), name };
        if self.store.has_graph(&DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() }) {
            return Err(DeployError::TakenByGraph(key.name));
        }
        self.check_limits(limits, &key, outline.constants)?;
        // The bundle of the function that is replaced does not count.
        let functions = self.of(tenant);
        let room = Room::beside(functions.iter().filter(|function| function.key != key), tenant, limits);
        room.check_size(wanted)?;
        let digest = content.digest().map_err(unread)?;
        room.check(wanted, &digest)?;
        Ok(Draft { key, digest, bytes: wanted })
    }

    fn deploy_file(
        &self,
        draft: Draft,
        options: DeployOptions,
        held: &HeldBundle<'_>,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Arc<DeployedFunction>, DeployError> {
        let bundle = Bundle::open(&held.path()).map_err(|error| error.about(UPLOADED))?;
        let Draft { key, digest, bytes } = draft;
        let old = self.find(&key);
        let constants = constants(&bundle);
        let deployed_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let deployment = Deployment {
            bundle: digest,
            bundle_bytes: bytes,
            class: options.class,
            private: options.private,
            deployed_s,
            device: options.device,
            signature: options.signature,
            constants,
        };
        if let Some(old) = &old {
            let same = Deployment { deployed_s: old.deployment.deployed_s, ..deployment.clone() };
            if old.model.is_ok() && old.deployment == same {
                return Ok(old.clone());
            }
        }
        // The old function serves while the code of the new one is compiled.
        let rights = self.access.limits(&key.tenant).code();
        let bundle = self.admit(&key, &deployment, rights, bundle, progress)?;
        if old.is_some() {
            self.unload(&key)?;
        }
        let exchanged = self.load(&key, &deployment, &bundle).and_then(|function| {
            let record = DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() };
            self.store.deploy(record, deployment).inspect_err(|_| drop(self.unload(&key)))?;
            Ok(function)
        });
        match exchanged {
            Ok(function) => Ok(self.insert(function)),
            Err(error) => {
                if let Some(old) = old {
                    self.insert(self.load_again(&key, old.deployment.clone()));
                }
                Err(error)
            }
        }
    }

    /// Unloads a function and deletes it from the store. Returns whether it existed. Blocks until
    /// its invocations have finished.
    pub(crate) fn remove(&self, turn: Turn, name: String) -> Result<bool, DeployError> {
        let key = &FunctionKey { tenant: turn.tenant.clone(), name };
        if self.find(key).is_none() {
            return Ok(false);
        }
        self.store.withdraw(&DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() })?;
        self.functions.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.changes.fetch_add(1, Ordering::Release);
        self.unload(key)?;
        Ok(true)
    }

    fn check_limits(&self, limits: &TenantLimits, key: &FunctionKey, wanted: u64) -> Result<(), DeployError> {
        let others: Vec<_> = self.of(&key.tenant).into_iter().filter(|function| function.key != *key).collect();
        if others.len() as u64 >= limits.functions {
            return Err(DeployError::TooMany { tenant: key.tenant.clone(), limit: limits.functions });
        }
        let used = others.iter().map(|function| function.constants).fold(0, u64::saturating_add);
        if used.saturating_add(wanted) > limits.descriptors {
            let (tenant, limit) = (key.tenant.clone(), limits.descriptors);
            return Err(DeployError::NoDescriptors { tenant, wanted, used, limit });
        }
        Ok(())
    }

    /// Bytes of the functions' bundles on disk. A bundle that several functions share counts once.
    pub(crate) fn bundle_bytes(functions: &[Arc<DeployedFunction>]) -> u64 {
        bundles(functions.iter()).into_values().fold(0, u64::saturating_add)
    }

    /// Compiler time that counts for a tenant's quota now, in seconds, rounded up.
    pub(crate) fn compile_seconds(&self, tenant: &Tenant) -> u64 {
        let per_hour = self.access.limits(tenant).code().per_hour;
        let spent = per_hour.map_or(Duration::ZERO, |per_hour| self.gate.spent(tenant, per_hour));
        spent.as_secs() + u64::from(spent.subsec_nanos() > 0)
    }

    /// The limits of a tenant.
    pub(crate) fn limits(&self, tenant: &Tenant) -> TenantLimits {
        self.access.limits(tenant)
    }

    fn would_compile(&self, key: &FunctionKey, deployment: &Deployment) -> bool {
        let rights = self.access.limits(&key.tenant).code();
        let may = deployment.signature.is_none() && !rights.trusted;
        let bundle = || Bundle::open(&self.store.bundle_path(&deployment.bundle)).ok();
        may && bundle().is_some_and(|bundle| self.gate.would_compile(rights, &bundle))
    }

    /// The bundle with the code that runs for its tenant.
    fn admit(
        &self,
        key: &FunctionKey,
        deployment: &Deployment,
        rights: CodeRights,
        bundle: Arc<Bundle>,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Arc<Bundle>, DeployError> {
        if !self.trust_tenants && !key.tenant.is_local() {
            return Err(DeployError::NotTrusted { tenant: key.tenant.clone() });
        }
        let admitted = self.gate.admit(&key.tenant, rights, bundle, deployment.signature.as_deref(), progress);
        admitted.map_err(|error| match error {
            CodeError::Bundle(error) => error.about(UPLOADED).into(),
            other => other.into(),
        })
    }

    fn load(
        &self,
        key: &FunctionKey,
        deployment: &Deployment,
        bundle: &Arc<Bundle>,
    ) -> Result<DeployedFunction, DeployError> {
        let options = FunctionOptions {
            key: key.clone(),
            class: deployment.class,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        let placed =
            self.engine.load(bundle.clone(), options, deployment.device.as_deref()).map_err(|error| match error {
                // The deployed function of this name was unloaded before, so the name belongs to a
                // model of the repository.
                EngineError::AlreadyLoaded(key) => DeployError::Taken(key.name),
                other => other.into(),
            })?;
        let settings = Settings {
            class: deployment.class,
            device: deployment.device.clone(),
            scaling: self.access.scaling(key),
            ..Settings::default()
        };
        let model = Model::new(key.clone(), MODEL_VERSION.into(), bundle, settings, placed.devices);
        Ok(DeployedFunction {
            key: key.clone(),
            deployment: deployment.clone(),
            weights_bytes: placed.info.weights_bytes,
            constants: constants(bundle),
            model: Ok(Arc::new(model)),
        })
    }

    /// Loads a function whose bundle is in the store.
    fn load_again(&self, key: &FunctionKey, deployment: Deployment) -> DeployedFunction {
        let opened = Bundle::open(&self.store.bundle_path(&deployment.bundle)).map_err(DeployError::from);
        // Without a quota: restarts and failed replacements are not charged to the tenant.
        let rights = CodeRights { per_hour: None, ..self.access.limits(&key.tenant).code() };
        let admitted = opened.and_then(|bundle| self.admit(key, &deployment, rights, bundle, &|_| ()));
        let loaded = admitted.and_then(|bundle| self.load(key, &deployment, &bundle));
        loaded.unwrap_or_else(|error| DeployedFunction {
            key: key.clone(),
            constants: deployment.constants,
            deployment,
            weights_bytes: 0,
            model: Err(error.to_string()),
        })
    }

    fn unload(&self, key: &FunctionKey) -> Result<(), DeployError> {
        match self.engine.unload(key) {
            // The function is already unloaded: nothing left to do.
            Ok(()) | Err(EngineError::NotLoaded(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn insert(&self, function: DeployedFunction) -> Arc<DeployedFunction> {
        let function = Arc::new(function);
        self.functions.write().unwrap_or_else(PoisonError::into_inner).insert(function.key.clone(), function.clone());
        self.changes.fetch_add(1, Ordering::Release);
        function
    }
}

/// Number of a bundle's constants.
fn constants(bundle: &Bundle) -> u64 {
    bundle.graph().buffers.iter().filter(|buffer| buffer.kind == BufferKind::Const).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_tenant_waits_for_its_own_changes_and_not_for_those_of_others() {
        let turns = Turns::default();
        let [a, b]: [Tenant; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let soon = Duration::from_millis(20);
        let first = turns.take(&a).await;
        assert!(timeout(soon, turns.take(&a)).await.is_err());
        assert!(timeout(soon, turns.take(&b)).await.is_ok());
        drop(first);
        assert!(timeout(soon, turns.take(&a)).await.is_ok());
    }
}
