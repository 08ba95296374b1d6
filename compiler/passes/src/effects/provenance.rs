//! The origin of addresses: a value for every register of a kernel and of the device functions it
//! can call.
//!
//! A register with one definition has the value of that definition. A register with several
//! definitions is an atom of its own, which may point into the targets of all its definitions. The
//! result does not depend on the execution order and holds at every read of the register, so the
//! analysis needs neither SSA form nor paths. Definitions are evaluated until nothing changes. This
//! ends because the sets of pointer targets only grow.

mod accesses;
mod calls;

use self::calls::{callees, count_arguments};
use super::cells::{Cells, Contents, VariableKey};
use super::eval::Evaluation;
use super::linear::{ATOMS_MAX, AtomId, AtomKey, Atoms, Class, Linear, RootSet, gcd};
use super::memory::{Act, MemoryAct, act, element};
use super::roots::{Root, Roots, variable_atom};
use atoll_ptx::analysis::{Code, DefUse, RegisterId, StatementId};
use atoll_ptx::{
    AddressBase, Function, Instruction, ItemKind, Module, Name, Operand, ScalarType, StateSpace, StatementKind,
    Variable,
};
use std::collections::HashMap;

/// Limit on the rounds of evaluation; compiler-generated code needs three to five. A pointer may
/// pass through a chain of registers that each have several definitions; twice the length of the
/// longest chain is enough rounds.
const ROUNDS_MAX: usize = 100;

/// Limit on the restarts of the evaluation after a parameter turned out to be a pointer.
const RESTARTS_MAX: usize = 4;

/// One function that the kernel can reach; the kernel itself is the first.
pub(super) struct FunctionCode<'m> {
    pub(super) code: Code<'m>,
    /// Number of definitions of each register.
    definitions: Vec<u32>,
}

/// A call, and the functions it may reach, by index.
struct CallSite {
    function: usize,
    statement: StatementId,
    callees: Vec<usize>,
}

/// Values of registers, and the roots they may point into.
pub(super) struct Provenance<'m> {
    pub(super) functions: Vec<FunctionCode<'m>>,
    pub(super) atoms: Atoms,
    pub(super) roots: Roots,
    values: Vec<Vec<Option<Linear>>>,
    cells: Cells,
    /// For each register with several definitions, the value of each definition by statement; the
    /// definition by a call's argument has no statement.
    given: HashMap<(usize, RegisterId), HashMap<Option<StatementId>, Linear>>,
    calls: Vec<CallSite>,
    module_variables: HashMap<Name, &'m Variable>,
    /// The atom of each variable's address, and the inverse.
    variables: HashMap<VariableKey, AtomId>,
    variable_of: HashMap<AtomId, VariableKey>,
    declarations: HashMap<VariableKey, &'m Variable>,
    /// Position of each kernel parameter.
    kernel_params: HashMap<VariableKey, usize>,
    changed: bool,
    found_pointer: bool,
}

/// Too many values or rounds: the kernel exceeds the limits of the analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooComplex;

fn key(variable: &Variable) -> VariableKey {
    std::ptr::from_ref(variable).addr()
}

impl<'m> Provenance<'m> {
    /// Evaluates a kernel and the device functions that it can reach.
    pub(super) fn of(
        module: &'m Module,
        kernel: &'m Function,
        reachable: &[&'m Function],
    ) -> Result<Provenance<'m>, TooComplex> {
        let functions: Vec<&'m Function> = std::iter::once(kernel).chain(reachable.iter().copied()).collect();
        let mut roots = Roots::new();
        for (index, param) in kernel.params.iter().enumerate() {
            if param.pointer.is_some() {
                let set = roots.intern(Root::Param { index, offset: 0, name: param.name.clone() });
                roots.mark_pointer(set);
            }
        }
        for _ in 0..RESTARTS_MAX {
            let mut provenance = Provenance::new(module, &functions, roots.clone());
            provenance.settle()?;
            if !provenance.found_pointer {
                return Ok(provenance);
            }
            roots = provenance.roots;
        }
        let mut provenance = Provenance::new(module, &functions, roots);
        provenance.settle()?;
        Ok(provenance)
    }

    fn new(module: &'m Module, functions: &[&'m Function], roots: Roots) -> Provenance<'m> {
        let position = |name: &Name| functions.iter().position(|f| f.name == *name);
        let mut codes = Vec::new();
        let mut calls = Vec::new();
        for (index, function) in functions.iter().enumerate() {
            let code = Code::of(function);
            let sites = DefUse::of(&code);
            let definitions =
                (0..code.registers().len()).map(|r| sites.defs(RegisterId::new(r)).len() as u32).collect();
            for (statement, _) in code.statements() {
                let Some(call) = code.instruction(statement).filter(|i| i.opcode == "call") else { continue };
                let callees = callees(&code, statement, call).iter().filter_map(position).collect();
                calls.push(CallSite { function: index, statement, callees });
            }
            codes.push(FunctionCode { code, definitions });
        }
        count_arguments(&mut codes, &calls);
        let variables = module.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Variable(v) => Some((v.name.clone(), v)),
            _ => None,
        });
        Provenance {
            values: codes.iter().map(|f| vec![None; f.code.registers().len()]).collect(),
            functions: codes,
            atoms: Atoms::default(),
            roots,
            cells: Cells::default(),
            given: HashMap::new(),
            calls,
            module_variables: variables.collect(),
            variables: HashMap::new(),
            variable_of: HashMap::new(),
            declarations: HashMap::new(),
            kernel_params: functions[0].params.iter().enumerate().map(|(i, p)| (key(p), i)).collect(),
            changed: false,
            found_pointer: false,
        }
    }

    fn settle(&mut self) -> Result<(), TooComplex> {
        for _ in 0..ROUNDS_MAX {
            self.changed = false;
            for function in 0..self.functions.len() {
                for statement in 0..self.functions[function].code.len() {
                    self.evaluate(function, StatementId::new(statement));
                }
            }
            self.pass_arguments();
            if self.atoms.len() > ATOMS_MAX {
                return Err(TooComplex);
            }
            if !self.changed {
                self.find_strides();
                return Ok(());
            }
        }
        Err(TooComplex)
    }

    /// Finds the registers that start from one value and advance in steps.
    fn find_strides(&mut self) {
        for ((function, register), values) in &self.given {
            let Some(own) = self.values[*function][register.index()].as_ref().and_then(Linear::as_atom) else {
                continue;
            };
            if self.atoms.get(own).key != AtomKey::Register(*function, register.index()) || values.contains_key(&None) {
                continue;
            }
            let moves = |value: &Linear| value.terms().contains(&(own, 1));
            let mut starts = values.values().filter(|value| !moves(value));
            let Some(start) = starts.next().cloned() else { continue };
            let width = start.width();
            if starts.any(|other| *other != start) || start.terms().iter().any(|(atom, _)| *atom == own) {
                continue;
            }
            let steps = values
                .values()
                .filter(|value| moves(value))
                .filter_map(|value| value.plus(&Linear::atom(width, own), u64::MAX));
            if let Some(multiple) = steps.map(|step| self.atoms.factor(&step)).reduce(gcd) {
                self.atoms.set_stride(own, start, multiple);
            }
        }
    }

    fn evaluate(&mut self, function: usize, statement: StatementId) {
        let Some(instruction) = self.instruction(function, statement) else { return };
        match act(instruction) {
            Act::Access(access) => self.evaluate_access(function, statement, instruction, &access),
            Act::Call => {}
            Act::Nothing | Act::Unsupported(_) => {
                Evaluation { provenance: self, function, statement, instruction }.run()
            }
        }
    }

    pub(super) fn instruction(&self, function: usize, statement: StatementId) -> Option<&'m Instruction> {
        self.functions[function].code.instruction(statement)
    }

    /// The address of an access; `None` if unknown.
    pub(super) fn address(&mut self, function: usize, statement: StatementId, access: &MemoryAct) -> Option<Linear> {
        self.operand_address(function, statement, access.address)
    }

    /// The address of an operand.
    pub(super) fn operand_address(
        &mut self,
        function: usize,
        statement: StatementId,
        operand: usize,
    ) -> Option<Linear> {
        match self.instruction(function, statement)?.operands.get(operand)? {
            Operand::Address(address) => match &address.base {
                AddressBase::Name(name) => {
                    let base = self.name_value(function, statement, name)?;
                    base.with_width(64).plus(&Linear::constant(64, address.offset as u64), 1)
                }
                AddressBase::Absolute(value) => Some(Linear::constant(64, value.wrapping_add(address.offset as u64))),
            },
            _ => None,
        }
    }

    /// The only shared, local or constant variable that an address can lie in, with the range of
    /// offsets if it is known.
    pub(super) fn variable_at(&self, address: &Linear) -> Option<(&'m Variable, Option<(i64, i64)>)> {
        let set = self.points_into(address);
        let of_module = |name: &Name| self.module_variables.get(name).map(|variable| key(variable));
        let key = self.roots.variable(set).or_else(|| self.roots.module_variable(set).and_then(of_module))?;
        let atom = self.variables.get(&key)?;
        let offset =
            address.plus(&Linear::atom(64, *atom), u64::MAX).filter(|rest| rest.terms().iter().all(|(a, _)| a != atom));
        let range = offset.and_then(|rest| match rest.as_constant() {
            Some(constant) => Some((rest.signed(constant), rest.signed(constant))),
            None => self.atoms.range(&rest),
        });
        Some((self.declarations.get(&key)?, range))
    }

    /// Whether an address may point to memory of the block itself.
    pub(super) fn may_be_private(&self, address: &Linear) -> bool {
        self.roots.may_be_private(self.points_into(address))
    }

    /// Possible targets of a pointer of which a 32-bit load from shared memory may return one half.
    pub(super) fn shared_roots(&self) -> RootSet {
        self.cells.shared().without_unknown()
    }

    /// Whether a variable is declared by the module itself.
    pub(super) fn is_of_module(&self, variable: &Variable) -> bool {
        self.module_variables.get(&variable.name).is_some_and(|v| std::ptr::eq(*v, variable))
    }

    /// Whether a store may store the address of memory of the block itself.
    pub(super) fn may_store_private_address(
        &mut self,
        function: usize,
        statement: StatementId,
        access: &MemoryAct,
    ) -> bool {
        let Some(instruction) = self.instruction(function, statement) else { return false };
        let stored = self.stored(function, statement, instruction, access);
        stored.iter().any(|(_, value)| self.roots.may_be_private(self.points_into(value)))
    }

    /// The roots that an address may point into.
    pub(super) fn points_into(&self, address: &Linear) -> RootSet {
        self.roots.of_sum(&self.atoms, address)
    }

    pub(super) fn mark_pointer(&mut self, roots: RootSet) {
        self.found_pointer |= self.roots.mark_pointer(roots);
    }

    /// The value of a result that depends on memory or on other threads.
    pub(super) fn result(
        &mut self,
        function: usize,
        statement: StatementId,
        position: usize,
        width: u32,
        roots: RootSet,
        range: Option<(i64, i64)>,
    ) -> Linear {
        let atom =
            self.atoms.intern(AtomKey::Result(function, statement.index(), position), || (Class::Changing, range));
        self.changed |= self.atoms.add_roots(atom, roots);
        Linear::atom(width, atom)
    }

    pub(super) fn add_roots(&mut self, atom: AtomId, roots: RootSet) {
        self.changed |= self.atoms.add_roots(atom, roots);
    }

    /// The value of a register.
    pub(super) fn register_value(&self, function: usize, statement: StatementId, name: &Name) -> Option<Linear> {
        let register = self.functions[function].code.register_at(statement, name)?;
        self.values[function][register.index()].clone()
    }

    /// Adds a possible value of a register.
    pub(super) fn define(&mut self, function: usize, statement: StatementId, name: &Name, value: &Linear) {
        let Some(register) = self.functions[function].code.register_at(statement, name) else { return };
        self.define_register(function, register, Some(statement), value);
    }

    fn define_register(&mut self, function: usize, register: RegisterId, site: Option<StatementId>, value: &Linear) {
        let code = &self.functions[function];
        let declared = code.code.register(register);
        let width = declared.ty.bits();
        let is_whole = declared.vector.is_none() && value.width() == width;
        let is_single = code.definitions[register.index()] <= 1 && is_whole;
        if !is_single {
            self.given.entry((function, register)).or_default().insert(site, value.clone());
        }
        let old = self.values[function][register.index()].clone();
        let new = if is_single || is_whole && old.as_ref().is_none_or(|old| old == value) {
            value.clone()
        } else {
            let atom = self.atoms.intern(AtomKey::Register(function, register.index()), || (Class::Changing, None));
            let roots = self.points_into(value).union(old.as_ref().map_or(RootSet::NONE, |old| self.points_into(old)));
            self.changed |= self.atoms.add_roots(atom, roots);
            Linear::atom(width, atom)
        };
        if old.as_ref() != Some(&new) {
            self.changed = true;
            self.values[function][register.index()] = Some(new);
        }
    }

    /// The value of an operand at a width; `None` while it is unknown.
    pub(super) fn operand_value(
        &mut self,
        function: usize,
        statement: StatementId,
        operand: &Operand,
        width: u32,
    ) -> Option<Linear> {
        let value = match operand {
            Operand::Name(name) => self.name_value(function, statement, name)?,
            Operand::NameOffset(name, offset) => {
                let base = self.name_value(function, statement, name)?;
                base.plus(&Linear::constant(base.width(), *offset as u64), 1)?
            }
            Operand::Immediate(atoll_ptx::Immediate::Int(value)) => Linear::constant(width, *value as u64),
            Operand::Immediate(atoll_ptx::Immediate::F32(bits)) => Linear::constant(width, u64::from(*bits)),
            Operand::Immediate(atoll_ptx::Immediate::F64(bits)) => Linear::constant(width, *bits),
            _ => return None,
        };
        if value.width() >= width {
            return Some(value.with_width(width));
        }
        // The upper bits are undefined.
        let roots = self.points_into(&value);
        let atom = self.atoms.intern(AtomKey::Pure(format!("wider:{width}"), vec![value]), || (Class::Changing, None));
        self.add_roots(atom, roots);
        Some(Linear::atom(width, atom))
    }

    /// Whether a statement reads a register that has no value yet.
    pub(super) fn waits(&self, function: usize, statement: StatementId) -> bool {
        let reads = self.functions[function].code.accesses(statement).iter().filter(|a| a.role.reads());
        reads.into_iter().any(|a| self.values[function][a.register.index()].is_none())
    }

    /// The value of a name: of a register, of a special register, or the address of a variable or
    /// function.
    pub(super) fn name_value(&mut self, function: usize, statement: StatementId, name: &Name) -> Option<Linear> {
        let code = &self.functions[function].code;
        if let Some(register) = code.register_at(statement, name) {
            return self.values[function][register.index()].clone();
        }
        if name.starts_with('%') && atoll_ptx::is_special_register(name) {
            return Some(self.special(name));
        }
        let variable = code.variable_at(statement, name).or_else(|| self.module_variables.get(name).copied());
        Some(match variable {
            Some(variable) => self.address_of(variable),
            // The address of a function.
            None => {
                let atom = self.atoms.intern(AtomKey::Special(name.to_string()), || (Class::Stable, None));
                Linear::atom(64, atom)
            }
        })
    }

    fn special(&mut self, name: &Name) -> Linear {
        let width = if name.ends_with("64") || matches!(name.as_str(), "%globaltimer" | "%gridid") { 64 } else { 32 };
        let bounds = self.functions[0].code.function();
        let atom = self.atoms.intern(AtomKey::Special(name.to_string()), || describe_special(name, bounds));
        Linear::atom(width, atom)
    }

    fn address_of(&mut self, variable: &'m Variable) -> Linear {
        let key = key(variable);
        self.declarations.insert(key, variable);
        let atom = *self.variables.entry(key).or_insert_with(|| {
            let atom = self.atoms.intern(AtomKey::Address(key), || (Class::Stable, None));
            self.variable_of.insert(atom, key);
            atom
        });
        let roots = match variable.space {
            StateSpace::Global => {
                let set = self.roots.intern(Root::Variable(variable.name.clone()));
                self.roots.mark_pointer(set);
                set
            }
            StateSpace::Const => self.roots.intern_variable(key, true),
            StateSpace::Shared | StateSpace::Local => self.roots.intern_variable(key, false),
            StateSpace::Tex => RootSet::UNKNOWN,
            _ => Roots::parameters(),
        };
        self.changed |= self.atoms.add_roots(atom, roots);
        Linear::atom(64, atom)
    }
}

/// Limit on the threads of a block per axis, on every device.
const BLOCK_MAX: [i64; 3] = [1024, 1024, 64];

/// The class of a special register, and its range.
fn describe_special(name: &str, kernel: &Function) -> (Class, Option<(i64, i64)>) {
    let (stem, component) = name.split_once('.').unwrap_or((name, ""));
    let dimension = ["x", "y", "z"].iter().position(|d| *d == component);
    let threads = |d: usize| {
        let extents = |directive: &str| {
            let declared = kernel.attributes.iter().find(|a| a.name == directive)?;
            let extent = |d: usize| {
                declared
                    .arguments
                    .get(d)
                    .map_or(Some(1), |text| text.parse::<i64>().ok().filter(|n| (1..=1024).contains(n)))
            };
            Some([extent(0)?, extent(1)?, extent(2)?])
        };
        // `.maxntid` bounds only the product.
        let most = extents("reqntid").map(|e| e[d]).or_else(|| extents("maxntid").map(|e| e.iter().product()));
        most.unwrap_or(i64::MAX).min(BLOCK_MAX[d])
    };
    match (stem, dimension) {
        ("%tid", Some(d)) => (Class::Thread, Some((0, threads(d) - 1))),
        ("%ntid", Some(d)) => (Class::Stable, Some((1, threads(d)))),
        ("%ctaid" | "%nctaid", Some(_)) => (Class::Stable, Some((0, i64::from(i32::MAX)))),
        ("%laneid", _) => (Class::Thread, Some((0, 31))),
        ("%nsmid" | "%dynamic_smem_size" | "%total_smem_size", _) => (Class::Stable, None),
        (stem, _) if stem.starts_with("%lanemask") => (Class::Thread, None),
        _ => (Class::Changing, None),
    }
}
