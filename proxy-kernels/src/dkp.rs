//! Generates dkp modules.
//!
//! # The entry
//! A dkp entry has one parameter, an array of bytes: a table of slots, followed by the arguments of
//! each slot. A slot holds the end of its blocks, its candidate, and the offset of the candidate's
//! arguments ([`atoll_kgraph::dkp::lay_out`] writes them). A block finds its slot, passes the
//! arguments to the candidate's body, and calls it:
//!
//! ```text
//! slot      = the first whose end is greater than %ctaid.x
//! arguments = parameter + slot's offset
//! brx.idx   slot's candidate → { load the arguments of this candidate; call its body }
//! ```
//!
//! Every candidate is called at one place, so the size of a module grows only by its candidates.
//! All threads of a block take the same branch, so warps do not diverge.
//!
//! A module for AMD GPUs has an entry per candidate instead, and [a proxy kernel](crate::amd) that
//! jumps to them.
//!
//! # Resources
//! A candidate keeps its block shape, its barriers and its shared memory. A launch has blocks of
//! the size of its largest candidate, and the dynamic shared memory of its most demanding one;
//! `virtualize_block_index` gave each candidate its own block and thread numbers. On a GPU, a block
//! therefore occupies only the threads and the shared memory that its launch needs. Native code of
//! a host has one block size: that of the largest candidate of the module. The number of registers
//! per thread is the same for all launches of a module.
//!
//! A driver copies the whole parameter at each launch. So the parameter is only as large as four of
//! the module's largest candidates need, or as large as the device allows.
//!
//! # Classes
//! The module of a register class also contains the candidates of lower classes whose blocks fit a
//! compute unit with the registers of this class. So candidates of different classes can share a
//! launch, in the module of the highest class among them. Its occupancy is the lowest of theirs.

use crate::amd::JumpTarget;
use crate::body_call::BodyCall;
use crate::merge::Source;
use crate::register_class::RegisterClass;
use crate::{DeviceModel, KernelNeeds};
use atoll_kgraph::dkp::{ARGUMENTS_ALIGN, CandidateFacts, DkpCandidate, DkpFacts, SLOT_BYTES, SLOTS};
use atoll_kgraph::virtual_params;
use atoll_passes::{DYNAMIC_SHARED, KernelReport, Outlining, Virtualization};
use atoll_ptx::build::{KernelBuilder, address, module};
use atoll_ptx::{
    Function, Item, ItemKind, Linkage, Module, Name, Operand, ScalarType, StateSpace, StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// Lowest `.version` of an entry, for branch tables and addresses of parameters.
const VERSION_MIN: (u32, u32) = (7, 0);

/// Bytes of the table of slots, which precedes the arguments in the parameter of an entry.
const TABLE_BYTES: u32 = (SLOTS * SLOT_BYTES) as u32;

/// A kernel that may share launches, after the passes `virtualize_block_index` and
/// `outline_kernel_body`.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its module. Candidates of one module share functions and variables.
    pub module: &'a Module,
    /// Its name in the module.
    pub kernel: &'a str,
    /// The facts from the passes ([`candidate_facts`]).
    pub facts: &'a CandidateFacts,
    /// Its block shape.
    pub block: [u32; 3],
    /// Registers per thread, as counted by an assembler for the kernel after the passes. As a
    /// called function with virtual numbers it takes more than the original kernel; a class that is
    /// too small causes spills.
    pub registers: u32,
    /// Dynamic shared memory of its launches in addition to [`CandidateFacts::shared_bytes`].
    pub dynamic_shared_bytes: u32,
}

/// Why a candidate is in no module, so that its kernel is launched alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPadded {
    /// Its thread and block numbers are not virtual.
    #[error("its thread and block numbers are not virtual: {0}")]
    NotVirtual(String),
    /// Its body is not a device function.
    #[error("its body is not a device function: {0}")]
    NotOutlined(String),
    /// It uses a variable of its module that has state.
    #[error("it uses the module's variable `{0}`; a dkp module would have its own copy")]
    ModuleVariable(Name),
    /// It has static shared memory, which would add up in a module.
    #[error("{0} static shared variables could not be moved into dynamic shared memory")]
    StaticShared(usize),
    /// Its block does not fit a compute unit with the registers of its class.
    #[error("no register class of {device} holds blocks of {threads} threads with {registers} registers each")]
    NoClass {
        /// Threads of its block.
        threads: u32,
        /// Registers of a thread.
        registers: u32,
        /// The device.
        device: &'static str,
    },
    /// Its arguments leave too little room for another kernel's.
    #[error("its {bytes} bytes of arguments exceed half of the {room} bytes that a launch has for all arguments")]
    Arguments {
        /// Bytes of its parameter block.
        bytes: u32,
        /// Bytes that a launch has for arguments.
        room: u32,
    },
}

/// The modules for a set of candidates.
#[derive(Clone, Debug)]
pub struct DkpModules {
    /// One module per register class with candidates of its own, smallest class first: the first
    /// module that contains a candidate is that of its class.
    pub modules: Vec<DkpModule>,
    /// Candidates that are in no module, by their index in the set.
    pub refused: Vec<(usize, NotPadded)>,
}

/// A module with one entry that runs any of its candidates in one launch.
#[derive(Clone, Debug)]
pub struct DkpModule {
    /// The PTX.
    pub module: Module,
    /// The register class.
    pub class: RegisterClass,
    /// The facts that launches need.
    pub facts: DkpFacts,
    /// On AMD GPUs, the kernels that the proxy kernel jumps to, one per candidate and in the order
    /// of [`DkpFacts::candidates`]; the entry is then not in the module. Empty for other devices.
    pub targets: Vec<JumpTarget>,
}

/// The facts about a candidate, from the report of the passes.
///
/// # Errors
/// The kernel cannot share launches.
pub fn candidate_facts(report: &KernelReport) -> Result<CandidateFacts, NotPadded> {
    let launch = match &report.virtualization {
        Virtualization::Virtual(launch) => launch,
        Virtualization::Refused(reason) => return Err(NotPadded::NotVirtual(reason.to_string())),
        Virtualization::NotAsked => return Err(NotPadded::NotVirtual("the pass did not run".into())),
    };
    let function = match &report.outlining {
        Outlining::Outlined { function } => function,
        Outlining::Refused(reason) => return Err(NotPadded::NotOutlined(reason.to_string())),
        Outlining::NotAsked => return Err(NotPadded::NotOutlined("the pass did not run".into())),
    };
    if !report.kept_shared.is_empty() {
        return Err(NotPadded::StaticShared(report.kept_shared.len()));
    }
    let takes_block = launch.block.is_none();
    let virtual_bytes = if takes_block { virtual_params::BYTES } else { virtual_params::BYTES_WITHOUT_BLOCK };
    Ok(CandidateFacts {
        body: function.to_string(),
        params_bytes: report.params_bytes.max(launch.offset + virtual_bytes),
        virtual_offset: launch.offset,
        takes_block,
        shared_bytes: report.shared_bytes,
    })
}

/// Generates the modules for a set of candidates. `params_bytes_max` is the largest parameter of an
/// entry that a launch on the device can carry.
pub fn dkp_modules(candidates: &[Candidate<'_>], device: &'static DeviceModel, params_bytes_max: u32) -> DkpModules {
    let sources = sources(candidates);
    let mut classes: BTreeMap<RegisterClass, Vec<usize>> = BTreeMap::new();
    let mut refused = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match check(candidate, &sources, device, params_bytes_max) {
            Ok(class) => classes.entry(class).or_default().push(index),
            Err(reason) => refused.push((index, reason)),
        }
    }
    let module = |(&class, own): (&RegisterClass, &Vec<usize>)| {
        let fits = |index: &usize| needs(&candidates[*index]).threads <= class.threads_max;
        let lower = classes.range(..class).flat_map(|(_, members)| members).copied().filter(fits);
        let members: Vec<usize> = own.iter().copied().chain(lower).collect();
        let params_bytes = entry_params_bytes(members.iter().map(|&index| candidates[index].facts), params_bytes_max);
        generate(class, &members, candidates, &sources, device, params_bytes)
    };
    let modules = classes.iter().map(module).collect();
    DkpModules { modules, refused }
}

/// Size of the parameter of an entry: the arguments of its largest candidate in every slot, or
/// `params_bytes_max` if that is less.
fn entry_params_bytes<'a>(candidates: impl Iterator<Item = &'a CandidateFacts>, params_bytes_max: u32) -> u32 {
    let largest = candidates.map(|facts| facts.params_bytes.next_multiple_of(ARGUMENTS_ALIGN as u32)).max();
    let arguments = (SLOTS as u32).saturating_mul(largest.unwrap_or_default());
    TABLE_BYTES.saturating_add(arguments).min(params_bytes_max)
}

/// The distinct modules of the candidates, keyed by address.
type Sources<'a> = BTreeMap<usize, Source<'a>>;

fn sources<'a>(candidates: &[Candidate<'a>]) -> Sources<'a> {
    let mut sources = Sources::new();
    for candidate in candidates {
        let number = sources.len();
        sources.entry(key(candidate)).or_insert_with(|| Source::new(candidate.module, number));
    }
    sources
}

fn key(candidate: &Candidate<'_>) -> usize {
    std::ptr::from_ref(candidate.module).addr()
}

/// The register class of a candidate, or why it cannot be in a module.
fn check(
    candidate: &Candidate<'_>,
    sources: &Sources<'_>,
    device: &'static DeviceModel,
    params_bytes_max: u32,
) -> Result<RegisterClass, NotPadded> {
    let source = &sources[&key(candidate)];
    if let Some(variable) = source.stateful_variable(&source.reachable(&body(candidate))) {
        return Err(NotPadded::ModuleVariable(variable.name.clone()));
    }
    let room = params_bytes_max.saturating_sub(TABLE_BYTES);
    if candidate.facts.params_bytes > room / 2 {
        return Err(NotPadded::Arguments { bytes: candidate.facts.params_bytes, room });
    }
    let threads = needs(candidate).threads;
    let registers = candidate.registers;
    RegisterClass::of_kernel(device, registers, threads).ok_or(NotPadded::NoClass {
        threads,
        registers,
        device: device.name,
    })
}

/// The device function with a candidate's body.
fn body(candidate: &Candidate<'_>) -> Name {
    Name::from(candidate.facts.body.as_str())
}

/// The resources of a candidate's block, with the last warp filled up.
fn needs(candidate: &Candidate<'_>) -> KernelNeeds {
    let threads = candidate.block.iter().product::<u32>().next_multiple_of(32);
    let shared_bytes = candidate.facts.shared_bytes.saturating_add(candidate.dynamic_shared_bytes);
    KernelNeeds { registers: candidate.registers, shared_bytes, threads }
}

fn generate(
    class: RegisterClass,
    members: &[usize],
    candidates: &[Candidate<'_>],
    sources: &Sources<'_>,
    device: &DeviceModel,
    params_bytes: u32,
) -> DkpModule {
    let mut threads: Vec<u32> = members.iter().map(|&i| needs(&candidates[i]).threads).collect();
    threads.sort_unstable();
    threads.dedup();
    if !shares_registers(device) {
        // Native code of a host has one block size.
        threads.drain(..threads.len() - 1);
    }
    let entry =
        if class.registers == u32::MAX { "atoll_dkp".to_owned() } else { format!("atoll_dkp_{}", class.registers) };
    let facts = |index: usize| {
        let Candidate { kernel, block, facts, .. } = candidates[index];
        let KernelNeeds { shared_bytes, threads, .. } = needs(&candidates[index]);
        let unit_blocks =
            if shares_registers(device) { device.blocks_by_registers(class.registers, threads) } else { u32::MAX };
        DkpCandidate { index, kernel: kernel.to_owned(), block, shared_bytes, unit_blocks, facts: facts.clone() }
    };
    let facts = members.iter().map(|&index| facts(index)).collect();

    let mut module = empty_module(members.iter().map(|&i| candidates[i].module));
    let mut wanted: BTreeMap<usize, BTreeSet<Name>> = BTreeMap::new();
    let mut bodies = Vec::new();
    for &index in members {
        let candidate = &candidates[index];
        let (source, function) = (&sources[&key(candidate)], body(candidate));
        wanted.entry(key(candidate)).or_default().extend(source.reachable(&function));
        bodies.push(BodyCall {
            name: source.name(&function),
            params: candidate.module.function(candidate.kernel).map_or(&[], |entry| &entry.params),
            arguments: candidate.module.function(&function).map_or(&[], |body| &body.params),
        });
    }
    let mut items: Vec<Item> = wanted.iter().flat_map(|(key, names)| sources[key].items(names)).collect();
    join_dynamic_shared(&mut items);
    module.items.extend(items);
    let mut targets = Vec::new();
    if device.is_amd() {
        for (number, (&index, body)) in members.iter().zip(&bodies).enumerate() {
            let target = JumpTarget { kernel: format!("{entry}_{number}"), threads: needs(&candidates[index]).threads };
            let mut builder = Dispatcher::new(&target.kernel, params_bytes);
            builder.builder.attribute("reqntid", &[&target.threads.to_string(), "1", "1"]);
            add_entry(&mut module, builder.finish(std::slice::from_ref(body)));
            targets.push(target);
        }
    } else {
        let mut builder = Dispatcher::new(&entry, params_bytes);
        builder.threads(&threads, class, device);
        add_entry(&mut module, builder.finish(&bodies));
    }
    let facts = DkpFacts { entry, threads, params_bytes, candidates: facts };
    DkpModule { module, class, facts, targets }
}

fn add_entry(module: &mut Module, function: Function) {
    let mut item = Item::built(ItemKind::Function(function));
    item.origin.leading = "\n\n".into();
    module.items.push(item);
}

/// Whether the device has a register file that limits occupancy.
fn shares_registers(device: &DeviceModel) -> bool {
    device.registers.per_thread_max != u32::MAX
}

/// An empty module with the latest `.version` and `.target` of the sources.
fn empty_module<'a>(sources: impl Iterator<Item = &'a Module> + Clone) -> Module {
    let argument = |module: &Module, name: &str| {
        module.items.iter().find_map(|item| match &item.kind {
            ItemKind::Directive(d) if d.name == name => d.arguments.first().cloned(),
            _ => None,
        })
    };
    let version = |module: &Module| {
        let text = argument(module, "version")?;
        let (major, minor) = text.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let (major, minor) = sources.clone().filter_map(version).fold(VERSION_MIN, Ord::max);
    let generation = |target: &Name| {
        target
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .trim_end_matches(char::is_alphabetic)
            .parse::<u32>()
            .ok()
    };
    let target = sources
        .filter_map(|m| argument(m, "target"))
        .max_by_key(|target| generation(target))
        .unwrap_or_else(|| "sm_75".into());
    module(&format!("{major}.{minor}"), &target)
}

/// Merges the declarations of the dynamic shared array into one, with the largest alignment.
fn join_dynamic_shared(items: &mut Vec<Item>) {
    let mut align = None;
    items.retain(|item| match &item.kind {
        ItemKind::Variable(v) if v.name == DYNAMIC_SHARED => {
            align = align.max(v.align);
            false
        }
        _ => true,
    });
    // Declared functions are also kept only once.
    let mut declared = BTreeSet::new();
    items.retain(|item| match &item.kind {
        ItemKind::Function(f) if f.body.is_none() => declared.insert(f.name.clone()),
        _ => true,
    });
    if let Some(align) = align {
        let array = Variable {
            linkage: Linkage::Extern,
            align: Some(align),
            dimensions: vec![None],
            ..Variable::new(StateSpace::Shared, ScalarType::B8, DYNAMIC_SHARED)
        };
        let mut item = Item::built(ItemKind::Variable(array));
        item.origin.leading = "\n\n".into();
        items.insert(0, item);
    }
}

/// Builds the entry.
struct Dispatcher {
    builder: KernelBuilder,
    parameter: Name,
    params_bytes: u32,
}

impl Dispatcher {
    fn new(entry: &str, params_bytes: u32) -> Dispatcher {
        let parameter = Name::from(format!("{entry}_slots"));
        Dispatcher { builder: KernelBuilder::new(entry), parameter, params_bytes }
    }

    /// Sets the block size. On devices with a register file, sets the largest block size and the
    /// most registers per thread; otherwise an assembler might spill to use fewer.
    fn threads(&mut self, threads: &[u32], class: RegisterClass, device: &DeviceModel) {
        let most = threads.last().copied().unwrap_or_default().to_string();
        if shares_registers(device) {
            self.builder.attribute("maxntid", &[&most, "1", "1"]);
            self.builder.attribute("maxnreg", &[&class.registers.to_string()]);
        } else {
            self.builder.attribute("reqntid", &[&most, "1", "1"]);
        }
    }

    fn finish(mut self, bodies: &[BodyCall<'_>]) -> Function {
        let (candidate, arguments) = self.find_slot();
        let b = &mut self.builder;
        let base = b.reg(ScalarType::U64);
        b.emit("mov.b64", [Operand::from(&base), Operand::from(&self.parameter)]);
        let offset = b.reg(ScalarType::U64);
        b.emit("cvt.u64.u32", [Operand::from(&offset), Operand::from(&arguments)]);
        b.emit("add.s64", [Operand::from(&base), Operand::from(&base), Operand::from(&offset)]);
        let labels: Vec<Name> = bodies.iter().map(|_| b.label("candidate")).collect();
        let table = Name::new("$L_candidates");
        if let [_, _, ..] = labels.as_slice() {
            b.statement(StatementKind::BranchTargets { name: table.clone(), targets: labels.clone() });
            b.emit("brx.idx.uni", [Operand::from(&candidate), Operand::from(&table)]);
        }
        for (label, body) in labels.iter().zip(bodies) {
            b.place(label);
            let call = body.statements(b, &base);
            b.statement(StatementKind::Block(call));
            b.emit("ret", []);
        }
        let slots = Variable {
            align: Some(ARGUMENTS_ALIGN as u32),
            dimensions: vec![Some(self.params_bytes.into())],
            ..Variable::new(StateSpace::Param, ScalarType::B8, &self.parameter)
        };
        Function { params: vec![slots], ..self.builder.finish() }
    }

    /// Finds the candidate of this block and the offset of its arguments. Unused slots end where
    /// the last used slot ends, so no block selects them.
    fn find_slot(&mut self) -> (Name, Name) {
        let parameter = self.parameter.clone();
        let at = |slot: usize, word: usize| address(&parameter, (slot * SLOT_BYTES + 4 * word) as i64);
        let b = &mut self.builder;
        let mut load = |slot, word| {
            let register = b.reg(ScalarType::U32);
            b.emit("ld.param.u32", [Operand::from(&register), at(slot, word)]);
            register
        };
        let (candidate, arguments) = (load(0, 1), load(0, 2));
        let rest: Vec<[Name; 3]> = (1..SLOTS).map(|slot| [load(slot - 1, 0), load(slot, 1), load(slot, 2)]).collect();
        let block = b.reg(ScalarType::U32);
        b.emit("mov.u32", [Operand::from(&block), Operand::from("%ctaid.x")]);
        for [end, next_candidate, next_arguments] in &rest {
            let behind = b.reg(ScalarType::Pred);
            b.emit("setp.ge.u32", [Operand::from(&behind), Operand::from(&block), Operand::from(end)]);
            for (kept, next) in [(&candidate, next_candidate), (&arguments, next_arguments)] {
                b.emit(
                    "selp.b32",
                    [Operand::from(kept), Operand::from(next), Operand::from(kept), Operand::from(&behind)],
                );
            }
        }
        (candidate, arguments)
    }
}
