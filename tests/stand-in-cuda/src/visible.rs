//! The devices that a process sees: GPUs, or one MIG instance.
//!
//! As with NVIDIA's driver, `CUDA_VISIBLE_DEVICES` lists GPUs by number or UUID, and MIG instances by
//! UUID; the list ends at the first entry that names nothing. A process that sees a MIG instance sees
//! nothing else. A GPU that is divided stands for its first instance.

use crate::options::Options;
use atoll_cuda_api::types::CUuuid;

/// The environment variable with the list.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// A GPU, or one of its MIG instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    /// The number of the GPU.
    pub(crate) gpu: u32,
    /// The number of the instance.
    pub(crate) instance: Option<u32>,
}

impl Visible {
    /// The devices that this process sees.
    pub(crate) fn of_this_process(options: &Options) -> Vec<Visible> {
        Visible::listed(options, std::env::var(VARIABLE).ok().as_deref())
    }

    /// The devices that a process with this list sees.
    fn listed(options: &Options, list: Option<&str>) -> Vec<Visible> {
        let gpus: Vec<Visible> = (0..options.devices).map(|gpu| Visible { gpu, instance: None }).collect();
        let seen: Vec<Visible> = match list {
            None => gpus,
            Some(list) => list.split(',').map_while(|entry| named(options, &gpus, entry.trim())).collect(),
        };
        let first_instance = |seen: &Visible| match seen.instance {
            None if is_divided(options, seen.gpu) => Visible { instance: Some(0), ..*seen },
            _ => *seen,
        };
        let seen: Vec<Visible> = seen.iter().map(first_instance).collect();
        match seen.iter().find(|seen| seen.instance.is_some()) {
            Some(instance) => vec![*instance],
            None => seen,
        }
    }

    /// All MIG instances of a GPU.
    pub(crate) fn instances(options: &Options, gpu: u32) -> impl Iterator<Item = Visible> + use<> {
        let count = if is_divided(options, gpu) { options.instances } else { 0 };
        (0..count).map(move |instance| Visible { gpu, instance: Some(instance) })
    }

    /// Its name, which ends in that of the instance.
    pub(crate) fn name(self) -> String {
        let gpu = format!("Atoll stand-in {} (host CPU, no GPU)", self.gpu);
        self.instance.map_or_else(|| gpu.clone(), |instance| format!("{gpu} MIG {instance}"))
    }

    /// The UUID of the GPU, also of an instance.
    pub(crate) fn gpu_uuid(self) -> CUuuid {
        let mut bytes = *b"atoll stand-in 0";
        bytes[15] = self.gpu as u8;
        CUuuid { bytes }
    }

    /// The UUID of the GPU or the instance.
    pub(crate) fn uuid(self) -> CUuuid {
        let mut uuid = self.gpu_uuid();
        if let Some(instance) = self.instance {
            uuid.bytes[14] = b'A' + instance as u8;
        }
        uuid
    }

    /// The UUID as in the list.
    pub(crate) fn id(self) -> String {
        let hex: String = self.uuid().bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let kind = if self.instance.is_some() { "MIG" } else { "GPU" };
        format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// Whether a GPU is divided into MIG instances.
pub(crate) fn is_divided(options: &Options, gpu: u32) -> bool {
    gpu == 0 && options.instances > 0
}

/// What an entry of the list names: a number, or a UUID whose end may be missing.
fn named(options: &Options, gpus: &[Visible], entry: &str) -> Option<Visible> {
    if let Ok(number) = entry.parse::<usize>() {
        return gpus.get(number).copied();
    }
    let is_id = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    let all = gpus.iter().copied().chain(Visible::instances(options, 0));
    let found: Vec<Visible> = all.filter(|one| is_id && one.id().starts_with(entry)).collect();
    if let [one] = found[..] { Some(one) } else { None }
}
