//! The host device under the conformance suite, and tests of its own.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../../device/tests/suite/mod.rs"]
mod suite;

use atoll_core::Epoch;
use atoll_device::{DeviceError, LaunchStatus, ModuleImage, Modules};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_kgraph::KernelFacts;
use suite::rig::{Launch, Rig, Wanted, facts, kernels};

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

/// The error of loading code; the device must still work afterwards.
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
        // The loader ignores section headers, so an object that is cut behind its last segment may
        // load.
        let _ = device
            .load_module(ModuleImage { domain: "suite", target: v3, code: &code[..cut], ptx: None, kernels: &facts() })
            .map_err(|e| {
                assert!(matches!(e, DeviceError::BadModule(_)), "{e}");
            });
    }
}

#[test]
fn damaged_objects_are_refused_or_loaded_without_harm() {
    let (mut device, mut refused) = (device(Wanted { compute_units: 1, queue_capacity: 1 }), 0);
    for at in (0..kernels().len().min(4096)).chain(kernels().len().saturating_sub(3000)..kernels().len()) {
        let mut code = kernels().to_vec();
        code[at] ^= if at % 2 == 0 { 0xff } else { 0x11 };
        match device.load_module(ModuleImage {
            domain: "suite",
            target: "host-x86-64-v3",
            code: &code,
            ptx: None,
            kernels: &facts(),
        }) {
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
fn an_unusable_kernel_is_named() {
    let load = |change: fn(&mut KernelFacts)| {
        let mut wanted = facts();
        change(&mut wanted[0]);
        device(Wanted::default())
            .load_module(ModuleImage {
                domain: "suite",
                target: "host-x86-64-v3",
                code: kernels(),
                ptx: None,
                kernels: &wanted,
            })
            .unwrap_err()
            .to_string()
    };
    assert!(load(|kernel| kernel.name = "missing".to_owned()).contains("`missing`"));
    assert!(load(|kernel| kernel.shared_bytes = u32::MAX).contains("shared memory"));
    assert!(load(|kernel| kernel.scratch_bytes = u32::MAX).contains("scratch memory"));
}

#[test]
fn impossible_configurations_are_refused() {
    for config in [
        HostConfig { compute_units: 0, ..HostConfig::default() },
        HostConfig { queues: 65, ..HostConfig::default() },
        HostConfig { queue_capacity: 0, ..HostConfig::default() },
        HostConfig { memory_bytes: u64::MAX, ..HostConfig::default() },
    ] {
        assert!(matches!(HostDevice::start(config), Err(DeviceError::Os { .. })));
    }
}

fn large(compute_units: u32, queues: u32) -> Rig {
    let config = HostConfig {
        compute_units,
        queues,
        memory_bytes: 16 << 20,
        constants_bytes: 1 << 20,
        cpus: vec![],
        ..HostConfig::default()
    };
    Rig::new(Box::new(HostDevice::start(config).expect("a host device")), kernels())
}

/// More compute units than one mask word has bits.
#[test]
fn seventy_compute_units_run_blocks() {
    const BLOCKS: u32 = 2_000;
    let mut rig = large(70, 2);
    let counts = rig.alloc(4 * u64::from(BLOCKS));
    // There are fewer CPUs than units, so which of them are woken in time is up to the system.
    for round in 1..=200 {
        assert_eq!(rig.run(1, &Launch::spin(BLOCKS, counts, 100_000)).status, LaunchStatus::Complete);
        assert!(rig.u32s(counts, BLOCKS as usize).iter().all(|count| *count == round), "each block runs once");
        if rig.device.compute_units().iter().all(|unit| unit.chunks > 0) {
            return;
        }
    }
    panic!("a compute unit never ran anything: {:?}", rig.device.compute_units());
}

/// More queues than a stop word has bits.
#[test]
fn forty_queues_run_in_order_of_priority() {
    const QUEUES: u32 = 40;
    let mut rig = large(1, QUEUES);
    let (log, gate, counts) = (rig.alloc(8), rig.alloc(4), rig.alloc(4));
    rig.submit(QUEUES - 1, &Launch::note(1, log, 1, gate, 1)).expect("room");
    rig.wait_for(log, 1);
    let launches: Vec<_> =
        (0..QUEUES - 1).rev().map(|queue| rig.submit(queue, &Launch::spin(1, counts, 0)).expect("room")).collect();
    rig.device.store_epoch(gate, Epoch(1));
    let mut completions: Vec<_> = (0..QUEUES).map(|_| rig.wait()).collect();
    assert!(completions.iter().all(|completion| completion.status == LaunchStatus::Complete));
    completions.sort_by_key(|completion| completion.started_ns);
    let order: Vec<_> = completions.iter().skip(1).map(|completion| completion.launch).collect();
    assert!(order.iter().eq(launches.iter().rev()), "{order:?}");
    assert_eq!(rig.u32(counts), QUEUES - 1);
}
