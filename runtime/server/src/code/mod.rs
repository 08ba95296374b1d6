//! Decides which code of a tenant's bundle runs: the code in the bundle, or code that the daemon
//! compiles from it.
//!
//! The daemon runs the code in a bundle, and uses its metadata, if the operator trusts the tenant
//! or the key that signed the bundle. The kernels of every other bundle are recompiled from their
//! PTX with fences; the result is cached on disk by a digest of bundle and compiler. Of such a
//! bundle the daemon uses only PTX, graph, constants and launches.
//!
//! Not here: the compiler, which the program supplies ([`crate::CompilerService`]).

mod budget;
mod signature;
#[cfg(test)]
mod tests;

pub use signature::{BadKey, BadSignature, TrustedKeys};

use crate::compiler::{
    CompileFailure, CompileLimits, CompileProgress, CompilerService, LaunchShape, LaunchSource, ModuleContents,
};
use crate::limits::CODE_CACHE_BYTES_MAX;
use atoll_engine::Tenant;
use atoll_kgraph::{Bundle, BundleError, DiskCache, TargetContents, decode_code, digest_of, encode_code};
use budget::{CompileBudget, Exhausted};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Whether the code of a tenant is trusted, and the limits of a compilation for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeRights {
    /// Whether the code in the tenant's bundles runs as it was sent.
    pub(crate) trusted: bool,
    pub(crate) limits: CompileLimits,
    /// Longest time that the compiler may work for the tenant in an hour; `None` for unlimited.
    pub(crate) per_hour: Option<Duration>,
}

/// Why the code of a bundle does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodeError {
    #[error(
        "the bundle has no PTX from before the passes ({missing}), from which this daemon recompiles the code of \
        tenant `{tenant}`; compile the bundle again with this version of `atoll compile`, `atoll pack` or `atoll \
        import`, sign it with a key that the daemon trusts (`atoll sign`), or let the operator set `trusted_code = \
        true` in [tenant.{tenant}]"
    )]
    NoSource { tenant: Tenant, missing: String },
    #[error(
        "this daemon was built with no compiler, so it cannot recompile the code of tenant `{tenant}`; sign the \
        bundle with a key that the daemon trusts (`atoll sign`), or let the operator set `trusted_code = true` in \
        [tenant.{tenant}]"
    )]
    NoCompiler { tenant: Tenant },
    #[error("{0}; deploy the bundle without a signature to have it compiled from its PTX")]
    Signature(#[from] BadSignature),
    #[error("the kernels of the bundle were not compiled: {0}")]
    Compile(CompileFailure),
    #[error(
        "tenant `{tenant}` has used {} s of compiler time, and may use {} s in an hour; deploy a bundle that was \
        compiled before, {}or raise its quota `compile_seconds_per_hour`",
        .exhausted.spent.as_secs(), .quota.as_secs(), .exhausted.wait()
    )]
    Budget { tenant: Tenant, quota: Duration, exhausted: Exhausted },
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// Chooses the code of tenants' bundles.
pub(crate) struct CodeGate {
    compiler: Option<Arc<dyn CompilerService>>,
    keys: TrustedKeys,
    cache: DiskCache,
    budget: CompileBudget,
    /// One compilation at a time, since each uses all cores. Waiting compilations run in order of
    /// arrival. A tenant has at most one, since it deploys one function at a time.
    turn: Semaphore,
}

impl CodeGate {
    /// A gate whose cache is a folder in `cache`.
    pub(crate) fn new(compiler: Option<Arc<dyn CompilerService>>, keys: TrustedKeys, cache: &Path) -> CodeGate {
        let cache = DiskCache::new(cache.join("tenants"), "code", CODE_CACHE_BYTES_MAX);
        CodeGate { compiler, keys, cache, budget: CompileBudget::default(), turn: Semaphore::new(1) }
    }

    /// The compiler.
    pub(crate) fn compiler(&self) -> Result<&dyn CompilerService, CompileFailure> {
        let without = || CompileFailure("this daemon was built with no compiler".into());
        self.compiler.as_deref().ok_or_else(without)
    }

    /// The bundle with the code that runs for a tenant. Blocks while the code is compiled; to be
    /// called on a blocking thread of the tokio runtime.
    pub(crate) fn admit(
        &self,
        tenant: &Tenant,
        rights: CodeRights,
        bundle: Arc<Bundle>,
        signature: Option<&str>,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Arc<Bundle>, CodeError> {
        if let Some(signature) = signature {
            self.keys.check(&bundle, signature)?;
        }
        if signature.is_some() || rights.trusted {
            return Ok(bundle);
        }
        let compiler = self.compiler.as_deref().ok_or_else(|| CodeError::NoCompiler { tenant: tenant.clone() })?;
        check_sources(tenant, &bundle)?;
        let digest = cache_digest(&bundle, compiler);
        if let Some(code) = self.cached(&digest) {
            return Ok(bundle.with_code(code)?);
        }
        let waiting = CompileProgress { stage: "wait for the compiler".into(), done: 0, total: 1 };
        progress(waiting);
        let _turn = self.take_turn(tenant, rights)?;
        // Another tenant may have sent the same bundle.
        if let Some(code) = self.cached(&digest) {
            return Ok(bundle.with_code(code)?);
        }
        tracing::info!(%tenant, bundle = bundle.digest(), "compiling the kernels of a bundle");
        let begun = Instant::now();
        let code = compiler.recompile(&bundle, rights.limits, progress);
        self.count(tenant, rights, begun);
        let code = code.map_err(CodeError::Compile)?;
        self.keep(&digest, encode_code(&code));
        Ok(bundle.with_code(code)?)
    }

    /// The kernels and variables of a CUDA program's module. Blocks, as [`CodeGate::admit`] does.
    pub(crate) fn read_module(
        &self,
        tenant: &Tenant,
        rights: CodeRights,
        ptx: &str,
    ) -> Result<ModuleContents, CodeError> {
        let compiler = self.compiler().map_err(CodeError::Compile)?;
        let digest = digest_of([ptx.as_bytes(), compiler.identity().as_bytes(), b"module"]);
        self.read_once(&digest, tenant, rights, || compiler.read_module(ptx, rights.limits))
    }

    /// One kernel of such a module for a launch shape. Blocks, as [`CodeGate::admit`] does.
    pub(crate) fn launch_source(
        &self,
        tenant: &Tenant,
        rights: CodeRights,
        ptx: &str,
        shape: LaunchShape<'_>,
    ) -> Result<LaunchSource, CodeError> {
        let compiler = self.compiler().map_err(CodeError::Compile)?;
        let (identity, shape_text) = (compiler.identity(), format!("{shape:?}"));
        let parts = [ptx.as_bytes(), identity.as_bytes(), shape_text.as_bytes(), b"launch"];
        self.read_once(&digest_of(parts), tenant, rights, || compiler.launch_source(ptx, shape, rights.limits))
    }

    /// What the compiler reads in PTX: from the cache, or else by `read`, which counts as compiler
    /// time of the tenant.
    fn read_once<T: Serialize + DeserializeOwned>(
        &self,
        digest: &str,
        tenant: &Tenant,
        rights: CodeRights,
        read: impl FnOnce() -> Result<T, CompileFailure>,
    ) -> Result<T, CodeError> {
        let cached = || serde_json::from_slice(&self.cache.read(digest)?).ok();
        if let Some(known) = cached() {
            return Ok(known);
        }
        let _turn = self.take_turn(tenant, rights)?;
        if let Some(known) = cached() {
            return Ok(known);
        }
        let begun = Instant::now();
        let found = read();
        self.count(tenant, rights, begun);
        let found = found.map_err(CodeError::Compile)?;
        self.keep(digest, serde_json::to_vec(&found).map_err(|error| error.to_string()));
        Ok(found)
    }

    /// Waits until the compiler is free, unless the tenant has spent its quota.
    fn take_turn(&self, tenant: &Tenant, rights: CodeRights) -> Result<Option<SemaphorePermit<'_>>, CodeError> {
        if let Some(quota) = rights.per_hour {
            let refused = |exhausted| CodeError::Budget { tenant: tenant.clone(), quota, exhausted };
            self.budget.check(tenant, quota, Instant::now()).map_err(refused)?;
        }
        // The semaphore is never closed.
        Ok(tokio::runtime::Handle::current().block_on(self.turn.acquire()).ok())
    }

    /// Counts compiler time since `begun` for a tenant.
    fn count(&self, tenant: &Tenant, rights: CodeRights, begun: Instant) {
        if let Some(quota) = rights.per_hour {
            self.budget.add(tenant, quota, begun.elapsed(), Instant::now());
        }
    }

    /// Compiler time that counts for a tenant's quota of `per_hour` now.
    pub(crate) fn spent(&self, tenant: &Tenant, per_hour: Duration) -> Duration {
        self.budget.spent(tenant, per_hour, Instant::now())
    }

    /// Whether [`CodeGate::admit`] would compile the bundle if it came without a signature.
    pub(crate) fn would_compile(&self, rights: CodeRights, bundle: &Bundle) -> bool {
        let is_cached =
            |compiler: &Arc<dyn CompilerService>| self.cache.path(&cache_digest(bundle, &**compiler)).exists();
        !rights.trusted && self.compiler.as_ref().is_some_and(|compiler| !is_cached(compiler))
    }

    fn cached(&self, digest: &str) -> Option<Vec<TargetContents>> {
        let decoded = decode_code(&self.cache.read(digest)?);
        decoded.inspect_err(|reason| tracing::warn!(reason, "ignoring cached code")).ok()
    }

    /// Caches a result of the compiler. Errors are only logged: the function runs without its cache
    /// file.
    fn keep(&self, digest: &str, encoded: Result<Vec<u8>, String>) {
        let written = encoded.and_then(|bytes| self.cache.write(digest, &bytes).map_err(|error| error.to_string()));
        if let Err(reason) = written {
            tracing::warn!(reason, folder = %self.cache.folder().display(), "cannot cache a result of the compiler");
        }
        self.cache.remove_unused();
    }
}

/// The cache key of a bundle's code: a digest of the bundle and the compiler.
fn cache_digest(bundle: &Bundle, compiler: &dyn CompilerService) -> String {
    digest_of([bundle.digest().as_bytes(), compiler.identity().as_bytes(), b"fenced"])
}

/// Refuses a bundle without the PTX source of any target.
fn check_sources(tenant: &Tenant, bundle: &Bundle) -> Result<(), CodeError> {
    let has_source = |name: &str| bundle.target(name).is_some_and(|image| image.source.is_some());
    if bundle.target_names().any(has_source) {
        return Ok(());
    }
    let missing = match bundle.format() {
        1 => "it is of format 1, which keeps none".into(),
        _ => format!("for {}", bundle.target_names().collect::<Vec<_>>().join(", ")),
    };
    Err(CodeError::NoSource { tenant: tenant.clone(), missing })
}
