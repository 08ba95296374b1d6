//! Figure 13: memory of pods without and with shared constants.

use super::figures::{MIB, host, need};
use crate::figures::Cells;
use atoll_core::packing::InstanceId;
use atoll_core::scaling::{Constants, Spot, assign};

/// A pod's memory without shared constants and with them, in MiB, and that of the process that
/// keeps the constants of three pods, where §5.5 has it.
const MODELS: [Memory; 2] = [
    Memory { model: "ResNet", own: 1525, shared: 1427, stored: None },
    Memory { model: "ViT-huge", own: 4735, shared: 2101, stored: Some(2979) },
];

/// What the process with the constants adds to them in the paper, in MiB: its CUDA context.
const CONTEXT: u64 = 300;

struct Memory {
    model: &'static str,
    own: u64,
    shared: u64,
    stored: Option<u64>,
}

/// Pods that share nothing; the paper's, whose constants are in a process of their own; and pods of
/// one process, which need no other one.
const SHARING: [&str; 3] = ["none", "constants in a process", "constants"];

/// Figure 13: memory of one and three pods, and how many fit a device. The figures of pods are the
/// paper's.
pub(super) fn memory() -> Vec<Cells> {
    let mut rows = Vec::new();
    for Memory { model, own, shared, stored } in MODELS {
        let constants = own - shared;
        for sharing in SHARING {
            let (of_pod, once) = match sharing {
                "none" => (own, 0),
                "constants" => (shared, constants),
                _ => (shared, stored.unwrap_or(constants + CONTEXT)),
            };
            rows.push(vec![
                ("model", model.into()),
                ("sharing", sharing.into()),
                ("one_pod_mib", (once + of_pod).into()),
                ("three_pods_mib", (once + 3 * of_pod).into()),
                ("pods_on_16_gib", pods(of_pod, once).into()),
                ("paper", of_model(model, sharing).into()),
            ]);
        }
    }
    rows
}

/// Pods that fit a device. They have 1 % of the units and the time: memory alone decides.
fn pods(of_pod: u64, once: u64) -> u64 {
    let constants = Constants { function: 0, bytes: once * MIB };
    let wanted: Vec<_> = (0..64).map(|id| (InstanceId(id), need(1, 1, of_pod * MIB, constants))).collect();
    let fits = |spot: &Spot| matches!(spot, Spot::Now { is_over_memory: false, .. });
    assign(&[host()], &[], &wanted, 0).spots.iter().filter(|(_, spot)| fits(spot)).count() as u64
}

fn of_model(model: &str, sharing: &str) -> &'static str {
    match (model, sharing) {
        ("ResNet", "none") => "one 1525",
        ("ResNet", "constants in a process") => "1427 a pod, and 300 for a context",
        ("ViT-huge", "none") => "one 4735, three 14205",
        ("ViT-huge", "constants in a process") => "one 5080, three 9282",
        _ => "",
    }
}
