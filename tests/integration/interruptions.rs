//! Running kernels are interrupted at random points, repeatedly, by others on the same compute
//! units. Results must not change.
//!
//! The kernels of `restless.ptx` store results while they run, and use different modes of the
//! floating-point unit: flushing and keeping subnormal numbers, and code for x86-64-v3 that changes
//! the rounding mode in MXCSR. `ATOLL_SEED` repeats a run, as far as timing can be repeated.

use crate::cancel::metric;
use crate::functions::pack_grind;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Answer, Call, Class, Client, ClientError, DataType, Deploy, Tensor};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{
    AddressSlots, Completion, Device, LaunchRecord, LaunchStatus, Launching, Memory, ModuleId, ModuleImage, Modules,
    Telemetry,
};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{
    Engine, EngineConfig, EngineHandle, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, InvokeError,
    OutputTensor,
};
use atoll_kgraph::{BufferKind, Bundle, RerunFact, preempt_params};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::chaos::grind;
use atoll_tests::{built, compile, full, root};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
const BYTES: u64 = (BLOCKS * THREADS * 4) as u64;

/// Loop iterations of the interrupted kernels: tens to hundreds of microseconds per block.
const ROUNDS: [u32; 3] = [3_000, 6_000, 12_000];
/// Loop iterations of the interrupting kernels.
const URGENT_ROUNDS: u32 = 20;

/// Time in which every compute unit gets a chunk, even on a slow machine.
const WORKS_WITHIN: Duration = Duration::from_secs(30);

const URGENT: QueueId = QueueId(0);
const LONG: QueueId = QueueId(1);

/// A kernel with a number of iterations, and its expected result.
struct Work {
    module: ModuleId,
    kernel: u32,
    name: String,
    preempt_offset: u32,
    shared_bytes: u32,
    rounds: u32,
    expected: Vec<u8>,
}

/// Memory of a launch.
#[derive(Clone, Copy)]
struct Place {
    out: DeviceOffset,
    epoch_word: DeviceOffset,
    evicted_word: DeviceOffset,
    progress: DeviceOffset,
}

impl Place {
    fn new(index: u64) -> Place {
        let at = |offset| DeviceOffset(BYTES * (2 + 2 * index) + offset);
        Place { out: at(0), epoch_word: at(BYTES), evicted_word: at(BYTES + 64), progress: at(BYTES + 128) }
    }
}

/// A long launch that is in flight.
struct Long {
    work: usize,
    place: Place,
    launch: LaunchId,
}

struct Rig {
    device: HostDevice,
    launches: u64,
    epoch: Epoch,
    works: Vec<Work>,
    urgent: Vec<Work>,
    interruptions: u64,
}

impl Rig {
    fn new() -> Result<Rig> {
        let config = HostConfig { compute_units: 2, memory_bytes: 1 << 20, queue_capacity: 2, ..HostConfig::default() };
        let mut rig = Rig {
            device: HostDevice::start(config)?,
            launches: 0,
            epoch: Epoch(0),
            works: Vec::new(),
            urgent: Vec::new(),
            interruptions: 0,
        };
        let inputs: Vec<u8> = (0..BLOCKS * THREADS).flat_map(|i| (1.0f32 + i as f32 / 64.0).to_le_bytes()).collect();
        rig.device.write(DeviceOffset(0), &inputs)?;
        let bundle = restless()?;
        let targets = rig.device.info().targets.clone();
        for target in targets.iter().filter(|target| bundle.code(target).is_some()) {
            rig.load(&bundle, target)?;
        }
        Ok(rig)
    }

    /// Loads the kernels and records their results without interruptions.
    fn load(&mut self, bundle: &Bundle, target: &str) -> Result<()> {
        let kernels = &bundle.target(target).context("a target")?.kernels;
        let image =
            ModuleImage { domain: "local", target, code: bundle.code(target).context("code")?, ptx: None, kernels };
        let module = self.device.load_module(image)?;
        for (kernel, facts) in (0..).zip(kernels) {
            let is_harmless = !matches!(facts.rerun, None | Some(RerunFact::Never(_)));
            ensure!(is_harmless, "{}: {:?}", facts.name, facts.rerun);
            let work = |rounds| Work {
                module,
                kernel,
                name: format!("{} for {target}", facts.name),
                preempt_offset: facts.preempt_offset.expect("it is preemptible"),
                shared_bytes: facts.shared_bytes,
                rounds,
                expected: Vec::new(),
            };
            for rounds in ROUNDS {
                let work = self.undisturbed(work(rounds))?;
                self.works.push(work);
            }
            let urgent = self.undisturbed(work(URGENT_ROUNDS))?;
            self.urgent.push(urgent);
        }
        Ok(())
    }

    fn undisturbed(&mut self, work: Work) -> Result<Work> {
        let place = Place::new(0);
        self.begin(place)?;
        self.submit(&work, LONG, place)?;
        ensure!(self.wait()?.status == LaunchStatus::Complete);
        let expected = self.output(place)?;
        ensure!(expected.iter().any(|byte| *byte != 0), "{} gives nothing", work.name);
        Ok(Work { expected, ..work })
    }

    fn begin(&mut self, place: Place) -> Result<()> {
        self.device.fill(place.out, 0xAA, BYTES)?;
        self.device.fill(place.epoch_word, 0, BYTES)?;
        self.device.store_epoch(place.epoch_word, self.epoch);
        Ok(())
    }

    fn output(&mut self, place: Place) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BYTES as usize];
        self.device.read(place.out, &mut bytes)?;
        Ok(bytes)
    }

    fn submit(&mut self, work: &Work, queue: QueueId, place: Place) -> Result<LaunchId> {
        let mut params = vec![0; work.preempt_offset as usize + preempt_params::BYTES as usize];
        let mut set = |at: u32, bytes: &[u8]| params[at as usize..][..bytes.len()].copy_from_slice(bytes);
        set(8, &place.out.0.to_le_bytes());
        set(16, &work.rounds.to_le_bytes());
        let preempt = work.preempt_offset;
        let words = [
            (preempt_params::EPOCH_WORD, place.epoch_word),
            (preempt_params::EVICTED_WORD, place.evicted_word),
            (preempt_params::PROGRESS, place.progress),
        ];
        let mut address_slots: AddressSlots = [0, 1].into_iter().collect();
        for (at, word) in words {
            set(preempt + at, &word.0.to_le_bytes());
            address_slots.insert((preempt + at) as usize / 8);
        }
        set(preempt + preempt_params::ISSUED_EPOCH, &self.epoch.0.to_le_bytes());
        let record = LaunchRecord {
            launch: LaunchId(self.launches),
            module: work.module,
            kernel: work.kernel,
            grid: [BLOCKS, 1, 1],
            shared_bytes: work.shared_bytes,
            address_slots,
            evicted_word: place.evicted_word,
            epoch_word: place.epoch_word,
            epoch: self.epoch,
            preemptible: 1,
            may_run_again: 1,
            followed: 0,
        };
        self.launches += 1;
        self.device.submit(queue, &record, &params).context("a launch that there is room for")?;
        Ok(record.launch)
    }

    fn wait(&mut self) -> Result<Completion> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(completion) = self.device.next_completion() {
                let report = self.device.report(completion.launch);
                ensure!(completion.status != LaunchStatus::Failed, "{report:?}");
                self.interruptions += completion.reexecuted_blocks;
                return Ok(completion);
            }
            ensure!(Instant::now() < until, "no completion arrives");
            let fd = self.device.completion_fd();
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&second))?;
        }
    }

    /// Submits one interrupting launch and checks its result. Completions of other launches go to
    /// `others`.
    fn interrupt(&mut self, work: usize, others: &mut Vec<Completion>) -> Result<()> {
        let place = Place::new(0);
        self.begin(place)?;
        let urgent = std::mem::take(&mut self.urgent);
        let launch = self.submit(&urgent[work], URGENT, place)?;
        loop {
            let completion = self.wait()?;
            if completion.launch == launch {
                break;
            }
            others.push(completion);
        }
        ensure!(
            self.output(place)? == urgent[work].expected,
            "urgent launch of {} gave a different result",
            urgent[work].name
        );
        self.urgent = urgent;
        Ok(())
    }

    fn begin_long(&mut self, rng: &mut Rng, place: Place) -> Result<Long> {
        self.begin(place)?;
        let work = rng.below(self.works.len() as u64) as usize;
        self.go_on(Long { work, place, launch: LaunchId(0) })
    }

    fn go_on(&mut self, long: Long) -> Result<Long> {
        self.device.store_epoch(long.place.epoch_word, self.epoch);
        self.device.fill(long.place.evicted_word, 0, 4)?;
        let works = std::mem::take(&mut self.works);
        let launch = self.submit(&works[long.work], LONG, long.place)?;
        self.works = works;
        Ok(Long { launch, ..long })
    }

    /// Continues after the end of a long launch: resumes it if it was evicted, or checks it and
    /// starts another one.
    fn follow(&mut self, rng: &mut Rng, long: Long, completion: &Completion) -> Result<Long> {
        if completion.status == LaunchStatus::Evicted {
            return self.go_on(long);
        }
        let Work { name, expected, rounds, .. } = &self.works[long.work];
        let what = format!("{name}, {rounds} rounds, interrupted {} times", completion.reexecuted_blocks);
        let expected = expected.clone();
        ensure!(self.output(long.place)? == expected, "{what}: the result differs from an uninterrupted run");
        self.begin_long(rng, long.place)
    }
}

fn restless() -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("restless.kg");
    let options = CompileOptions { targets: vec![Target::HostV3, Target::HostV4], ..CompileOptions::default() };
    pack(&root().join("tests/functions/restless.toml"), &path, &options, &Silent)?;
    Ok(Bundle::open(&path)?)
}

fn run(seed: u64, wanted: u64) -> Result<()> {
    let (mut rng, mut rig) = (Rng::new(seed), Rig::new()?);
    let mut longs = vec![rig.begin_long(&mut rng, Place::new(1))?, rig.begin_long(&mut rng, Place::new(2))?];
    let mut ends = Vec::new();
    while rig.interruptions < wanted {
        std::thread::sleep(Duration::from_micros(rng.below(150)));
        if rng.one_in(50) {
            rig.epoch = rig.epoch.next();
            longs.iter().for_each(|long| rig.device.store_epoch(long.place.epoch_word, rig.epoch));
        }
        match rng.below(100) {
            // Lets some work finish.
            0 => ends.push(rig.wait()?),
            _ => {
                let work = rng.below(rig.urgent.len() as u64) as usize;
                rig.interrupt(work, &mut ends)?;
            }
        }
        for completion in ends.drain(..) {
            let index = longs
                .iter()
                .position(|long| long.launch == completion.launch)
                .context("the completion of an unknown launch")?;
            let long = longs.remove(index);
            longs.push(rig.follow(&mut rng, long, &completion)?);
        }
    }
    // Every compute unit still works.
    let before: Vec<u64> = rig.device.compute_units().iter().map(|unit| unit.chunks).collect();
    let end = Instant::now() + WORKS_WITHIN;
    loop {
        let completion = rig.wait()?;
        let index = longs
            .iter()
            .position(|long| long.launch == completion.launch)
            .context("the completion of an unknown launch")?;
        let long = longs.remove(index);
        longs.push(rig.follow(&mut rng, long, &completion)?);
        let after = rig.device.compute_units();
        if before.iter().zip(&after).all(|(before, after)| after.chunks > *before) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "a compute unit made no progress: {before:?}, {after:?}");
    }
}

#[test]
fn interrupted_kernels_give_the_same_results() {
    let wanted = if full() { 300_000 } else { 4_000 };
    let seed = atoll_tests::seed();
    if let Err(error) = run(seed, wanted) {
        panic!("{error:#}\nagain: ATOLL_SEED={seed} cargo test -p atoll-tests --test integration interrupted_kernels");
    }
}

/// A call of `grind`.
fn grind_call(x: &[u32], times: u32, class: Class) -> Call {
    let vector = |values: &[u32]| Tensor {
        datatype: DataType::Uint32,
        shape: vec![values.len() as i64],
        bytes: grind::bytes(values),
    };
    Call::of("grind").input("x", vector(x)).input("times", vector(&[times])).class(class)
}

#[test]
fn an_endless_kernel_is_preempted_repeatedly_and_ends_at_its_time_limit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("repository"))?;
    let daemon = Daemon::start_with(&folder.path().join("repository"), folder.path(), &["--time-limit", "2"])?;
    let connect =
        || Client::connect_as(&folder.path().join("atoll.sock"), Some("a".parse()?)).context("the control socket");
    let mut client = connect()?;
    client.deploy(&pack_grind(folder.path(), 1)?, &Deploy::default())?;
    // Blocks for all compute units: a launch that needs one compute unit takes only one.
    let (x, table) = ([7; 4096], grind::table(1));
    let expected = grind::bytes(&grind::grind(&x, &table, 10));
    client.invoke(grind_call(&x, 10, Class::RealTime))?;
    // Each block takes minutes.
    let (answered, endless) = std::thread::scope(|scope| -> Result<_> {
        let endless = scope.spawn(|| -> Result<Result<Answer, ClientError>> {
            Ok(connect()?.invoke(grind_call(&x, u32::MAX, Class::BestEffort)))
        });
        let mut answered = 0;
        while !endless.is_finished() {
            let answer = client.invoke(grind_call(&x, 10, Class::RealTime))?;
            ensure!(answer.tensor("y")?.bytes == expected);
            answered += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok((answered, endless.join().expect("no panic")?))
    })?;
    let refusal = endless.expect_err("its time is limited").to_string();
    ensure!(refusal.contains("2 s"), "{refusal}");
    ensure!(answered > 10, "{answered} requests were answered meanwhile");
    ensure!(metric(&daemon, "atoll_reexecuted_blocks_total")? > 0.0);
    let after = client.invoke(grind_call(&x, 10, Class::BestEffort))?;
    ensure!(after.tensor("y")?.bytes == expected);
    Ok(())
}

/// A loaded model, with an input and its result when the model runs alone.
struct Asked {
    handle: EngineHandle,
    name: &'static str,
    class: Class,
    inputs: Vec<InputTensor>,
    expected: Vec<OutputTensor>,
}

impl Asked {
    fn load(engine: &Engine, name: &'static str, class: Class, folder: &Path) -> Result<Asked> {
        let bundle = compile(&built(name, folder)?, folder)?;
        let handle = engine.handle();
        handle.load(
            bundle.clone(),
            FunctionOptions {
                key: FunctionKey::local(name),
                class,
                queue_capacity: None,
                lane: Default::default(),
                batching: None,
            },
        )?;
        let input = |(_, spec): (_, &atoll_kgraph::BufferSpec)| {
            let shape: Vec<i64> = spec.shape.iter().map(|extent| extent.eval(&[])).collect::<Result<_, _>>()?;
            let count = shape.iter().product::<i64>() as usize;
            Ok(InputTensor {
                dtype: Some(spec.dtype),
                shape,
                bytes: (0..count).flat_map(|i| ((i * 37 % 255) as f32 / 255.0).to_le_bytes()).collect(),
            })
        };
        let inputs = bundle.graph().buffers_of(BufferKind::Input).map(input).collect::<Result<Vec<_>>>()?;
        let mut asked = Asked { handle, name, class, inputs, expected: Vec::new() };
        asked.expected = asked.ask()?;
        Ok(asked)
    }

    fn ask(&self) -> Result<Vec<OutputTensor>, InvokeError> {
        let (answer, answered) = mpsc::channel();
        let request = InvocationRequest {
            function: FunctionKey::local(self.name),
            inputs: self.inputs.clone(),
            class: Some(self.class),
            priority: 0,
            instance: None,
            deadline: None,
        };
        self.handle.submit(request, Box::new(move |result| drop(answer.send(result.map(|result| result.outputs)))));
        answered.recv().unwrap_or(Err(InvokeError::ShuttingDown))
    }

    fn check(&self) -> Result<()> {
        let outputs = self.ask()?;
        let is_same = outputs.iter().zip(&self.expected).all(|(got, alone)| got.bytes == alone.bytes);
        ensure!(
            is_same && outputs.len() == self.expected.len(),
            "{} gives a different result than when it runs alone",
            self.name
        );
        Ok(())
    }
}

#[test]
fn interrupted_models_give_the_same_bits_as_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let device = HostDevice::start(HostConfig { compute_units: 2, ..HostConfig::default() })?;
    let engine = Engine::start(Box::new(device), EngineConfig::default())?;
    let urgent = Asked::load(&engine, "squeezenet", Class::RealTime, folder.path())?;
    let long = Asked::load(&engine, "resnet50", Class::BestEffort, folder.path())?;
    let (over, mut rng) = (AtomicBool::new(false), Rng::new(5));
    let done = std::thread::scope(|scope| -> Result<u32> {
        let keep_busy = || -> Result<u32> {
            let mut done = 0;
            while !over.load(Relaxed) {
                long.check()?;
                done += 1;
            }
            Ok(done)
        };
        let clients = [scope.spawn(keep_busy), scope.spawn(keep_busy)];
        let asked = (0..if full() { 2_000 } else { 100 }).try_for_each(|_| {
            std::thread::sleep(Duration::from_micros(rng.below(5_000)));
            urgent.check()
        });
        over.store(true, Relaxed);
        let done = clients.into_iter().map(|client| client.join().expect("no panic")).sum::<Result<u32>>();
        asked.and(done)
    })?;
    let statistics = engine.handle().statistics();
    ensure!(
        done > 0 && statistics.preemptions > 0,
        "{done} best-effort requests, {} preemptions",
        statistics.preemptions
    );
    engine.shutdown();
    Ok(())
}
