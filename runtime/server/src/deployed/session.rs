//! Code of CUDA sessions. It is not deployed, but compiled like the code of deployed functions.

use super::{DeployError, Deployed};
use crate::code::{CodeError, CodeRights};
use crate::compiler::{CompileFailure, LaunchShape, ModuleContents};
use atoll_engine::Tenant;
use atoll_kgraph::Bundle;
use std::path::Path;
use std::sync::Arc;

impl Deployed {
    /// The contents of a CUDA program's module. The PTX is parsed and analysed in this process.
    pub(crate) fn read_module(&self, ptx: &str) -> Result<ModuleContents, CompileFailure> {
        self.gate.compiler()?.read_module(ptx)
    }

    /// The code of a kernel of a CUDA session. It is compiled in the compiler's jail, with a fence
    /// for every tenant, because nothing checks the parameters of its launches. The bundle for it
    /// is made in this process, and written to `file`. Blocks.
    pub(crate) fn session_code(
        &self,
        tenant: &Tenant,
        ptx: &str,
        shape: LaunchShape<'_>,
        file: &Path,
    ) -> Result<Arc<Bundle>, DeployError> {
        if !self.trust_tenants && !tenant.is_local() {
            return Err(DeployError::NotTrusted { tenant: tenant.clone() });
        }
        let packed = self.gate.compiler().and_then(|compiler| compiler.pack_launch(ptx, shape, file));
        packed.map_err(CodeError::Compile)?;
        let rights = CodeRights { trusted: false, ..self.access.limits(tenant).code() };
        Ok(self.gate.admit(tenant, rights, Bundle::open(file)?, None, &|_| ())?)
    }
}
