//! Code of CUDA sessions. It is not deployed, but compiled like the code of deployed functions.

use super::{DeployError, Deployed};
use crate::code::{CodeError, CodeRights};
use crate::compiler::{LaunchShape, ModuleContents};
use atoll_engine::Tenant;
use atoll_kgraph::Bundle;
use std::path::Path;
use std::sync::Arc;

impl Deployed {
    /// The contents of a CUDA program's module. The PTX is read in the compiler's jail. Blocks.
    pub(crate) fn read_module(&self, tenant: &Tenant, ptx: &str) -> Result<ModuleContents, CodeError> {
        self.gate.read_module(tenant, self.session_rights(tenant), ptx)
    }

    /// The code of a kernel of a CUDA session. It is read and compiled in the compiler's jail, with
    /// a fence for every tenant, because nothing checks the parameters of its launches. `kind` is the
    /// kind of the device. The bundle is written to `file`. Blocks.
    pub(crate) fn session_code(
        &self,
        tenant: &Tenant,
        ptx: &str,
        (shape, kind): (LaunchShape<'_>, &str),
        file: &Path,
    ) -> Result<Arc<Bundle>, DeployError> {
        if !self.trust_tenants && !tenant.is_local() {
            return Err(DeployError::NotTrusted { tenant: tenant.clone() });
        }
        let rights = self.session_rights(tenant);
        let kernel = self.gate.launch_source(tenant, rights, ptx, shape)?;
        let packed = self.gate.compiler().and_then(|compiler| compiler.pack_launch(&kernel, shape, kind, file));
        packed.map_err(CodeError::Compile)?;
        Ok(self.gate.admit(tenant, rights, Bundle::open(file)?, None, &|_| ())?)
    }

    fn session_rights(&self, tenant: &Tenant) -> CodeRights {
        CodeRights { trusted: false, ..self.access.limits(tenant).code() }
    }
}
