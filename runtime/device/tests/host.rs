//! The host device under the conformance suite, and what only a host device can get wrong.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, reason = "the suite is shared by the tests of all devices")]
mod suite;

use atoll_device::{Device, DeviceError, HostConfig, HostDevice, ModuleImage};
use atoll_kgraph::KernelFacts;
use std::sync::OnceLock;
use suite::rig::{Rig, Wanted, compile_kernels, facts};

fn kernels() -> &'static [u8] {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    CODE.get_or_init(compile_kernels)
}

fn device(wanted: Wanted) -> HostDevice {
    let Wanted { compute_units, queue_capacity } = wanted;
    let config = HostConfig {
        compute_units,
        queue_capacity,
        memory_bytes: 64 << 20,
        constants_bytes: 16 << 20,
        pin: false,
        ..HostConfig::default()
    };
    HostDevice::start(config).expect("a host device")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(device(wanted)), kernels())
}

macro_rules! conforms {
    ($($test:ident,)*) => {
        $(#[test]
        fn $test() {
            suite::$test(make);
        })*
    };
}

conforms! {
    kernels_compute,
    every_block_runs_once,
    a_launch_without_blocks_completes,
    launches_of_a_queue_run_in_order,
    a_full_queue_says_so,
    queues_run_side_by_side,
    the_urgent_queue_goes_first,
    the_urgent_queue_stops_preemptible_blocks,
    an_epoch_raised_before_the_start_evicts,
    epochs_wrap_around,
    an_epoch_raised_midway_evicts_and_the_rest_resumes,
    an_epoch_raised_after_the_end_changes_nothing,
    a_launch_resumes_until_it_is_complete,
    blocks_that_are_done_are_not_run_again,
    a_trap_fails_its_launch_and_no_other,
    a_trap_says_where_it_was,
    shared_and_scratch_memory_are_there,
    an_aborted_launch_ends_and_no_other,
    a_launch_is_aborted_although_every_compute_unit_is_busy,
    what_is_over_or_not_the_oldest_is_not_aborted,
    random_aborts_spoil_nothing_and_the_bill_is_right,
    memory_is_bounded,
    constants_are_read_by_kernels_and_written_by_the_engine,
    what_is_given_back_is_zero,
    a_launch_that_makes_no_sense_fails,
    modules_come_and_go,
    many_small_launches,
    random_traffic_on_two_queues,
    a_busy_device_can_be_dropped,
}

/// What loading says about code; the device must go on after it.
fn refusal(target: &str, code: &[u8]) -> String {
    let mut device = device(Wanted::default());
    match device.load_module(ModuleImage { domain: "suite", target, code, kernels: &facts() }) {
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
        let _ = device.load_module(ModuleImage { domain: "suite", target: v3, code: &code[..cut], kernels: &facts() }).map_err(|e| {
            assert!(matches!(e, DeviceError::BadModule(_)), "{e}");
        });
    }
}

#[test]
fn damaged_objects_are_refused_or_loaded_and_nothing_worse() {
    let (mut device, mut refused) = (device(Wanted { compute_units: 1, queue_capacity: 1 }), 0);
    for at in (0..kernels().len().min(4096)).chain(kernels().len().saturating_sub(3000)..kernels().len()) {
        let mut code = kernels().to_vec();
        code[at] ^= if at % 2 == 0 { 0xff } else { 0x11 };
        match device.load_module(ModuleImage { domain: "suite", target: "host-x86-64-v3", code: &code, kernels: &facts() }) {
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
            .load_module(ModuleImage { domain: "suite", target: "host-x86-64-v3", code: kernels(), kernels: &wanted })
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
