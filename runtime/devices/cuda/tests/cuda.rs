//! An NVIDIA GPU under the conformance suite, and tests of its own. They run on the stand-in for
//! the CUDA driver, which executes PTX on this machine's CPUs.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, dead_code, unused_imports, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../../device/tests/suite/mod.rs"]
mod suite;

#[path = "cuda/executor.rs"]
mod executor;
#[path = "cuda/lanes.rs"]
mod lanes;
#[path = "cuda/mps.rs"]
mod mps;
#[path = "cuda/segment.rs"]
mod segment;
#[path = "cuda/tenants.rs"]
mod tenants;

use atoll_core::{DeviceOffset, Epoch, PreemptLevel};
use atoll_device::{Device, DeviceError, FaultKind, LaunchStatus, Memory, ModuleImage, Modules, SubmitError};
use atoll_device_cuda::{CudaConfig, CudaDevice, FlagRoute, GpuId, GpuPart};
use atoll_kgraph::KernelFacts;
use std::path::{Path, PathBuf};
use suite::rig::{Kernel, Launch, Param, Preempt, Rig, Wanted};

/// Environment variable that names a GPU of this machine, as `cuda:0`, to run the suite on; if
/// unset, the suite runs on the stand-in.
const DEVICE: &str = "ATOLL_TEST_DEVICE";

const KERNELS: &str = include_str!("../../../device/tests/kernels/kernels.ptx");

/// The path of a library or program of the stand-in, which cargo puts beside the tests' folder.
fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let part = program.ancestors().nth(2).expect("a folder of targets").join(name);
    assert!(part.exists(), "{} is not built: cargo build -p atoll-stand-in-cuda", part.display());
    part
}

fn config(wanted: Wanted) -> CudaConfig {
    let Wanted { queue_capacity, .. } = wanted;
    let gpu: Option<u32> = std::env::var(DEVICE).ok().and_then(|name| name.strip_prefix("cuda:")?.parse().ok());
    CudaConfig {
        gpu: GpuId::Number(gpu.unwrap_or(0)),
        library: gpu.is_none().then(|| beside("libatoll_stand_in_cuda.so")),
        memory_bytes: Some(64 << 20),
        queue_capacity,
        flag_route: Some(FlagRoute::Mapped),
        ..CudaConfig::default()
    }
}

fn device(wanted: Wanted) -> CudaDevice {
    CudaDevice::start(&config(wanted)).expect("a GPU")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(device(wanted)), KERNELS.as_bytes())
}

// Not included: tests of aborts, interruptions and chunks, which this device does not support; of
// faults that fail only one launch; of constants in a range of their own; and of blocks on a single
// compute unit.
conforms! { common make }
conforms! {
    make:
    shared_and_scratch_memory_are_provided,
}

#[test]
fn the_device_describes_itself() {
    let device = device(Wanted::default());
    let info = device.info();
    assert_eq!((info.name.as_str(), info.kind(), info.preempt_level), ("cuda:0", "cuda", PreemptLevel::Deactivate));
    assert!(info.compute_units > 0 && info.shared_bytes_max >= 48 << 10 && !info.can_abort, "{info:?}");
    assert_eq!(info.targets.last().map(String::as_str), Some("nvidia-sm_75"));
    assert_eq!((info.memory_bytes, info.constants_bytes), (64 << 20, 0));
}

#[test]
fn running_blocks_finish_and_the_rest_exit_when_the_epoch_is_raised() {
    running_blocks_finish_when_the_epoch_is_raised(make(Wanted::default()));
}

fn running_blocks_finish_when_the_epoch_is_raised(mut rig: Rig) {
    const BLOCKS: u32 = 50_000;
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
    an_epoch_word_has_the_value_last_written(make(Wanted::default()));
}

fn an_epoch_word_has_the_value_last_written(mut rig: Rig) {
    let (counts, spare) = (rig.alloc(4), rig.alloc(4));
    let preempt = rig.preempt(1);
    let ends = |rig: &mut Rig, epoch, why: &str| {
        rig.device.fill(preempt.progress, 0, 1).expect("memory");
        rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
        let preempt = Preempt { epoch: Epoch(epoch), ..preempt };
        let status = rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status;
        assert!(matches!(status, LaunchStatus::Complete | LaunchStatus::Evicted), "{why}");
        status == LaunchStatus::Complete
    };
    assert!(ends(&mut rig, 0, "first"));
    rig.device.store_epoch(preempt.epoch_word, Epoch(3));
    assert_eq!(rig.u32(preempt.epoch_word), 3, "device memory has the same value");
    assert!(!ends(&mut rig, 2, "raised") && ends(&mut rig, 3, "raised so far"));
    rig.device.fill(preempt.epoch_word, 0, 4).expect("memory");
    assert!(ends(&mut rig, 0, "zeroed"));
    rig.device.write(preempt.epoch_word, &7_u32.to_le_bytes()).expect("memory");
    assert!(!ends(&mut rig, 6, "written"));
    rig.device.write(spare, &9_u32.to_le_bytes()).expect("memory");
    rig.device.copy(spare, preempt.epoch_word, 4).expect("memory");
    assert!(!ends(&mut rig, 8, "copied") && ends(&mut rig, 9, "copied so far"));
    rig.device.give_back(preempt.epoch_word, 4).expect("memory");
    assert!(ends(&mut rig, 0, "given back"));
}

#[test]
fn times_lie_between_the_submission_and_now() {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(64);
    let mut last_ended_ns = 0;
    for _ in 0..20 {
        let before = now_ns();
        let completion = rig.run(0, &Launch::spin(4, counts, 100_000));
        let after = now_ns();
        assert!(
            before <= completion.started_ns
                && completion.started_ns <= completion.ended_ns
                && completion.ended_ns <= after
        );
        assert!(last_ended_ns <= completion.ended_ns, "ends of a queue are in order");
        let took_ns = completion.ended_ns - completion.started_ns;
        assert!(completion.busy_ns >= took_ns && completion.busy_ns <= took_ns * 4);
        last_ended_ns = completion.ended_ns;
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
    let target = "nvidia-sm_75";
    let newer = KERNELS.replace(".version 6.3", ".version 99.0");
    let refused = refusal(target, newer.as_bytes(), &[]);
    assert!(
        refused.contains("its PTX has version 99.0, newer than any known driver; this one supports CUDA "),
        "{refused}"
    );
    let broken = refusal(target, b".version 6.3\n.target sm_75\n.visible .entry (\n", &[]);
    assert!(broken.contains("CUDA_ERROR_INVALID_PTX") && broken.contains('\n'), "the driver's log: {broken}");
    assert!(refusal("host-x86-64-v3", KERNELS.as_bytes(), &[]).contains("compile it for one of these"));
    let missing = KernelFacts { name: "missing".to_owned(), ..KernelFacts::default() };
    assert!(refusal(target, KERNELS.as_bytes(), &[missing]).contains("`missing`"));
    let greedy = KernelFacts { name: "spin".to_owned(), shared_bytes: u32::MAX, ..KernelFacts::default() };
    assert!(refusal(target, KERNELS.as_bytes(), &[greedy]).contains("shared memory"));
}

#[test]
fn a_machine_without_a_driver_gets_a_clear_error() {
    let config = CudaConfig { library: Some(Path::new("/nowhere/libcuda.so.1").to_owned()), ..CudaConfig::default() };
    let error = CudaDevice::start(&config).expect_err("no driver");
    assert!(matches!(error, DeviceError::Unavailable(_)));
    assert!(error.to_string().starts_with("no NVIDIA driver here: /nowhere/libcuda.so.1 cannot be loaded"), "{error}");
    let beyond = CudaConfig { gpu: GpuId::Number(1000), ..config_of_one() };
    assert!(CudaDevice::start(&beyond).expect_err("no such device").to_string().starts_with("there is no device 1000"));
    let huge = CudaConfig { memory_bytes: Some(1 << 60), ..config_of_one() };
    assert!(CudaDevice::start(&huge).expect_err("too much").to_string().contains("contiguous bytes of memory"));
}

fn config_of_one() -> CudaConfig {
    config(Wanted::default())
}

#[test]
fn a_gpu_may_be_named_by_its_uuid() {
    let id = CudaDevice::start(&config_of_one()).expect("a GPU").gpu().id().expect("an id");
    let named = |id: &str| CudaDevice::start(&CudaConfig { gpu: GpuId::Uuid(id.to_owned()), ..config_of_one() });
    let device = named(&id.to_ascii_uppercase()).expect("the same GPU");
    assert_eq!(device.gpu().id().expect("an id"), id);
    assert_eq!(named(&id).expect("the same GPU").info().name, format!("cuda:{id}"));
    let error = named("MIG-00000000-0000-0000-0000-000000000000").expect_err("no such instance").to_string();
    assert!(error.starts_with("this process does not see MIG-00000000-"), "{error}");
    assert!(error.contains(&id) && error.contains("one MIG instance only"), "{error}");
}

/// The routes that a device certainly has; on the stand-in, which includes GDRCopy, all of them.
fn routes() -> (Option<PathBuf>, Vec<FlagRoute>) {
    match config_of_one().library {
        Some(stand_in) => (Some(stand_in), vec![FlagRoute::Mapped, FlagRoute::StreamWrite, FlagRoute::Bar]),
        None => (None, vec![FlagRoute::Mapped, FlagRoute::StreamWrite]),
    }
}

/// A fault ends the driver's context, and with it every device of the process. So this test runs in
/// a process of its own, as an executor does.
#[test]
#[ignore = "`a_fault_loses_the_device_and_every_launch_completes` runs it"]
fn fault_here() {
    let device = CudaDevice::start(&CudaConfig { segment: 2, ..config_of_one() }).expect("a GPU");
    let mut rig = Rig::new(Box::new(device), KERNELS.as_bytes());
    let counts = rig.alloc(400);
    assert_eq!(rig.run(1, &Launch::spin(1, counts, 0)).status, LaunchStatus::Complete);
    rig.submit(1, &Launch { kernel: Kernel::FaultAt, ..Launch::fault_at(100, counts, 5, 0, 16) }).expect("room");
    for _ in 0..3 {
        // The device may be lost by now.
        match rig.submit(1, &Launch::new(Kernel::Spin, 1, vec![Param::At(counts), Param::U64(0)])) {
            Ok(_) | Err(SubmitError::Lost) => {}
            Err(SubmitError::Full) => panic!("four fit"),
        }
    }
    // This launch waits for another one that never comes.
    let waits = Launch { followed: true, ..Launch::spin(1, counts, 0) };
    let waits = rig.submit(0, &waits).ok();
    let first = rig.wait();
    assert_eq!(first.status, LaunchStatus::Failed);
    let fault = rig.device.report(first.launch).and_then(|report| report.fault).expect("a fault");
    assert!(matches!(&fault.kind, FaultKind::Fatal { .. }), "nothing else ran: {fault:?}");
    let lost = rig.device.lost().expect("it is gone");
    assert!(
        lost.contains("the GPU's context ended with it") && lost.contains("`fault_at` may have run then"),
        "{lost}"
    );
    let mut unanswered = waits.filter(|launch| *launch != first.launch);
    while let Some(completion) = rig.device.next_completion() {
        assert_eq!(completion.status, LaunchStatus::Failed);
        unanswered = unanswered.filter(|launch| *launch != completion.launch);
    }
    if let Some(launch) = unanswered {
        assert_eq!(rig.wait().launch, launch, "it completes as well");
    }
    assert_eq!(rig.submit(1, &Launch::spin(1, counts, 0)), Err(SubmitError::Lost));
    assert!(matches!(rig.device.read(counts, &mut [0]), Err(DeviceError::Lost(_))));
    assert!(matches!(rig.load(), Err(DeviceError::Lost(_))));
}

#[test]
fn a_fault_loses_the_device_and_every_launch_completes() {
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", "fault_here", "--ignored", "--nocapture"])
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_part_of_a_gpu_is_a_device() {
    let whole = device(Wanted::default()).info().compute_units;
    let start = |part| CudaDevice::start(&CudaConfig { part: Some(part), ..config_of_one() });
    let device = start(GpuPart::Of(1)).expect("a part");
    let units = device.info().compute_units;
    assert!(units >= 1 && units < whole, "{units} of {whole}");
    assert_eq!(device.smallest_partition().expect("it can be divided"), units);
    let mut rig = Rig::new(Box::new(device), KERNELS.as_bytes());
    let counts = rig.alloc(4000);
    for queue in [0, 1] {
        rig.device.fill(counts, 0, 4000).expect("memory");
        assert_eq!(rig.run(queue, &Launch::spin(1000, counts, 0)).status, LaunchStatus::Complete);
        assert!(rig.u32s(counts, 1000).iter().all(|count| *count == 1));
    }
    let rest = start(GpuPart::Beside(1)).expect("what it leaves over").info().compute_units;
    assert!(rest > 0 && units + rest <= whole, "{units} and {rest} of {whole}");
    let refused = |part| start(part).expect_err("there are not so many").to_string();
    assert_eq!(refused(GpuPart::Of(whole + 1)), format!("the GPU has {whole} compute units, not {}", whole + 1));
    assert_eq!(
        refused(GpuPart::Beside(whole)),
        format!("a part of {whole} compute units leaves none of the GPU's over")
    );
}

#[test]
fn memory_is_cleared_when_a_device_starts() {
    let mut device = device(Wanted::default());
    let mut bytes = vec![1; 1 << 20];
    device.read(DeviceOffset(0), &mut bytes).expect("memory");
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn kernels_read_epochs_where_it_was_measured_to_be_best() {
    let (bar_library, all) = routes();
    for flag_route in all.iter().copied().map(Some).chain([None]) {
        let device = CudaDevice::start(&CudaConfig { flag_route, bar_library: bar_library.clone(), ..config_of_one() })
            .expect("a GPU");
        assert_eq!(device.flag_routes().is_some(), flag_route.is_none());
        if let Some(routes) = device.flag_routes() {
            let works = routes.mapped.is_some()
                && routes.stream_write.is_some()
                && (routes.bar.is_some() || bar_library.is_none());
            assert!(works, "all work here: {routes:?}");
        }
        let mut rig = Rig::new(Box::new(device), KERNELS.as_bytes());
        let counts = rig.alloc(4);
        let preempt = rig.preempt(1);
        assert_eq!(rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status, LaunchStatus::Complete);
        rig.device.fill(preempt.progress, 0, 1).expect("memory");
        rig.device.store_epoch(preempt.epoch_word, Epoch(1));
        // The transfer runs after the write, for which nothing else waits.
        assert_eq!(rig.u32(preempt.epoch_word), 1);
        assert_eq!(rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status, LaunchStatus::Evicted);
    }
}

#[test]
fn a_machine_without_gdrcopy_has_the_other_routes() {
    let nowhere = CudaConfig { bar_library: Some(PathBuf::from("/nowhere/libgdrapi.so.2")), ..config_of_one() };
    let device = CudaDevice::start(&CudaConfig { flag_route: None, ..nowhere.clone() }).expect("a GPU");
    assert!(device.flag_routes().is_some_and(|routes| routes.bar.is_none() && routes.mapped.is_some()));
    let refused =
        CudaDevice::start(&CudaConfig { flag_route: Some(FlagRoute::Bar), ..nowhere }).expect_err("it was asked for");
    assert!(refused.to_string().contains("GDRCopy is not installed (/nowhere/libgdrapi.so.2"), "{refused}");
}
