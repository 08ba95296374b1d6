//! The host device under the conformance suite, and what only a host device can get wrong.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../../device/tests/suite/mod.rs"]
mod suite;

use atoll_device::{DeviceError, ModuleImage, Modules};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_kgraph::KernelFacts;
use suite::rig::{Rig, Wanted, facts, kernels};

fn device(Wanted { compute_units, queue_capacity }: Wanted) -> HostDevice {
    HostDevice::start(HostConfig {
        compute_units,
        queue_capacity,
        memory_bytes: 64 << 20,
        constants_bytes: 16 << 20,
        cpus: vec![],
        ..HostConfig::default()
    })
    .expect("a host device")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(device(wanted)), kernels())
}

conforms!(make);

/// What loading says about code; the device must go on after it.
fn refusal(target: &str, code: &[u8]) -> String {
    let mut device = device(Wanted::default());
    match device.load_module(ModuleImage { domain: "suite", target, code, ptx: None, kernels: &facts() }) {
        Err(DeviceError::BadModule(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn garbage_is_not_loaded() {
    let (v3, code) = ("host-x86-64-v3", kernels());
    assert!(refusal(v3, b"").contains("too short"));
    assert!(refusal(v3, &[0; 4096]).contains("not an ELF object"));
    assert!(refusal(v3, &vec![0x7f; 100_000]).contains("not an ELF object"));
    assert!(refusal(v3, &std::fs::read("/proc/self/exe").unwrap()[..4096]).contains("cut short"));
    for cut in (64..code.len()).step_by(97) {
        let mut device = device(Wanted { compute_units: 1, queue_capacity: 1 });
        // Section headers are of no interest to a loader, so a cut behind the last segment may load.
        let _ = device.load_module(ModuleImage { domain: "suite", target: v3, code: &code[..cut], ptx: None, kernels: &facts() }).map_err(
            |e| {
                assert!(matches!(e, DeviceError::BadModule(_)), "{e}");
            },
        );
    }
}

#[test]
fn damaged_objects_are_refused_or_loaded_and_nothing_worse() {
    let (mut device, mut refused) = (device(Wanted { compute_units: 1, queue_capacity: 1 }), 0);
    for at in (0..kernels().len().min(4096)).chain(kernels().len().saturating_sub(3000)..kernels().len()) {
        let mut code = kernels().to_vec();
        code[at] ^= if at % 2 == 0 { 0xff } else { 0x11 };
        match device.load_module(ModuleImage { domain: "suite", target: "host-x86-64-v3", code: &code, ptx: None, kernels: &facts() }) {
            Ok(module) => device.unload_module(module),
            Err(DeviceError::BadModule(_)) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn code_for_another_machine_is_named() {
    assert!(refusal("host-x86-64-v9", kernels()).contains("this CPU runs host-x86-64-v"));
    assert!(refusal("nvidia-sm_75", kernels()).contains("nvidia-sm_75"));
}

#[test]
fn a_kernel_that_cannot_be_had_is_named() {
    let load = |change: fn(&mut KernelFacts)| {
        let mut wanted = facts();
        change(&mut wanted[0]);
        device(Wanted::default())
            .load_module(ModuleImage { domain: "suite", target: "host-x86-64-v3", code: kernels(), ptx: None, kernels: &wanted })
            .unwrap_err()
            .to_string()
    };
    assert!(load(|kernel| kernel.name = "nobody".to_owned()).contains("`nobody`"));
    assert!(load(|kernel| kernel.shared_bytes = u32::MAX).contains("shared memory"));
    assert!(load(|kernel| kernel.scratch_bytes = u32::MAX).contains("scratch memory"));
}

#[test]
fn impossible_configurations_are_refused() {
    for config in [
        HostConfig { compute_units: 0, ..HostConfig::default() },
        HostConfig { queues: 32, ..HostConfig::default() },
        HostConfig { queue_capacity: 0, ..HostConfig::default() },
        HostConfig { memory_bytes: u64::MAX, ..HostConfig::default() },
    ] {
        assert!(matches!(HostDevice::start(config), Err(DeviceError::Os { .. })));
    }
}
