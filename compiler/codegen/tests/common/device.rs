//! Runs the host kernels of a schedule, node by node, on the calling thread.

use super::Model;
use atoll_codegen::{Emitted, HostLevel, Schedule, TargetDescription, emit, schedule};
use atoll_frontend::tensor::{Data, Tensor};
use atoll_kgraph::host_abi::{HOST_ABI_VERSION, HostContext, HostHelpers, HostKernel};
use atoll_kgraph::{
    Argument, Border, BufferKind, DType, Expr, Flow, FlowItem, LaunchSpec, LoopProgress, NodeKind, Scalar,
};
use atoll_target_host::{CompiledKernel, CpuLevel, KernelShape, Options, compile};
use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// Memory with the alignment that buffers have on devices.
#[repr(align(256))]
#[derive(Clone)]
struct Chunk([u8; 256]);

struct Memory {
    chunks: Vec<Chunk>,
    bytes: usize,
}

impl Memory {
    /// Fills the memory with a pattern that is NaN as a float and conspicuous as an integer, to
    /// show reads of unwritten memory.
    fn new(bytes: usize) -> Memory {
        Memory { chunks: vec![Chunk([0xFF; 256]); bytes.div_ceil(256).max(1)], bytes }
    }

    fn address(&mut self) -> u64 {
        self.chunks.as_mut_ptr() as u64
    }

    fn fill(&mut self, content: &[u8]) {
        for (chunk, bytes) in self.chunks.iter_mut().zip(content.chunks(256)) {
            chunk.0[..bytes.len()].copy_from_slice(bytes);
        }
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.chunks.iter().flat_map(|c| c.0).collect();
        bytes.truncate(self.bytes);
        bytes
    }
}

/// The CPU levels that this machine supports.
pub fn levels() -> Vec<(CpuLevel, HostLevel)> {
    let highest = CpuLevel::of_this_machine();
    [(CpuLevel::V3, HostLevel::V3), (CpuLevel::V4, HostLevel::V4)]
        .into_iter()
        .filter(|(l, _)| Some(*l) <= highest)
        .collect()
}

/// A compiled model, with memory for all its buffers.
pub struct Session {
    schedule: Schedule,
    emitted: Emitted,
    kernels: HashMap<String, (HostKernel, CompiledKernel)>,
    buffers: Vec<Memory>,
    symbols: Vec<i64>,
    /// The words that kernels set when a check is violated.
    checks: Memory,
    shared: Memory,
    scratch: Memory,
    _library: libloading::Library,
    _file: std::fs::File,
}

impl Session {
    pub fn new(model: &Model, level: CpuLevel, target: &TargetDescription) -> Session {
        let schedule = schedule(&model.graph).unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
        let emitted = emit(&schedule, target).unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
        let shapes: Vec<KernelShape> =
            emitted.kernels.iter().map(|k| KernelShape { name: k.name.as_str().into(), block: k.block }).collect();
        // The host target reads printed text, as it does from a bundle.
        let text = atoll_ptx::print(&emitted.module);
        let module = atoll_ptx::parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", model.graph.name));
        let object = compile(&module, &shapes, level, &Options::default())
            .unwrap_or_else(|e| panic!("{}: {e}\n{text}", model.graph.name));
        let (library, file) = load(&object.elf);
        let kernels: HashMap<_, _> = object
            .kernels
            .iter()
            .map(|facts| {
                // SAFETY: kernels have this type by contract.
                let kernel = unsafe { *library.get::<HostKernel>(facts.name.as_bytes()).expect("kernel symbol") };
                (facts.name.to_string(), (kernel, facts.clone()))
            })
            .collect();
        let most = |of: fn(&CompiledKernel) -> u32| object.kernels.iter().map(of).max().unwrap_or(0) as usize;
        let (shared, scratch) = (Memory::new(most(|k| k.shared_static_bytes)), Memory::new(most(|k| k.scratch_bytes)));
        let symbols = symbols(model);
        let buffers = buffers(&schedule, model, &symbols);
        let mut checks = Memory::new(4 * schedule.graph.checks.len());
        checks.fill(&vec![0; 4 * schedule.graph.checks.len()]);
        Session {
            schedule,
            emitted,
            kernels,
            buffers,
            symbols,
            checks,
            shared,
            scratch,
            _library: library,
            _file: file,
        }
    }

    /// Runs the nodes, as often as the control flow says.
    pub fn run(&mut self) {
        let flow = Flow::of(&self.schedule.graph);
        let mut loops = vec![LoopProgress::default(); flow.loops.len()];
        let mut at = 0;
        while let Some(item) = flow.items.get(at) {
            at = match *item {
                FlowItem::Node(node) => {
                    self.run_node(node as usize);
                    self.read_sizes_back(node as usize);
                    at + 1
                }
                FlowItem::Border(border) => self.cross(&flow, border, at, &mut loops),
            };
        }
    }

    /// The item after a border.
    fn cross(&self, flow: &Flow, border: Border, at: usize, loops: &mut [LoopProgress]) -> usize {
        let (index, begins) = match border {
            Border::Branch { condition, otherwise } => {
                return if self.scalar(condition) != 0 { at + 1 } else { otherwise };
            }
            Border::Leave { to } => return to,
            Border::Enter(index) => (index, true),
            Border::Repeat(index) => (index, false),
        };
        let own = &flow.loops[index];
        if begins {
            loops[index] = own.enter(own.count.map(|count| self.scalar(count)), &self.symbols).expect("a number");
        } else {
            loops[index].repeat();
        }
        let condition = own.condition.map(|condition| self.scalar(condition) != 0);
        own.next(own.goes_on(loops[index], condition).expect("the loop ends"))
    }

    fn scalar(&self, Scalar { buffer, offset, dtype }: Scalar) -> i64 {
        let content = self.buffers[buffer.0 as usize].content();
        let mut bytes = [0; 8];
        let width = dtype.bytes() as usize;
        bytes[..width].copy_from_slice(&content[offset as usize..][..width]);
        i64::from_le_bytes(bytes)
    }

    /// Sets the symbols whose values a node has computed.
    fn read_sizes_back(&mut self, node: usize) {
        for read_back in self.schedule.graph.read_backs.iter().filter(|read_back| read_back.after.0 as usize == node) {
            let content = self.buffers[read_back.value.buffer.0 as usize].content();
            let value = i32::from_le_bytes(content[..4].try_into().expect("an i32")).into();
            let largest = &mut self.symbols[read_back.symbol.0 as usize];
            assert!((0..=*largest).contains(&value), "{value} elements, {largest} at most");
            *largest = value;
        }
    }

    /// Runs every node `times` times; returns the best time of each.
    pub fn measure(&mut self, times: usize) -> Vec<(String, Duration)> {
        (0..self.schedule.graph.nodes.len())
            .map(|index| {
                let best = (0..times)
                    .map(|_| {
                        let start = Instant::now();
                        self.run_node(index);
                        start.elapsed()
                    })
                    .min();
                (self.schedule.graph.nodes[index].name.clone(), best.unwrap_or_default())
            })
            .collect()
    }

    /// Number of blocks of a node's launch.
    pub fn blocks(&self, index: usize) -> u64 {
        let launch = self.emitted.launches[index].as_ref();
        launch.map_or(0, |l| {
            l.choose(&self.symbols).1.grid.iter().map(|e| e.eval(&self.symbols).expect("grid") as u64).product()
        })
    }

    /// The message of the first violated check.
    pub fn violation(&self) -> Option<String> {
        let violated = self.checks.content().chunks_exact(4).position(|word| word != [0; 4])?;
        Some(self.schedule.graph.checks[violated].message(&self.symbols).expect("a message"))
    }

    /// The client's outputs.
    pub fn outputs(&self) -> Vec<Tensor> {
        let outputs = self.schedule.graph.buffers_of(BufferKind::Output);
        outputs
            .map(|(id, spec)| {
                let shape: Vec<usize> =
                    spec.shape.iter().map(|e| e.eval(&self.symbols).expect("shape") as usize).collect();
                let bytes = shape.iter().product::<usize>() * spec.dtype.bytes() as usize;
                let content = self.buffers[id.0 as usize].content();
                Tensor::from_bytes(spec.dtype, &shape, &content[..bytes]).expect("as many bytes as elements")
            })
            .collect()
    }

    fn run_node(&mut self, index: usize) {
        let node = &self.schedule.graph.nodes[index];
        if let NodeKind::Copy { from, to, bytes, .. } = &node.kind {
            let bytes = bytes.eval(&self.symbols).expect("size") as usize;
            let content = self.buffers[from.0 as usize].content();
            assert_eq!(bytes, content.len(), "a copy is of a whole buffer");
            self.buffers[to.0 as usize].fill(&content);
            return;
        }
        let launch = self.emitted.launches[index].clone().expect("a kernel node has a launch");
        self.launch(launch.choose(&self.symbols).1);
    }

    fn launch(&mut self, launch: &LaunchSpec) {
        let mut params = Memory::new(512);
        let bytes = self.arguments(launch);
        params.fill(&bytes);
        let name = &self.emitted.kernels[launch.kernel.0 as usize].name;
        let (kernel, facts) = self.kernels[name].clone();
        assert_eq!(bytes.len() as u32, facts.params_bytes, "{name}: arguments do not match the parameters");
        let grid = launch.grid.clone().map(|e| e.eval(&self.symbols).expect("grid") as u32);
        let helpers = HostHelpers { trap: trap as *const () as u64, print: 0, check: 0 };
        let (stop, mut running) = (0u32, 0u64);
        let context = HostContext {
            version: HOST_ABI_VERSION,
            compute_unit: 0,
            params: params.address(),
            grid,
            block: facts.block,
            block_begin: 0,
            block_end: grid.iter().map(|&d| u64::from(d)).product(),
            shared: self.shared.address(),
            shared_bytes: facts.shared_static_bytes,
            scratch_bytes: facts.scratch_bytes,
            scratch: self.scratch.address(),
            stop_word: &raw const stop as u64,
            helpers: &raw const helpers as u64,
            block_word: &raw mut running as u64,
            halt_word: &raw const stop as u64,
        };
        // SAFETY: the context is valid for the call; every buffer is as large as its spec says.
        unsafe { kernel(&raw const context) };
    }

    fn arguments(&mut self, launch: &LaunchSpec) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::new();
        let value = |e: &Expr| e.eval(&self.symbols).expect("an argument has a value");
        for argument in &launch.args {
            bytes.resize(bytes.len().next_multiple_of(argument.bytes() as usize), 0);
            match argument {
                Argument::Buffer { buffer, offset } => {
                    let address = self.buffers[buffer.0 as usize].address().wrapping_add_signed(value(offset));
                    bytes.extend_from_slice(&address.to_le_bytes());
                }
                Argument::Check { check } => {
                    let address = self.checks.address() + 4 * u64::from(*check);
                    bytes.extend_from_slice(&address.to_le_bytes());
                }
                Argument::Int { dtype: DType::I32, value: e } => {
                    bytes.extend_from_slice(&i32::try_from(value(e)).expect("a size or a stride").to_le_bytes())
                }
                other => panic!("an argument no kernel of ours takes: {other:?}"),
            }
        }
        bytes
    }
}

unsafe extern "C" fn trap(_: *const HostContext, code: u32, line: u32, _thread: u32, _access: u32, _address: u64) {
    panic!("trap {code} in line {line}");
}

fn load(elf: &[u8]) -> (libloading::Library, std::fs::File) {
    let file = rustix::fs::memfd_create("kernels", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let mut file = std::fs::File::from(file);
    file.write_all(elf).expect("write to memory");
    // SAFETY: the object has no initialisers, and its exports follow the host ABI.
    let library =
        unsafe { libloading::Library::new(format!("/proc/self/fd/{}", file.as_raw_fd())) }.expect("load the object");
    (library, file)
}

/// The values of the symbols, from the input dimensions that are symbols.
fn symbols(model: &Model) -> Vec<i64> {
    let mut symbols = vec![1; model.graph.symbols.len()];
    for (id, tensor) in model.graph.inputs.iter().zip(&model.inputs) {
        for (dim, extent) in model.graph.value(*id).shape.iter().zip(&tensor.shape) {
            if let Expr::Symbol(symbol) = dim {
                symbols[symbol.0 as usize] = *extent as i64;
            }
        }
    }
    for element in &model.graph.elements {
        let Data::Int(values) = &model.inputs[element.input as usize].data else { panic!("sizes are integers") };
        symbols[element.symbol.0 as usize] = values[element.index as usize];
    }
    for size in &model.graph.run_time_sizes {
        symbols[size.symbol.0 as usize] = size.most.eval(&symbols).expect("a bound");
    }
    symbols
}

fn buffers(schedule: &Schedule, model: &Model, symbols: &[i64]) -> Vec<Memory> {
    let mut inputs = model.inputs.iter();
    schedule
        .graph
        .buffers
        .iter()
        .map(|spec| {
            let mut memory = Memory::new(spec.bytes().eval(symbols).expect("size") as usize);
            match (spec.kind, spec.weights_offset) {
                (BufferKind::Input, _) => memory.fill(&inputs.next().expect("an input tensor").to_bytes()),
                (_, Some(offset)) => {
                    let weight = schedule.weights.iter().find(|w| w.offset == offset).expect("a weight at this offset");
                    memory.fill(&weight.bytes);
                }
                _ => {}
            }
            memory
        })
        .collect()
}

/// Runs a model at some levels, and compares with the reference interpreter.
pub fn check(model: &Model, levels: &[(CpuLevel, HostLevel)]) {
    model.graph.verify().unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
    let expected = atoll_frontend::reference::run(&model.graph, &model.inputs)
        .unwrap_or_else(|e| panic!("{}: {e}", model.graph.name));
    for &(level, host) in levels {
        let mut session = Session::new(model, level, &TargetDescription::host(host));
        session.run();
        assert_eq!(session.violation(), None, "{}: a check that must hold", model.graph.name);
        for (index, (expected, found)) in expected.iter().zip(session.outputs()).enumerate() {
            compare(&format!("{} output {index} on {host:?}", model.graph.name), expected, &found);
        }
    }
}

/// Fails if an element differs by more than the rounding tolerance.
fn compare(what: &str, expected: &Tensor, found: &Tensor) {
    assert_eq!((expected.dtype, &expected.shape), (found.dtype, &found.shape), "{what}");
    let tolerance = match expected.dtype {
        DType::F16 => 2e-3,
        DType::Bf16 => 1.6e-2,
        DType::F32 => 4e-6,
        DType::F64 => 1e-12,
        _ => 0.0,
    };
    let (expected, found) = (expected.to_f64(), found.to_f64());
    let scale = expected.iter().filter(|v| v.is_finite()).fold(1e-3f64, |a, v| a.max(v.abs())).min(10.0);
    for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
        let is_same = e == f || (e.is_nan() && f.is_nan());
        let distance = (e - f).abs();
        assert!(is_same || distance <= tolerance * (e.abs() + scale), "{what}: element {i} is {f}, not {e}");
    }
}
