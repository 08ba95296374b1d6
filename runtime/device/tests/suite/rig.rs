//! A device with the suite's kernels, and shorthands to launch them.

use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{AddressSlots, Completion, Device, DeviceError, LaunchRecord, ModuleId, ModuleImage, SubmitError};
use atoll_kgraph::KernelFacts;
use atoll_kgraph::host_abi::TrapCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a test needs from its device.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub compute_units: u32,
    pub queue_capacity: u32,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted { compute_units: 2, queue_capacity: 4 }
    }
}

/// The suite's kernels, in the order of `kernels.c`.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {
    VectorAdd,
    Spin,
    SpinPreemptible,
    Note,
    NotePreemptible,
    TrapAt,
    FaultAt,
    Arenas,
    StampFirst,
    StampLastPreemptible,
    ForeverAt,
    PrintAll,
    Checked,
    SystemCall,
    SettlePreemptible,
    Wide,
    WidePreemptible,
}

/// Shared and scratch memory of [`Kernel::Arenas`].
pub const ARENAS_SHARED_BYTES: u32 = 48 << 10;
pub const ARENAS_SCRATCH_BYTES: u32 = 3 << 20;

/// The facts of all kernels, in the order of [`Kernel`].
pub fn facts() -> Vec<KernelFacts> {
    let fact = |name: &str, params_bytes, preempt_offset| KernelFacts {
        name: name.to_owned(),
        block: [256, 1, 1],
        params_bytes,
        preempt_offset,
        shared_bytes: 0,
        scratch_bytes: 0,
        ..KernelFacts::default()
    };
    let arenas = KernelFacts {
        shared_bytes: ARENAS_SHARED_BYTES,
        scratch_bytes: ARENAS_SCRATCH_BYTES,
        ..fact("arenas", 16, None)
    };
    vec![
        fact("vector_add", 28, None),
        fact("spin", 16, None),
        fact("spin_preemptible", 44, Some(16)),
        fact("note", 24, None),
        fact("note_preemptible", 52, Some(24)),
        fact("trap_at", 32, None),
        fact("fault_at", 24, None),
        arenas,
        fact("stamp_first", 16, None),
        fact("stamp_last_preemptible", 44, Some(16)),
        fact("forever_at", 24, None),
        fact("print_all", 24, None),
        fact("checked", 32, None),
        fact("system_call", 48, None),
        fact("settle_preemptible", 44, Some(16)),
        fact("wide", 4096, None),
        fact("wide_preemptible", 4092, Some(4064)),
    ]
}

/// One parameter.
#[derive(Clone, Copy, Debug)]
pub enum Param {
    At(DeviceOffset),
    U64(u64),
    U32(u32),
    U8(u8),
}

/// Where the preemption state of a launch is.
#[derive(Clone, Copy, Debug)]
pub struct Preempt {
    pub epoch_word: DeviceOffset,
    pub evicted_word: DeviceOffset,
    pub progress: DeviceOffset,
    pub epoch: Epoch,
}

/// A launch under construction.
#[derive(Clone, Debug)]
pub struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub shared_bytes: u32,
    pub params: Vec<Param>,
    pub preempt: Option<Preempt>,
    /// Its blocks may be stopped midway.
    pub may_run_again: bool,
    /// The next launch follows at once.
    pub followed: bool,
}

/// A device with the kernels loaded.
pub struct Rig {
    pub device: Box<dyn Device>,
    pub module: ModuleId,
    /// The kernels as code for the device.
    pub code: &'static [u8],
    launches: u64,
    /// Where the memory of its domain begins.
    base: u64,
    used_bytes: u64,
}

impl Rig {
    /// Loads the kernels into a device.
    pub fn new(device: Box<dyn Device>, code: &'static [u8]) -> Rig {
        let mut rig = Rig { device, module: ModuleId(0), code, launches: 0, base: 0, used_bytes: 0 };
        rig.module = rig.load().expect("the suite's kernels");
        rig.base = rig.device.domain("suite").expect("a domain").0;
        rig
    }

    /// Loads the kernels again.
    pub fn load(&mut self) -> Result<ModuleId, DeviceError> {
        let target = self.device.info().targets.last().expect("a target").clone();
        self.device.load_module(ModuleImage {
            domain: "suite",
            target: &target,
            code: self.code,
            ptx: None,
            kernels: &facts(),
        })
    }

    /// Zeroed device memory.
    pub fn alloc(&mut self, bytes: u64) -> DeviceOffset {
        let at = DeviceOffset(self.base + self.used_bytes);
        self.used_bytes += bytes.next_multiple_of(256);
        assert!(self.used_bytes <= self.device.info().memory_bytes);
        self.device.fill(at, 0, bytes).expect("memory");
        at
    }

    /// A zeroed constant that the kernels may read.
    pub fn constant(&mut self, at: DeviceOffset, bytes: u64) -> DeviceOffset {
        self.device.reserve_constant(at, bytes).expect("a free place");
        self.device.show_constants("suite", &[at]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.device.sees_constants("suite") {
            assert!(Instant::now() < deadline, "it is never mapped");
            std::thread::sleep(Duration::from_micros(50));
        }
        at
    }

    /// Preemption state for a launch of `blocks` blocks.
    pub fn preempt(&mut self, blocks: u64) -> Preempt {
        Preempt {
            epoch_word: self.alloc(4),
            evicted_word: self.alloc(4),
            progress: self.alloc(blocks),
            epoch: Epoch(0),
        }
    }

    pub fn submit(&mut self, queue: u32, launch: &Launch) -> Result<LaunchId, SubmitError> {
        self.submit_changed(queue, launch, |_| {})
    }

    /// Submits a launch after changing its record.
    pub fn submit_changed(
        &mut self,
        queue: u32,
        launch: &Launch,
        change: impl FnOnce(&mut LaunchRecord),
    ) -> Result<LaunchId, SubmitError> {
        let (params, address_slots) = layout(launch);
        let preempt = launch.preempt;
        let mut record = LaunchRecord {
            launch: LaunchId(self.launches),
            module: self.module,
            kernel: launch.kernel as u32,
            grid: launch.grid,
            shared_bytes: launch.shared_bytes,
            address_slots,
            evicted_word: preempt.map_or(DeviceOffset(0), |p| p.evicted_word),
            epoch_word: preempt.map_or(DeviceOffset(0), |p| p.epoch_word),
            epoch: preempt.map_or(Epoch(0), |p| p.epoch),
            preemptible: u32::from(preempt.is_some()),
            may_run_again: u32::from(launch.may_run_again),
            followed: u32::from(launch.followed),
        };
        change(&mut record);
        self.device.submit(QueueId(queue), &record, &params)?;
        self.launches += 1;
        Ok(record.launch)
    }

    /// The next completion; waits for it as the engine does.
    pub fn wait(&mut self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(completion) = self.device.next_completion() {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            let fd = self.device.completion_fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut fds, Some(&second));
        }
    }

    /// Submits a launch and waits for its completion.
    pub fn run(&mut self, queue: u32, launch: &Launch) -> Completion {
        let id = self.submit(queue, launch).expect("a free place");
        let completion = self.wait();
        assert_eq!(completion.launch, id);
        completion
    }

    pub fn u32s(&mut self, at: DeviceOffset, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.device.read(at, &mut bytes).expect("memory");
        bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub fn u64s(&mut self, at: DeviceOffset, count: usize) -> Vec<u64> {
        self.u32s(at, count * 2).chunks_exact(2).map(|w| u64::from(w[0]) | u64::from(w[1]) << 32).collect()
    }

    pub fn u32(&mut self, at: DeviceOffset) -> u32 {
        self.u32s(at, 1)[0]
    }

    /// Waits until a word that a running kernel writes has a value.
    pub fn wait_for(&mut self, at: DeviceOffset, value: u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.u32(at) != value {
            assert!(Instant::now() < deadline, "the word at {at:?} is {}, not {value}", self.u32(at));
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The parameter block, naturally aligned, and the slots that hold offsets.
fn layout(launch: &Launch) -> (Vec<u8>, AddressSlots) {
    let (mut bytes, mut slots) = (Vec::new(), AddressSlots::NONE);
    let mut push = |param: &Param| {
        let align = match param {
            Param::At(_) | Param::U64(_) => 8,
            Param::U32(_) => 4,
            Param::U8(_) => 1,
        };
        bytes.resize(bytes.len().next_multiple_of(align), 0u8);
        match *param {
            Param::At(at) => {
                slots.insert(bytes.len() / 8);
                bytes.extend(at.0.to_ne_bytes());
            }
            Param::U64(value) => bytes.extend(value.to_ne_bytes()),
            Param::U32(value) => bytes.extend(value.to_ne_bytes()),
            Param::U8(value) => bytes.push(value),
        }
    };
    launch.params.iter().for_each(&mut push);
    if let Some(p) = launch.preempt {
        [Param::At(p.epoch_word), Param::At(p.evicted_word), Param::At(p.progress), Param::U32(p.epoch.0)]
            .iter()
            .for_each(push);
    }
    (bytes, slots)
}

impl Launch {
    pub fn new(kernel: Kernel, blocks: u32, params: Vec<Param>) -> Launch {
        Launch {
            kernel,
            grid: [blocks, 1, 1],
            shared_bytes: 0,
            params,
            preempt: None,
            may_run_again: false,
            followed: false,
        }
    }

    pub fn preemptible(self, preempt: Preempt) -> Launch {
        Launch { preempt: Some(preempt), ..self }
    }

    /// Blocks that spin for `cycles` cycles and then count themselves.
    pub fn spin(blocks: u32, counts: DeviceOffset, cycles: u64) -> Launch {
        Launch::new(Kernel::Spin, blocks, vec![Param::At(counts), Param::U64(cycles)])
    }

    pub fn spin_preemptible(blocks: u32, counts: DeviceOffset, cycles: u64, preempt: Preempt) -> Launch {
        Launch { kernel: Kernel::SpinPreemptible, ..Launch::spin(blocks, counts, cycles) }.preemptible(preempt)
    }

    /// Block `at` traps in thread 7 at line 1234.
    pub fn trap_at(blocks: u32, counts: DeviceOffset, at: u64, code: TrapCode) -> Launch {
        let params = vec![Param::At(counts), Param::U64(at), Param::U32(code as u32), Param::U32(0), Param::U64(0)];
        Launch::new(Kernel::TrapAt, blocks, params)
    }

    /// Block `at` faults in one of the ways that `kernels.c` lists.
    pub fn fault_at(blocks: u32, counts: DeviceOffset, at: u32, kind: u32, address: u64) -> Launch {
        let params = vec![Param::At(counts), Param::U32(at), Param::U32(kind), Param::U64(address)];
        Launch::new(Kernel::FaultAt, blocks, params)
    }

    /// Blocks that write `tag` into a log and then wait until the gate word is at least `until`.
    pub fn note(blocks: u32, log: DeviceOffset, tag: u32, gate: DeviceOffset, until: u32) -> Launch {
        Launch::new(Kernel::Note, blocks, vec![Param::At(log), Param::At(gate), Param::U32(tag), Param::U32(until)])
    }

    pub fn note_preemptible(
        blocks: u32,
        log: DeviceOffset,
        tag: u32,
        gate: DeviceOffset,
        until: u32,
        preempt: Preempt,
    ) -> Launch {
        Launch { kernel: Kernel::NotePreemptible, ..Launch::note(blocks, log, tag, gate, until) }.preemptible(preempt)
    }
}

/// The compiled code of `kernels.c`.
pub fn kernels() -> &'static [u8] {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    CODE.get_or_init(compile_kernels)
}

/// Compiles the kernels with the C compiler that links Rust programs.
fn compile_kernels() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, object) = (folder.path().join("kernels.c"), folder.path().join("kernels.so"));
    std::fs::write(&source, include_str!("../kernels/kernels.c")).expect("room for a file");
    // Line tables without column info, as Atoll's compiler of kernels emits.
    let flags = [
        "-g1",
        "-gno-column-info",
        "-O2",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-fno-stack-protector",
        "-fcf-protection=none",
    ];
    let status =
        std::process::Command::new("cc").args(flags).arg("-o").arg(&object).arg(source).status().expect("a C compiler");
    assert!(status.success(), "kernels.c does not compile");
    std::fs::read(&object).expect("an object")
}

/// Waits until `found` returns a value; events of the owner's device wake it.
///
/// # Panics
/// If nothing is found within a minute.
pub fn wait_for<O, D: Device, T>(
    owner: &mut O,
    device: impl Fn(&O) -> &D,
    mut found: impl FnMut(&mut O) -> Option<T>,
) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found(owner) {
            return found;
        }
        assert!(Instant::now() < end, "it never happened");
        let fd = device(owner).completion_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 }));
    }
}
