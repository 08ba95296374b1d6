//! The conformance suite and further tests for AMD GPUs. They run on the stand-in for the HIP
//! runtime, which interprets code objects. Tests that take many seconds there run only with
//! `ATOLL_TEST_FULL=1`.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, dead_code, unused_imports, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../../device/tests/suite/mod.rs"]
mod suite;

#[path = "hip/executor.rs"]
mod executor;
#[path = "hip/faults.rs"]
mod faults;
#[path = "hip/lanes.rs"]
mod lanes;
#[path = "hip/prints.rs"]
mod prints;
#[path = "hip/resets.rs"]
mod resets;

use atoll_core::{DeviceOffset, Epoch, PreemptLevel};
use atoll_device::{Device, DeviceError, FaultKind, LaneUnits, LaunchStatus, ModuleImage, Modules};
use atoll_device_hip::{HipConfig, HipDevice, start};
use atoll_kgraph::KernelFacts;
use atoll_kgraph::host_abi::TrapCode;
use atoll_target_amd::{Architecture, KernelShape, Options};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use suite::rig::{Launch, Preempt, Rig, Wanted, facts};

/// Environment variable with the GPU on which the suite runs, such as `hip:0`. If it is unset, the
/// suite runs on the stand-in.
const DEVICE: &str = "ATOLL_TEST_DEVICE";

/// The architecture that the stand-in has by default.
const ARCHITECTURE: Architecture = Architecture::Gfx90a;
const TARGET: &str = "amd-gfx90a";

/// The suite's kernels, of which one prints. The target rejects a loop that waits for a word, because
/// a lane of the same wave could be the writer. Here the host is the writer, so these loops get a
/// bound.
fn kernels() -> String {
    const PTX: &str = include_str!("../../../device/tests/kernels/kernels.ptx");
    const GIVE_UP: [&str; 4] = [
        "add.s64 %now, %now, 1;",
        "setp.gt.u64 %gives, %now, 1099511627776;",
        "@%gives bra $end;",
        "@%more bra $closed;",
    ];
    prints::with_output(PTX)
        .replace(".reg .pred %first, %more;", ".reg .pred %first, %more, %gives;")
        .replace("$closed:", "mov.u64 %now, 0; $closed:")
        .replace("@%more bra $closed;", &GIVE_UP.join(" "))
}

/// The suite's kernels as a code object.
fn code() -> &'static [u8] {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    CODE.get_or_init(|| {
        let module = atoll_ptx::parse(&kernels()).expect("the suite's kernels are PTX");
        let shape = |facts: KernelFacts| KernelShape { name: facts.name.as_str().into(), block: facts.block };
        let shapes: Vec<KernelShape> = facts().into_iter().map(shape).collect();
        atoll_target_amd::compile(&module, &shapes, ARCHITECTURE, &Options::default()).expect("they compile").elf
    })
}

/// The path of the stand-in, which cargo puts beside the tests' folder.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let part = program.ancestors().nth(2).expect("a folder of targets").join("libatoll_stand_in_hip.so");
    assert!(part.exists(), "{} is not built: cargo build -p atoll-stand-in-hip", part.display());
    part
}

fn config(wanted: Wanted) -> HipConfig {
    let gpu: Option<u32> = std::env::var(DEVICE).ok().and_then(|name| name.strip_prefix("hip:")?.parse().ok());
    HipConfig {
        index: gpu.unwrap_or(0),
        library: gpu.is_none().then(stand_in),
        memory_bytes: Some(16 << 20),
        queue_capacity: wanted.queue_capacity,
        ..HipConfig::default()
    }
}

fn device(wanted: Wanted) -> HipDevice {
    start(&config(wanted)).expect("a GPU")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(device(wanted)), code())
}

// Tests of features that this device does not support are left out: aborts and chunks,
// interruptions without a raised epoch, traps that end a whole launch, constants in a separate
// range, and blocks on a single compute unit.
conforms! {
    make:
    kernels_compute,
    a_launch_without_blocks_completes,
    launches_of_a_queue_run_in_order,
    a_full_queue_refuses_launches,
    queues_run_side_by_side,
    an_epoch_raised_before_the_start_evicts,
    epochs_wrap_around,
    an_epoch_raised_after_the_end_changes_nothing,
    blocks_that_are_done_are_not_run_again,
    memory_is_bounded,
    memory_given_back_reads_as_zero,
    an_invalid_launch_fails,
    the_largest_parameter_block_arrives_whole,
    one_byte_more_than_the_largest_block_is_refused,
    a_relocation_outside_the_parameter_block_is_refused,
    a_relocation_outside_the_memory_is_refused,
    addresses_may_be_absolute,
    a_large_block_keeps_its_preemption_parameters,
    modules_are_loaded_and_unloaded,
    a_busy_device_can_be_dropped,
    shared_and_scratch_memory_are_provided,
}

/// The rest of the common suite, which has many blocks or launches.
mod long {
    use super::{make, suite};

    fn is_full() -> bool {
        std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
    }

    #[test]
    fn every_block_runs_once() {
        if is_full() {
            suite::every_block_runs_once(make);
        }
    }

    #[test]
    fn a_launch_resumes_until_it_is_complete() {
        if is_full() {
            suite::a_launch_resumes_until_it_is_complete(make);
        }
    }

    #[test]
    fn many_small_launches() {
        if is_full() {
            // The stand-in runs some hundred a second.
            suite::small_launches(make, 10_000);
        }
    }

    #[test]
    fn random_traffic_on_two_queues() {
        if is_full() {
            suite::random_traffic_on_two_queues(make);
        }
    }
}

#[test]
fn the_device_describes_itself() {
    let device = device(Wanted::default());
    let info = device.info();
    assert_eq!((info.name.as_str(), info.kind(), info.preempt_level), ("hip:0", "hip", PreemptLevel::Deactivate));
    assert!(info.compute_units > 0 && info.shared_bytes_max == 64 << 10 && !info.can_abort, "{info:?}");
    assert_eq!((info.targets.as_slice(), info.lane_units), (&[TARGET.to_owned()][..], LaneUnits::Any));
    assert_eq!((info.memory_bytes, info.constants_bytes), (16 << 20, 0));
}

#[test]
fn running_blocks_finish_and_the_rest_exit_when_the_epoch_is_raised() {
    running_blocks_finish_when_the_epoch_is_raised(make(Wanted::default()));
}

fn running_blocks_finish_when_the_epoch_is_raised(mut rig: Rig) {
    const BLOCKS: u32 = 300;
    let (log, gate) = (rig.alloc(4 + u64::from(BLOCKS) * 4), rig.alloc(4));
    let mut preempt = rig.preempt(BLOCKS.into());
    let note = |tag, until, preempt| Launch::note_preemptible(BLOCKS, log, tag, gate, until, preempt);
    rig.submit(1, &note(1, 1, preempt)).expect("room");
    rig.submit(1, &note(2, 0, preempt)).expect("room");
    // Some blocks wait for the gate; those that have not begun must exit.
    while rig.u32(log) == 0 {
        std::thread::yield_now();
    }
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    rig.device.store_epoch(gate, Epoch(1));
    (0..2).for_each(|_| assert_eq!(rig.wait().status, LaunchStatus::Evicted));
    let begun = rig.u32(log);
    assert!(begun > 0 && begun < BLOCKS, "{begun} blocks had begun");
    assert_eq!(rig.u32(preempt.evicted_word), 1, "at the offset where the engine reads it");

    preempt.epoch = Epoch(1);
    rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
    assert_eq!(rig.run(1, &note(3, 1, preempt)).status, LaunchStatus::Complete);
    let entries = rig.u32s(log, 1 + BLOCKS as usize);
    assert_eq!(entries[0], BLOCKS, "each block ran once");
    let of = |tag: u32| entries[1..].iter().filter(|entry| **entry == tag).count() as u32;
    assert_eq!((of(1), of(2), of(3)), (begun, 0, BLOCKS - begun));
}

#[test]
fn an_epoch_word_has_the_value_last_written_wherever_it_is_kept() {
    let (mut rig, mut ends) = (make(Wanted::default()), Vec::new());
    let (counts, spare, preempt) = (rig.alloc(4), rig.alloc(4), rig.preempt(1));
    let mut check = |rig: &mut Rig, epoch, status| {
        rig.device.fill(preempt.progress, 0, 1).expect("memory");
        rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
        let launch = Launch::spin_preemptible(1, counts, 0, Preempt { epoch: Epoch(epoch), ..preempt });
        ends.push((rig.run(1, &launch).status, status));
    };
    let (runs, exits) = (LaunchStatus::Complete, LaunchStatus::Evicted);
    check(&mut rig, 0, runs);
    rig.device.store_epoch(preempt.epoch_word, Epoch(3));
    assert_eq!(rig.u32(preempt.epoch_word), 3, "device memory has the same value");
    check(&mut rig, 2, exits);
    check(&mut rig, 3, runs);
    rig.device.fill(preempt.epoch_word, 0, 4).expect("memory");
    check(&mut rig, 0, runs);
    rig.device.write(preempt.epoch_word, &7_u32.to_le_bytes()).expect("memory");
    check(&mut rig, 6, exits);
    rig.device.write(spare, &9_u32.to_le_bytes()).expect("memory");
    rig.device.copy(spare, preempt.epoch_word, 4).expect("memory");
    check(&mut rig, 8, exits);
    check(&mut rig, 9, runs);
    rig.device.give_back(preempt.epoch_word, 4).expect("memory");
    check(&mut rig, 0, runs);
    assert!(ends.iter().all(|(was, expected)| was == expected), "{ends:?}");
}

#[test]
fn a_trap_fails_its_launch_with_its_place_and_the_device_goes_on() {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(400);
    let launch = Launch { grid: [5, 4, 5], ..Launch::trap_at(100, counts, 37, TrapCode::Trap) };
    let completion = rig.run(1, &launch);
    assert_eq!(completion.status, LaunchStatus::Failed);
    let fault = rig.device.report(completion.launch).and_then(|report| report.fault).expect("a fault");
    assert_eq!(
        (fault.kind.clone(), fault.kernel.as_str(), fault.block, fault.thread),
        (FaultKind::Trap, "trap_at", Some([2, 3, 1]), Some([0, 0, 0]))
    );
    let line = kernels().lines().position(|line| line.contains("%more trap;")).expect("it traps") as u32 + 1;
    assert_eq!(fault.line, Some(line));
    assert_eq!(rig.u32(DeviceOffset(counts.0 + 37 * 4)), 0, "the wave ended there");
    let counted = Launch { grid: [5, 4, 5], ..Launch::trap_at(100, counts, 100, TrapCode::Trap) };
    assert_eq!(rig.run(1, &counted).status, LaunchStatus::Complete);
}

/// The error of loading code; the device must still work afterwards.
fn refusal(target: &str, code: &[u8], kernels: &[KernelFacts]) -> String {
    let mut device = device(Wanted::default());
    let refusal = match device.load_module(ModuleImage { domain: "suite", target, code, ptx: None, kernels }) {
        Err(DeviceError::BadModule(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(device.lost(), None);
    refusal
}

#[test]
fn bad_code_is_refused_with_a_remedy() {
    assert!(refusal("amd-gfx1100", code(), &[]).contains("compile it for one of these"));
    let half = code().len() / 2;
    let cut = refusal(TARGET, &code()[..half], &[]);
    assert_eq!(
        cut,
        format!(
            "the code for {TARGET} is damaged: it has {half} bytes, and according to its header {}; \
             compile the model again, or copy its bundle again",
            code().len()
        )
    );
    let text = refusal(TARGET, b".version 6.3\n.target sm_75\n", &[]);
    assert!(text.contains("damaged: it is no ELF file"), "{text}");
    // Its metadata says otherwise, but the header decides: XNACK is on in bits 8 and 9 of the flags.
    let mut paged = code().to_vec();
    paged[0x31] = paged[0x31] & !3 | 3;
    let paged = refusal(TARGET, &paged, &[]);
    assert!(paged.contains("the code needs XNACK on, and the GPU is gfx90a:sramecc+:xnack-; compile it"), "{paged}");
    let mut uncorrected = code().to_vec();
    uncorrected[0x31] = uncorrected[0x31] & !0xc | 8;
    let uncorrected = refusal(TARGET, &uncorrected, &[]);
    assert!(uncorrected.contains("the code needs SRAM-ECC off, and the GPU is gfx90a:sramecc+"), "{uncorrected}");
    // The header of a version that no loader knows.
    let mut newer = code().to_vec();
    newer[8] = 100;
    let newer = refusal(TARGET, &newer, &[]);
    assert!(newer.contains("cannot run code for amd-gfx90a on this GPU (hipModuleLoadData: "), "{newer}");
    let missing = KernelFacts { name: "missing".to_owned(), ..KernelFacts::default() };
    let missing = refusal(TARGET, code(), &[missing]);
    assert!(missing.contains("`missing`") && missing.contains("hipErrorNotFound"), "{missing}");
    let greedy = KernelFacts { name: "spin".to_owned(), shared_bytes: u32::MAX, ..KernelFacts::default() };
    assert!(refusal(TARGET, code(), &[greedy]).contains("shared memory"));
}

#[test]
fn a_machine_without_a_runtime_gets_a_clear_error() {
    let library = Some(Path::new("/nowhere/libamdhip64.so.6").to_owned());
    let error = start(&HipConfig { library, ..HipConfig::default() }).expect_err("no runtime");
    assert!(matches!(error, DeviceError::Unavailable(_)));
    let text = error.to_string();
    assert!(text.starts_with("no HIP runtime here: /nowhere/libamdhip64.so.6 cannot be loaded"), "{text}");
    let of_one = config(Wanted::default());
    let beyond = HipConfig { index: 1000, ..of_one.clone() };
    assert!(start(&beyond).expect_err("no such device").to_string().starts_with("there is no device 1000"));
    let huge = HipConfig { memory_bytes: Some(1 << 60), ..of_one.clone() };
    assert!(start(&huge).expect_err("too much").to_string().contains("contiguous bytes of memory"));
    let wide = HipConfig { compute_units: Some(100_000), ..of_one };
    assert!(start(&wide).expect_err("too many").to_string().contains("compute units, not 100000"));
}

#[test]
fn a_part_of_a_gpu_is_a_device() {
    let config = HipConfig { compute_units: Some(2), ..config(Wanted::default()) };
    let device = start(&config).expect("a part");
    assert_eq!((device.info().compute_units, device.info().lane_units), (2, LaneUnits::None));
    let mut rig = Rig::new(Box::new(device), code());
    let counts = rig.alloc(400);
    assert_eq!(rig.run(1, &Launch::spin(100, counts, 0)).status, LaunchStatus::Complete);
    assert_eq!(rig.u32s(counts, 100), [1; 100]);
}

#[test]
fn times_lie_between_the_submission_and_now() {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(64);
    let mut last_ended_ns = 0;
    for _ in 0..10 {
        let before = atoll_device::now_ns();
        let completion = rig.run(0, &Launch::spin(4, counts, 1_000));
        let after = atoll_device::now_ns();
        assert!(before <= completion.started_ns && completion.started_ns <= completion.ended_ns);
        assert!(completion.ended_ns <= after && last_ended_ns <= completion.ended_ns, "{completion:?}");
        last_ended_ns = completion.ended_ns;
    }
}
