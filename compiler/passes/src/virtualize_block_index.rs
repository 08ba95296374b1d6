//! Gives a kernel virtual thread and block indices, so that it can be a part of a launch that
//! contains other kernels too.
//!
//! # Vocabulary
//! The *real* launch has one-dimensional blocks, of the largest size that any kernel in it needs,
//! and a one-dimensional grid. The *virtual* launch is what the kernel sees: its own grid and block
//! shape. Virtual block 0 is the real block `block base`; the others follow in linear order, x
//! fastest; the same order applies to threads.
//!
//! # Changes
//! - `%tid`, `%ntid`, `%ctaid`, `%nctaid` and `%nwarpid` become registers, computed once at entry
//!   from the real linear indices, the appended parameters ([`virtual_params`]) and the block
//!   shape, if it is known when the pass runs.
//! - Real blocks beyond the virtual grid, and *surplus* threads beyond the virtual block, exit at
//!   once.
//! - A barrier without a thread count gets one: the threads of the virtual block rounded up to
//!   whole warps; its number stays. A barrier before which threads may have exited stays without a
//!   count and waits for all threads that have not exited: a count would include the exited ones.
//! - Device functions that read these registers get them as additional parameters; every caller of
//!   such a function passes them on.
//!
//! # Partial warps
//! Thread counts are multiples of 32. If the size of a virtual block is not, its last warp has
//! surplus lanes that must take part in every barrier, see [`surplus_lanes`](crate::surplus_lanes).
//! Lane numbers are the same in both launches, so warp-wide operations are not changed.
//!
//! # Values that cannot be virtual
//! `%gridid`, clusters, the grid barrier of cooperative launches and programmatic dependent launch
//! belong to the whole launch. The size of dynamic shared memory is that of the largest kernel in
//! the launch. `%warpid`, `%smid` and similar registers say where a thread runs; they stay real.

mod outcome;
mod prologue;

pub use self::outcome::{NotVirtualized, VirtualLaunch, Virtualization};

use self::prologue::prologue;
use crate::code::{Code, at, prepend, rebuild};
use crate::error::PassError;
use crate::module_facts::{Dialect, align_up, params_bytes};
use crate::options::PassOptions;
use crate::preemptible::{reachable_functions, visit_statements};
use crate::surplus_lanes::{self, SurplusLanes};
use crate::threads::{Divergence, is_block_barrier, waits_for_threads};
use crate::virtual_registers::{needs, register_of, virtual_register, with_fixed_signature};
use atoll_kgraph::virtual_params;
use atoll_ptx::analysis::{Cfg, CfgError, Code as KernelCode, StatementId};
use atoll_ptx::{
    Function, FunctionKind, Immediate, Instruction, ItemKind, Module, Name, Operand, ScalarType, StateSpace, Statement,
    StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// Threads of a warp.
pub(crate) const WARP_THREADS: u32 = 32;

/// Limit on the threads of a block, on every device.
const BLOCK_THREADS_MAX: u32 = 1024;

/// Why there is no plan: a reason to leave the kernel unchanged, or broken control flow.
enum Refusal {
    Refused(NotVirtualized),
    Broken(CfgError),
}

impl From<NotVirtualized> for Refusal {
    fn from(reason: NotVirtualized) -> Refusal {
        Refusal::Refused(reason)
    }
}

impl From<CfgError> for Refusal {
    fn from(error: CfgError) -> Refusal {
        Refusal::Broken(error)
    }
}

/// The changes to one kernel.
struct Plan {
    launch: VirtualLaunch,
    /// Barriers that get a thread count.
    counted: BTreeSet<StatementId>,
    surplus: Option<SurplusLanes>,
}

/// Virtualises every kernel for which that is possible. Returns the outcome for each kernel, in
/// order.
pub(crate) fn virtualize_block_index(
    module: &mut Module,
    options: &PassOptions,
) -> Result<Vec<Virtualization>, PassError> {
    let planner = Planner {
        module,
        options,
        needs: needs(module),
        fixed: with_fixed_signature(module),
        dialect: Dialect::of(module),
    };
    let mut outcomes = Vec::new();
    let mut plans = BTreeMap::new();
    for kernel in module.kernels() {
        if kernel.params.iter().any(|p| p.name.ends_with(BLOCK_BASE)) {
            return Err(PassError::AlreadyVirtual { kernel: kernel.name.to_string() });
        }
        match planner.plan(kernel) {
            Ok(plan) => {
                outcomes.push(Virtualization::Virtual(plan.launch));
                plans.insert(kernel.name.clone(), plan);
            }
            Err(Refusal::Refused(reason)) => outcomes.push(Virtualization::Refused(reason)),
            Err(Refusal::Broken(source)) => {
                return Err(PassError::BrokenFlow { function: kernel.name.to_string(), source });
            }
        }
    }
    let extended = planner.extended(&plans);
    let needs = planner.needs;
    for item in &mut module.items {
        let concerned = |f: &Function| plans.contains_key(&f.name) || needs.contains_key(&f.name);
        if matches!(&item.kind, ItemKind::Function(f) if concerned(f))
            && let ItemKind::Function(function) = item.edit()
        {
            let plan = plans.get(&function.name).filter(|_| function.kind == FunctionKind::Entry);
            Rewrite { plan, needs: &needs, extended: &extended }.function(function);
        }
    }
    Ok(outcomes)
}

/// Decides about kernels.
struct Planner<'m> {
    module: &'m Module,
    options: &'m PassOptions,
    needs: BTreeMap<Name, BTreeSet<&'static str>>,
    fixed: BTreeSet<Name>,
    dialect: Dialect,
}

impl Planner<'_> {
    fn plan(&self, kernel: &Function) -> Result<Plan, Refusal> {
        const CLUSTER_ATTRIBUTES: [&str; 4] =
            ["explicitcluster", "reqnctapercluster", "maxclusterrank", "blocksareclusters"];
        if let Some(attribute) = kernel.attributes.iter().find(|a| CLUSTER_ATTRIBUTES.contains(&a.name.as_str())) {
            return Err(NotVirtualized::ClusterDirective { directive: attribute.name.to_string() }.into());
        }
        let callees = reachable_functions(self.module, kernel).map_err(unknown_callee)?;
        for function in std::iter::once(&kernel).chain(&callees) {
            forbid_launch_wide(function)?;
        }
        if let Some(callee) = callees.iter().find(|f| self.needs.contains_key(&f.name) && self.fixed.contains(&f.name))
        {
            return Err(NotVirtualized::FixedSignature { function: callee.name.to_string() }.into());
        }
        let block = self.options.block_of(kernel);
        let threads = block.map(block_threads).transpose()?;
        let mut launch = VirtualLaunch {
            offset: self.offset(kernel, block)?,
            block,
            needs_full_warps: false,
            surplus_lanes_stay: false,
        };
        let code = KernelCode::of(kernel);
        let cfg = Cfg::of(&code)?;
        let divergence = Divergence::of(&code, &cfg);
        let callees_wait = callees.iter().any(|f| has(f, is_block_barrier));
        let (barriers, counted) = barriers(&code, &cfg, &divergence, threads)?;
        let waits = !barriers.is_empty() || callees_wait;
        let surplus = match threads {
            Some(threads) if waits && threads % WARP_THREADS != 0 => {
                let partial = |(why, line)| NotVirtualized::PartialWarp { threads, why, line };
                Some(
                    SurplusLanes::plan(&code, &cfg, &divergence, callees.iter().any(|f| has(f, waits_for_threads)))
                        .map_err(partial)?,
                )
            }
            _ => None,
        };
        launch.needs_full_warps = waits && threads.is_none();
        launch.surplus_lanes_stay = surplus.is_some();
        Ok(Plan { launch, counted, surplus })
    }

    /// Byte offset of the appended parameters.
    fn offset(&self, kernel: &Function, block: Option<[u32; 3]>) -> Result<u32, NotVirtualized> {
        let offset = align_up(params_bytes(kernel), 4);
        let appended = if block.is_some() { virtual_params::BYTES_WITHOUT_BLOCK } else { virtual_params::BYTES };
        let (bytes, limit) = (offset.saturating_add(appended.into()), self.dialect.params_bytes_max());
        let too_many = NotVirtualized::TooManyParameters { bytes, limit };
        if bytes > limit { Err(too_many) } else { u32::try_from(offset).map_err(|_| too_many) }
    }

    /// The device functions that get additional parameters: those that need them and that a
    /// virtualised kernel can reach.
    fn extended(&self, plans: &BTreeMap<Name, Plan>) -> BTreeSet<Name> {
        let kernels = self.module.kernels().filter(|kernel| plans.contains_key(&kernel.name));
        let reached = kernels.filter_map(|kernel| reachable_functions(self.module, kernel).ok()).flatten();
        reached.map(|f| f.name.clone()).filter(|name| self.needs.contains_key(name)).collect()
    }
}

fn unknown_callee(reason: crate::NotPreemptible) -> NotVirtualized {
    match reason {
        crate::NotPreemptible::UnknownCallee { callee, line } => NotVirtualized::UnknownCallee { callee, line },
        other => NotVirtualized::UnknownCallee { callee: other.to_string(), line: 0 },
    }
}

fn has(function: &Function, is: impl Fn(&Instruction) -> bool) -> bool {
    let mut found = false;
    if let Some(body) = &function.body {
        visit_statements(body, &mut |statement| found |= statement.instruction().is_some_and(&is));
    }
    found
}

/// Threads of a block of this shape.
fn block_threads(block: [u32; 3]) -> Result<u32, NotVirtualized> {
    let threads = block.iter().try_fold(1_u32, |product, &extent| product.checked_mul(extent));
    threads.filter(|threads| (1..=BLOCK_THREADS_MAX).contains(threads)).ok_or(NotVirtualized::BlockShape(block))
}

/// Rejects instructions and registers that belong to the launch as a whole.
fn forbid_launch_wide(function: &Function) -> Result<(), NotVirtualized> {
    const REGISTERS: [&str; 11] = [
        "%gridid",
        "%is_explicit_cluster",
        "%clusterid",
        "%nclusterid",
        "%cluster_ctaid",
        "%cluster_nctaid",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%dynamic_smem_size",
        "%total_smem_size",
        "%aggr_smem_size",
    ];
    const WHOLE: [&str; 4] = ["%tid", "%ntid", "%ctaid", "%nctaid"];
    let mut found = Ok(());
    let Some(body) = &function.body else { return found };
    visit_statements(body, &mut |statement| {
        let line = statement.origin.line;
        let Some(instruction) = statement.instruction().filter(|_| found.is_ok()) else { return };
        let launch_wide = |what: String| Err(NotVirtualized::LaunchWide { what, line });
        let is_cluster = instruction
            .modifiers
            .iter()
            .any(|m| m == "cluster" || m.ends_with("::cluster") && m.starts_with("multicast"));
        if matches!(instruction.opcode.as_str(), "griddepcontrol" | "mapa" | "getctarank" | "clusterlaunchcontrol")
            || is_cluster
        {
            found = launch_wide(instruction.dotted());
            return;
        }
        for name in instruction.reads() {
            let stem = name.split('.').next().unwrap_or(name);
            if REGISTERS.contains(&stem) || stem.starts_with("%envreg") {
                found = launch_wide(name.to_string());
            } else if WHOLE.contains(&name.as_str()) {
                found = Err(NotVirtualized::WholeVector { what: name.to_string(), line });
            }
        }
    });
    found
}

/// Checks the block barriers of a kernel; returns those that get a thread count.
fn barriers(
    code: &KernelCode<'_>,
    cfg: &Cfg,
    divergence: &Divergence,
    threads: Option<u32>,
) -> Result<(Vec<StatementId>, BTreeSet<StatementId>), NotVirtualized> {
    let limit = threads.map_or(BLOCK_THREADS_MAX, |threads| threads.next_multiple_of(WARP_THREADS));
    let (mut all, mut counted) = (Vec::new(), BTreeSet::new());
    for (id, statement) in code.statements() {
        let Some(instruction) = statement.instruction().filter(|i| is_block_barrier(i)) else { continue };
        let line = statement.origin.line;
        all.push(id);
        match barrier_count(instruction) {
            None if instruction.guard.is_none() && !divergence.in_block(cfg.block_of(id)) => {
                counted.insert(id);
            }
            None => {}
            Some(Operand::Immediate(Immediate::Int(count))) => match u32::try_from(*count) {
                Ok(count) if count == 0 || count % WARP_THREADS != 0 => {
                    return Err(NotVirtualized::BarrierCount { line });
                }
                Ok(count) if count > limit => {
                    return Err(NotVirtualized::BarrierBeyondBlock { count, threads: limit, line });
                }
                Ok(_) => {}
                Err(_) => return Err(NotVirtualized::BarrierCount { line }),
            },
            Some(_) => return Err(NotVirtualized::BarrierCount { line }),
        }
    }
    Ok((all, counted))
}

/// The position of a barrier's thread count among its operands: after the barrier's number.
fn count_position(barrier: &Instruction) -> usize {
    if barrier.has("red") { 2 } else { 1 }
}

/// The thread count of a barrier; `None` if it waits for the whole block.
pub(crate) fn barrier_count(barrier: &Instruction) -> Option<&Operand> {
    let operands_without = if barrier.has("red") { 3 } else { 1 };
    (barrier.operands.len() > operands_without).then(|| &barrier.operands[count_position(barrier)])
}

/// The rewriting of one function.
struct Rewrite<'p> {
    /// The plan, if it is a kernel that gets virtual indices.
    plan: Option<&'p Plan>,
    needs: &'p BTreeMap<Name, BTreeSet<&'static str>>,
    extended: &'p BTreeSet<Name>,
}

const COUNT: &str = "%atoll_count";
/// Suffix of the name of an appended parameter.
const BLOCK_BASE: &str = "atoll_block_base";
const AXES: [char; 3] = ['x', 'y', 'z'];

impl Rewrite<'_> {
    fn function(&self, function: &mut Function) {
        let needs = self.needs.get(&function.name).cloned().unwrap_or_default();
        let is_extended = self.extended.contains(&function.name);
        if is_extended {
            let parameter = |special: &&str| Variable::new(StateSpace::Reg, ScalarType::B32, &register_of(special));
            function.params.extend(needs.iter().map(parameter));
        }
        let prologue = match self.plan {
            Some(plan) => {
                append_parameters(function, plan.launch.block);
                // The real block has another size than these directives state.
                function.attributes.retain(|a| !matches!(a.name.as_str(), "reqntid" | "maxntid"));
                prologue(&function.name, plan, &needs)
            }
            None if is_extended => Code::default(),
            // A kernel that keeps its real indices, or a function that only such kernels call,
            // passes real indices on.
            None => real_numbers(&self.passed_on(function)),
        };
        let Some(body) = &mut function.body else { return };
        let names_are_virtual = self.plan.is_some() || is_extended;
        rebuild(body, &mut |id, mut statement, code| {
            self.statement(id, &mut statement, names_are_virtual);
            match self.plan.and_then(|plan| plan.surplus.as_ref()) {
                Some(surplus) => surplus.apply(id, statement, code),
                None => code.statements.push(statement),
            }
        });
        prepend(body, prologue);
    }

    /// The registers that a function without virtual indices must pass to its callees.
    fn passed_on(&self, function: &Function) -> BTreeSet<&'static str> {
        let calls = function.body.iter().flat_map(|body| crate::preemptible::callees(body).unwrap_or_default());
        let extended = calls.filter(|(callee, _)| self.extended.contains(callee));
        extended.filter_map(|(callee, _)| self.needs.get(&callee)).flatten().copied().collect()
    }

    fn statement(&self, id: StatementId, statement: &mut Statement, names_are_virtual: bool) {
        let Some(instruction) = statement.instruction() else { return };
        let callee = called_function(instruction).filter(|callee| self.extended.contains(*callee)).cloned();
        let reads_virtual =
            names_are_virtual && instruction.reads().into_iter().any(|name| virtual_register(name).is_some());
        let plan = self.plan.filter(|plan| plan.counted.contains(&id));
        if callee.is_none() && !reads_virtual && plan.is_none() {
            return;
        }
        let StatementKind::Instruction(instruction) = statement.edit() else { return };
        if reads_virtual {
            rename(instruction);
        }
        if let Some(callee) = callee
            && let Some(Operand::List(arguments)) = instruction.operands.get_mut(2)
        {
            let needs = self.needs.get(&callee).into_iter().flatten();
            arguments.extend(needs.map(|special| Operand::Name(register_of(special))));
        }
        if let Some(plan) = plan {
            let position = count_position(instruction);
            instruction.operands.insert(position, plan.count());
        }
    }
}

impl Plan {
    /// Threads of the virtual block, if its shape is known; it was checked by the plan.
    fn threads(&self) -> Option<u32> {
        self.launch.block.map(|block| block.iter().product())
    }

    /// The number of threads that a barrier waits for.
    fn count(&self) -> Operand {
        self.threads().map_or_else(|| COUNT.into(), |threads| i64::from(threads.next_multiple_of(WARP_THREADS)).into())
    }
}

/// The function that an instruction calls by name.
fn called_function(instruction: &Instruction) -> Option<&Name> {
    match instruction.operands.get(1) {
        Some(Operand::Name(name)) if instruction.opcode == "call" => Some(name),
        _ => None,
    }
}

/// Replaces special registers by virtual ones.
fn rename(instruction: &mut Instruction) {
    // Old code moves the low half of a special register, which a 32-bit register does not allow.
    if instruction.opcode == "mov" && instruction.ty().is_some_and(|ty| ty.bytes() == 2) {
        *instruction = Instruction {
            guard: instruction.guard.clone(),
            ..Instruction::new("cvt.u16.u32", std::mem::take(&mut instruction.operands))
        };
    }
    instruction.visit_names_mut(&mut |_, name| {
        if let Some(special) = virtual_register(name) {
            *name = register_of(special);
        }
    });
}

/// The names of the appended parameters, in order.
fn parameter_names(kernel: &str, block: Option<[u32; 3]>) -> Vec<String> {
    let axes = |what: &'static str| AXES.map(|axis| format!("{kernel}_atoll_{what}_{axis}"));
    let mut names = vec![format!("{kernel}_{BLOCK_BASE}")];
    names.extend(axes("grid"));
    if block.is_none() {
        names.extend(axes("block"));
    }
    names
}

fn append_parameters(kernel: &mut Function, block: Option<[u32; 3]>) {
    let names = parameter_names(&kernel.name, block);
    kernel.params.extend(names.iter().map(|name| Variable::new(StateSpace::Param, ScalarType::U32, name)));
}

/// Copies special registers into the registers that calls pass on.
fn real_numbers(needs: &BTreeSet<&'static str>) -> Code {
    let mut code = Code::default();
    for special in needs {
        let register = register_of(special);
        code.registers(ScalarType::B32, &[&register]);
        code.emit("mov.u32", [Operand::Name(register), (*special).into()]);
    }
    code
}
