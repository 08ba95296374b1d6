//! Prepares the daemon for a machine that runs out of memory: control groups for executors and CPU
//! stages, and an order in which the system kills.

use atoll_executor::{ControlGroups, ExecutorQuota, ExecutorQuotas};
use atoll_server::{Access, TenantLimits};
use std::sync::Arc;

/// The daemon's out-of-memory score, if it may lower it. Executors and processes of CPU stages have
/// 900, compilations 800.
const OUT_OF_MEMORY_SCORE: i32 = -500;

const SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// The place where the daemon makes groups for executors and processes of CPU stages, with the
/// quotas of tenants. `None` if no groups can be made, which is logged.
pub(super) fn enter(access: &Access) -> Option<Arc<ControlGroups>> {
    lower_score();
    match ControlGroups::enter() {
        Ok(groups) => {
            tracing::info!(
                folder = %groups.folder().display(), cpu = groups.has_cpu(),
                "the kernel limits each executor's memory, and that of CPU stages: control groups"
            );
            Some(Arc::new(groups.with_quotas(quotas(access))))
        }
        Err(error) => {
            tracing::warn!(
                %error,
                "no control groups for executors: their device memory is checked 20 times a second instead, and \
                limits of their other memory and CPU time (executor_bytes, cpus) have no effect; processes of CPU \
                stages have resource limits only"
            );
            None
        }
    }
}

fn quotas(access: &Access) -> ExecutorQuotas {
    let quota = |limits: &TenantLimits| ExecutorQuota {
        device_bytes: limits.device.all,
        process_bytes: limits.executor_bytes,
        cpus: limits.cpus,
    };
    let tenants = access.tenant_limits().map(|(tenant, limits)| {
        let quota = quota(limits);
        // The daemon's own tenant has no limit of memory unless its section sets one.
        let process_bytes =
            if tenant.is_local() { quota.process_bytes.or(Some(u64::MAX)) } else { quota.process_bytes };
        (tenant.to_string(), ExecutorQuota { process_bytes, ..quota })
    });
    let own = ("local".to_owned(), ExecutorQuota::UNLIMITED);
    // A section of `local` takes precedence over the default.
    ExecutorQuotas { default: quota(access.default_limits()), tenants: [own].into_iter().chain(tenants).collect() }
}

/// Lowers this process's out-of-memory score, so the system kills it late, unless the operator
/// chose a score. Only root may do that; executors raise their own score in any case.
fn lower_score() {
    if std::fs::read_to_string(SCORE_FILE).is_ok_and(|score| score.trim() == "0") {
        let _ = std::fs::write(SCORE_FILE, OUT_OF_MEMORY_SCORE.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_get_the_limits_of_tenants_and_the_own_tenant_none() {
        let folder = std::env::temp_dir().join(format!("atoll-groups-{}.toml", std::process::id()));
        std::fs::write(&folder, "[default]\ndevice_bytes = \"1G\"\n[tenant.a]\nexecutor_bytes = \"64M\"\ncpus = 1.5")
            .unwrap();
        let quotas = quotas(&Access::read(&folder, 500).unwrap());
        let expected = ExecutorQuota { device_bytes: 1 << 30, process_bytes: Some(64 << 20), cpus: Some(1.5) };
        assert_eq!(quotas.tenants["a"], expected);
        assert_eq!(quotas.default, ExecutorQuota { device_bytes: 1 << 30, process_bytes: None, cpus: None });
        assert_eq!(quotas.tenants["local"], ExecutorQuota::UNLIMITED);
        std::fs::write(&folder, "[tenant.local]\ncpus = 2").unwrap();
        let own = super::quotas(&Access::read(&folder, 500).unwrap()).tenants["local"];
        std::fs::remove_file(&folder).unwrap();
        assert_eq!((own.process_bytes, own.cpus), (Some(u64::MAX), Some(2.0)));
    }
}
