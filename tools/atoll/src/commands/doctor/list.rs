//! Lists the NVIDIA GPUs of this machine and their MIG instances, with their names for `--device`.

use super::Finding;
use crate::output::{bytes, counted};
use atoll_device_cuda::{GpuList, ListedGpu, Mig};

/// A line for each. None without a driver, which `checks` reports.
pub(super) fn findings() -> Vec<Finding> {
    let Ok(list) = GpuList::read() else { return Vec::new() };
    let mut findings: Vec<Finding> = list.gpus.iter().map(|gpu| Finding::good("device", line(gpu))).collect();
    findings.extend(list.incomplete.map(|why| {
        Finding::absent(
            "NVML",
            format!("{why}; only the devices that this process sees are listed, at most one of them a MIG instance"),
            "install the driver's library for management (libnvidia-ml1)",
        )
    }));
    findings
}

fn line(gpu: &ListedGpu) -> String {
    let ListedGpu { id, name, compute_units, memory_bytes, mig } = gpu;
    let units = compute_units.map_or_else(String::new, |units| format!("{}, ", counted(units, "compute unit")));
    let what = format!("{name}, {units}{}", bytes(*memory_bytes));
    match mig {
        Mig::Whole => format!("cuda:{id}: {what}"),
        Mig::Divided => format!("{id}: {what}, in MIG mode: models run on its instances"),
        Mig::Instance { gpu, numbers: None } => format!("cuda:{id}: {what}, MIG instance of {gpu}"),
        Mig::Instance { gpu, numbers: Some((of_gpu, of_compute)) } => {
            format!("cuda:{id}: {what}, MIG instance of {gpu} (GPU instance {of_gpu}, compute instance {of_compute})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_name_of_the_device_and_its_size() {
        let gpu = |id: &str, compute_units, mig| ListedGpu {
            id: id.into(),
            name: "NVIDIA A100".into(),
            compute_units,
            memory_bytes: 40 << 30,
            mig,
        };
        assert_eq!(line(&gpu("GPU-1", Some(108), Mig::Whole)), "cuda:GPU-1: NVIDIA A100, 108 compute units, 40.0 GiB");
        let divided = line(&gpu("GPU-2", None, Mig::Divided));
        assert_eq!(divided, "GPU-2: NVIDIA A100, 40.0 GiB, in MIG mode: models run on its instances");
        let instance = |numbers| line(&gpu("MIG-3", Some(14), Mig::Instance { gpu: "GPU-2".into(), numbers }));
        assert!(instance(None).ends_with("MIG instance of GPU-2"));
        assert!(instance(Some((9, 0))).ends_with("of GPU-2 (GPU instance 9, compute instance 0)"));
    }
}
