//! Unstable values: values that may differ when a block runs a second time, although memory outside
//! of the block is unchanged.
//!
//! Such values depend on the order in which threads happen to run: results of atomics in shared
//! memory, the set of active threads, or which of several stores to one place comes last. A kernel
//! may store an unstable value as data, because the second run stores its own value to the same
//! place. An unstable value must not decide where, or whether, something is stored: the first run
//! could leave writes that the second run does not overwrite.
//!
//! The analysis marks each register, and the shared, local and outside memory as a whole, as stable
//! or unstable. Local memory includes call parameters. Code that is reached only under an unstable
//! branch is unstable too.

use crate::analyze_idempotence::NotRerunnable;
use crate::effects::linear::{AtomKey, Class};
use crate::effects::memory::{Act, act};
use crate::effects::{Access, Trace};
use crate::threads::reachable_before;
use atoll_ptx::analysis::{BlockId, Cfg, Code, DefUse, DominatorTree, StatementId};
use atoll_ptx::{Instruction, Operand, ScalarType, StateSpace, types::TypeClass};

/// The line of the instruction that an unstable value comes from.
type Source = Option<u32>;

/// The origins of a register's value.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mix {
    thread: bool,
    memory: bool,
}

/// The state of one function.
struct Flow {
    cfg: Cfg,
    postdominators: DominatorTree,
    registers: Vec<Source>,
    mixes: Vec<Mix>,
    blocks: Vec<Source>,
    /// Set if a call of the function is under an unstable branch.
    entered: Source,
}

/// All unstable values of a kernel.
pub(crate) struct Unstable {
    flows: Vec<Flow>,
    shared: Source,
    local: Source,
    outside: Source,
    changed: bool,
}

impl Unstable {
    /// Propagates unstable values through a kernel and the functions it calls. `cfg` is the
    /// kernel's control-flow graph.
    pub(crate) fn of(trace: &Trace<'_>, cfg: &Cfg) -> Unstable {
        let flow = |function: usize| {
            let code = trace.code(function);
            // The verifier has rejected functions without a control-flow graph.
            let cfg = if function == 0 { cfg.clone() } else { Cfg::of(code).unwrap_or_else(|_| cfg.clone()) };
            Flow {
                postdominators: DominatorTree::postdominators(&cfg),
                registers: vec![None; code.registers().len()],
                mixes: vec![Mix::default(); code.registers().len()],
                blocks: vec![None; cfg.len()],
                entered: None,
                cfg,
            }
        };
        let flows = (0..trace.function_count()).map(flow).collect();
        let mut unstable = Unstable { flows, shared: None, local: None, outside: None, changed: true };
        // The sets only grow; each round except the last adds a register, a block or a memory.
        while std::mem::take(&mut unstable.changed) {
            for function in 0..unstable.flows.len() {
                unstable.mix(trace.code(function), function);
                unstable.spread(trace, function);
            }
        }
        unstable
    }

    /// Rejects a store whose address, guard or control flow depends on an unstable value.
    pub(crate) fn check(&self, trace: &Trace<'_>, writes: &[&Access]) -> Result<(), NotRerunnable> {
        for write in writes {
            let flow = &self.flows[write.function];
            let code = trace.code(write.function);
            let Some(instruction) = code.instruction(write.statement) else { continue };
            let deciding = instruction
                .operands
                .get(write.act.address)
                .into_iter()
                .chain(guard_operand(instruction).as_ref())
                .cloned()
                .collect::<Vec<_>>();
            let source = flow.blocks[flow.cfg.block_of(write.statement).index()]
                .or(flow.entered)
                .or_else(|| deciding.iter().find_map(|operand| flow.operand(code, write.statement, operand)));
            if let Some(source_line) = source {
                return Err(NotRerunnable::Unstable { store: write.line, source_line });
            }
        }
        Ok(())
    }

    /// Collects the origins of registers' values.
    fn mix(&mut self, code: &Code<'_>, function: usize) {
        let flow = &mut self.flows[function];
        for (id, _) in code.statements() {
            let Some(instruction) = code.instruction(id) else { continue };
            let mut mix = Mix { thread: false, memory: reads_memory(instruction) };
            for name in instruction.reads() {
                mix.thread |=
                    ["%tid", "%laneid", "%warpid", "%lanemask"].iter().any(|special| name.starts_with(special));
            }
            for access in code.accesses(id).iter().filter(|a| a.role.reads()) {
                let read = flow.mixes[access.register.index()];
                mix = Mix { thread: mix.thread | read.thread, memory: mix.memory | read.memory };
            }
            for access in code.accesses(id).iter().filter(|a| a.role.writes()) {
                let known = &mut flow.mixes[access.register.index()];
                let joined = Mix { thread: known.thread | mix.thread, memory: known.memory | mix.memory };
                self.changed |= *known != joined;
                *known = joined;
            }
        }
    }

    fn spread(&mut self, trace: &Trace<'_>, function: usize) {
        let code = trace.code(function);
        let uses = DefUse::of(code);
        for (id, statement) in code.statements() {
            let Some(instruction) = code.instruction(id) else { continue };
            let block = self.flows[function].cfg.block_of(id);
            let controlled = self.flows[function].blocks[block.index()].or(self.flows[function].entered);
            let read = self.flows[function].read(code, id);
            let source = controlled
                .or(read)
                .or_else(|| is_source(instruction, code, id, &uses).then_some(statement.origin.line));
            if instruction.opcode == "call" {
                self.spread_call(trace, instruction, source);
            }
            let loaded = self.spread_memory(trace, function, id, source);
            if let Some(line) = source.or(loaded) {
                self.define(function, code, id, line);
            }
            if self.flows[function].cfg.block(block).last() == Some(id)
                && self.flows[function].cfg.block(block).successors.len() > 1
                && let Some(line) = read
            {
                self.mark_controlled(function, block, line);
            }
        }
    }

    fn define(&mut self, function: usize, code: &Code<'_>, id: StatementId, line: u32) {
        for access in code.accesses(id).iter().filter(|a| a.role.writes()) {
            let known = &mut self.flows[function].registers[access.register.index()];
            if known.is_none() {
                (*known, self.changed) = (Some(line), true);
            }
        }
    }

    /// Marks the code that runs under an unstable branch.
    fn mark_controlled(&mut self, function: usize, block: BlockId, line: u32) {
        let flow = &mut self.flows[function];
        let reconvergence = flow.postdominators.immediate(block);
        for controlled in reachable_before(&flow.cfg, block, reconvergence) {
            let known = &mut flow.blocks[controlled.index()];
            if known.is_none() {
                (*known, self.changed) = (Some(line), true);
            }
        }
    }

    /// Marks a callee as unstable as a whole if its call, or an argument, is unstable.
    fn spread_call(&mut self, trace: &Trace<'_>, call: &Instruction, source: Source) {
        let Some(line) = source.or(self.local) else { return };
        let Some(Operand::Name(callee)) = call.operands.get(1) else { return };
        self.set(|u| &mut u.local, line);
        for function in 1..self.flows.len() {
            let is_it = trace.code(function).function().name == *callee || callee.starts_with('%');
            if is_it && source.is_some() && self.flows[function].entered.is_none() {
                (self.flows[function].entered, self.changed) = (source, true);
            }
        }
    }

    /// Propagates instability through stores to memory; returns the instability that a load takes
    /// from it.
    fn spread_memory(&mut self, trace: &Trace<'_>, function: usize, id: StatementId, source: Source) -> Source {
        let access = trace
            .accesses
            .binary_search_by_key(&(function, id), |a| (a.function, a.statement))
            .ok()
            .map(|i| &trace.accesses[i])?;
        let line = access.line;
        let instruction = trace.code(function).instruction(id)?;
        let is_kernel_param = access.act.space == Some(StateSpace::Param)
            && function == 0
            && !access.act.writes
            && names_kernel_param(trace, instruction);
        let memories: &[fn(&mut Unstable) -> &mut Source] = match access.act.space {
            _ if is_kernel_param => return None,
            Some(StateSpace::Const) => return None,
            Some(StateSpace::Shared) => &[|u| &mut u.shared],
            Some(StateSpace::Local | StateSpace::Param) => &[|u| &mut u.local],
            Some(StateSpace::Global) => &[|u| &mut u.outside],
            _ if access.is_private => &[|u| &mut u.shared, |u| &mut u.local],
            _ => &[|u| &mut u.shared, |u| &mut u.local, |u| &mut u.outside],
        };
        let mut found = None;
        for &memory in memories {
            if access.act.reads {
                found = found.or(*memory(self));
            }
            if access.act.writes
                && let Some(line) = source.or_else(|| self.is_contested(trace, access, instruction).then_some(line))
            {
                self.set(memory, line);
            }
        }
        found
    }

    fn set(&mut self, memory: fn(&mut Unstable) -> &mut Source, line: u32) {
        let known = memory(self);
        if known.is_none() {
            *known = Some(line);
            self.changed = true;
        }
    }

    /// Whether several threads may write to one place of shared memory with different values, or in
    /// an order that affects the result.
    fn is_contested(&self, trace: &Trace<'_>, access: &Access, instruction: &Instruction) -> bool {
        let is_local = matches!(access.act.space, Some(StateSpace::Local | StateSpace::Param));
        if is_local || !access.is_private {
            return false;
        }
        if access.act.atomic {
            return !commutes(instruction);
        }
        let flow = &self.flows[access.function];
        let code = trace.code(access.function);
        let mix_of = |operand: &Operand| flow.mix_of(code, access.statement, operand);
        let address = instruction.operands.get(access.act.address).map(mix_of).unwrap_or_default();
        let data = instruction.operands.iter().skip(access.act.address + 1).map(mix_of);
        let varies = data.fold(false, |varies, mix| varies | mix.thread | mix.memory);
        varies && (address.memory || !address.thread) && !flow.is_one_thread(trace, access)
    }
}

impl Flow {
    fn read(&self, code: &Code<'_>, id: StatementId) -> Source {
        code.accesses(id).iter().filter(|a| a.role.reads()).find_map(|a| self.registers[a.register.index()])
    }

    fn operand(&self, code: &Code<'_>, id: StatementId, operand: &Operand) -> Source {
        names(operand).find_map(|name| self.registers[code.register_at(id, name)?.index()])
    }

    fn mix_of(&self, code: &Code<'_>, id: StatementId, operand: &Operand) -> Mix {
        let mixes = names(operand).filter_map(|name| code.register_at(id, name)).map(|r| self.mixes[r.index()]);
        mixes.fold(Mix::default(), |a, b| Mix { thread: a.thread | b.thread, memory: a.memory | b.memory })
    }

    /// Whether an access is guarded by a comparison of a thread's index, as in
    /// `if (threadIdx.x == 0)`.
    fn is_one_thread(&self, trace: &Trace<'_>, access: &Access) -> bool {
        let code = trace.code(access.function);
        let compares = |id: StatementId| {
            let guard = code.instruction(id).and_then(|i| i.guard.as_ref());
            guard.is_some_and(|g| is_thread_comparison(trace, access.function, id, &g.predicate))
        };
        let block = self.cfg.block_of(access.statement);
        let dominators = DominatorTree::dominators(&self.cfg);
        let above: Vec<BlockId> = dominators.path(block).skip(1).collect();
        compares(access.statement)
            || above
                .into_iter()
                .any(|b| !self.postdominators.dominates(block, b) && self.cfg.block(b).last().is_some_and(compares))
    }
}

/// Whether a predicate is an equality comparison of a value that differs between threads.
fn is_thread_comparison(trace: &Trace<'_>, function: usize, id: StatementId, predicate: &atoll_ptx::Name) -> bool {
    let Some(value) = trace.register_value(function, id, predicate) else { return false };
    let Some(atom) = value.as_atom() else { return false };
    match &trace.atoms().get(atom).key {
        AtomKey::Pure(operation, operands) => {
            (operation.starts_with("setp.eq") || operation.starts_with("setp.ne") || operation.starts_with("and.pred"))
                && operands.iter().any(|o| trace.atoms().class(o) == Class::Thread)
        }
        _ => false,
    }
}

/// Whether the result of an instruction depends on how threads happen to run.
fn is_source(instruction: &Instruction, code: &Code<'_>, id: StatementId, uses: &DefUse) -> bool {
    match instruction.opcode.as_str() {
        "activemask" => true,
        "vote" | "match" => !instruction.has("sync"),
        "atom" => code.accesses(id).iter().filter(|a| a.role.writes()).any(|a| !uses.uses(a.register).is_empty()),
        _ => false,
    }
}

/// Whether the result of atomics is independent of their order.
fn commutes(instruction: &Instruction) -> bool {
    let is_integer =
        instruction.ty().is_some_and(|ty| ty.class() != TypeClass::Float || matches!(ty, ScalarType::Pred));
    is_integer && ["add", "min", "max", "and", "or", "xor", "inc", "dec"].iter().any(|op| instruction.has(op))
}

fn reads_memory(instruction: &Instruction) -> bool {
    match act(instruction) {
        Act::Access(access) => access.reads && access.space != Some(StateSpace::Param),
        Act::Call => true,
        _ => matches!(instruction.opcode.as_str(), "shfl" | "ldmatrix" | "redux"),
    }
}

fn names_kernel_param(trace: &Trace<'_>, instruction: &Instruction) -> bool {
    let params = &trace.code(0).function().params;
    instruction.operands.iter().flat_map(names).any(|name| params.iter().any(|p| p.name == *name))
}

fn guard_operand(instruction: &Instruction) -> Option<Operand> {
    instruction.guard.as_ref().map(|guard| Operand::Name(guard.predicate.clone()))
}

/// The names in an operand.
fn names(operand: &Operand) -> Box<dyn Iterator<Item = &atoll_ptx::Name> + '_> {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) | Operand::Negated(name) => {
            Box::new(std::iter::once(name))
        }
        Operand::Address(atoll_ptx::Address { base: atoll_ptx::AddressBase::Name(name), .. }) => {
            Box::new(std::iter::once(name))
        }
        Operand::Vector(parts) | Operand::List(parts) | Operand::Bracket(parts) => {
            Box::new(parts.iter().flat_map(names))
        }
        Operand::Pair(a, b) => Box::new(names(a).chain(names(b))),
        _ => Box::new(std::iter::empty()),
    }
}
