//! Decides which operands of each function have to be bounded, and which kernels cannot be fenced.

use super::undefined::undefined;
use super::{MODIFIERS, NotFenced, RESERVED, Rule, TABLE, check_parameters, gpu};
use crate::effects::memory::{Act, MemoryAct, act};
use crate::effects::{Access, Opaque, Root, Trace};
use crate::module_facts::Dialect;
use crate::options::FenceForm;
use crate::preemptible::reachable_functions;
use crate::virtual_registers::with_fixed_signature;
use atoll_ptx::analysis::{Cfg, Code, Liveness, StatementId};
use atoll_ptx::{
    Address, AddressBase, Function, FunctionKind, Instruction, Module, Name, Operand, ScalarType, StateSpace,
    Statement, StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// One operand and its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fix {
    pub(super) operand: usize,
    pub(super) base: Base,
    pub(super) bound: Bound,
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// A 64-bit register, or a literal address.
    Wide,
    /// A 32-bit register.
    Narrow,
    /// A variable.
    Variable,
}

/// The bound of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// In the region; a load may also lie in the constants.
    Region { bytes: u64, is_load: bool },
    /// In a variable, and at a multiple of `align` bytes.
    Variable { name: Name, space: StateSpace, extent: Extent, is_generic: bool, align: u64 },
    /// At most this index.
    Index(u32),
}

/// The largest offset in a variable at which an access fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Known(u64),
    /// For the dynamic shared array of the launch: its size minus this many bytes.
    Dynamic(u64),
    /// Every offset that occurs fits.
    Inside,
}

/// The changes to one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionPlan {
    pub(super) fixes: BTreeMap<StatementId, Vec<Fix>>,
    /// Registers that may be read before they are written. They are initialised to 0: a target
    /// could otherwise give an undefined value differently to the comparison and to the access.
    pub(super) initial: Vec<(Name, ScalarType)>,
}

type Plans = BTreeMap<Name, FunctionPlan>;

/// Plans for every function to be fenced, and the reason for every kernel that cannot be.
pub(super) fn plans(module: &Module, dialect: Dialect, form: FenceForm) -> (Plans, BTreeMap<Name, NotFenced>) {
    let fixed = with_fixed_signature(module);
    let mut refused = BTreeMap::new();
    let mut of_kernels: BTreeMap<Name, Plans> = BTreeMap::new();
    for kernel in module.kernels() {
        match plan(module, kernel, dialect, form, &fixed) {
            Ok(plans) => drop(of_kernels.insert(kernel.name.clone(), plans)),
            Err(reason) => drop(refused.insert(kernel.name.clone(), reason)),
        }
    }
    // A function is fenced for all kernels that call it, or for none. Each round except the last
    // rejects a kernel.
    loop {
        let mut lost: BTreeSet<Name> = BTreeSet::new();
        for kernel in module.kernels().filter(|k| refused.contains_key(&k.name)) {
            lost.extend(reachable_functions(module, kernel).unwrap_or_default().iter().map(|f| f.name.clone()));
        }
        let mut joined = Plans::new();
        let clash = of_kernels.iter().find_map(|(kernel, plans)| {
            plans.iter().find_map(|(function, plan)| {
                let differs = lost.contains(function) || joined.get(function).is_some_and(|known| known != plan);
                joined.insert(function.clone(), plan.clone());
                differs.then(|| (kernel.clone(), function.to_string()))
            })
        });
        match clash {
            Some((kernel, function)) => {
                of_kernels.remove(&kernel);
                refused.insert(kernel, NotFenced::SharedFunction { function });
            }
            None => return (joined, refused),
        }
    }
}

fn plan(
    module: &Module,
    kernel: &Function,
    dialect: Dialect,
    form: FenceForm,
    fixed: &BTreeSet<Name>,
) -> Result<Plans, NotFenced> {
    if dialect.address_bits != 64 {
        return Err(NotFenced::AddressSize(dialect.address_bits));
    }
    check_parameters(kernel, dialect, form)?;
    if form == FenceForm::Exit {
        gpu::check_calls(module, kernel)?;
    }
    let trace = Trace::of(module, kernel).map_err(|opaque| match opaque {
        Opaque::Callee { name, line } => NotFenced::UnknownCallee { callee: name, line },
        Opaque::TooComplex => NotFenced::TooComplex,
    })?;
    let mut planner = Planner { module, undefined: undefined(&trace), trace, form };
    let mut plans = Plans::new();
    for function in 0..planner.trace.function_count() {
        let name = planner.trace.code(function).function().name.clone();
        if planner.trace.code(function).function().kind == FunctionKind::Func && fixed.contains(&name) {
            return Err(NotFenced::FunctionAddress { function: name.to_string() });
        }
        plans.insert(name, planner.function(function)?);
    }
    Ok(plans)
}

/// Registers that may be read before they are written; rejects names reserved for the fence.
fn initial(code: &Code<'_>) -> Result<Vec<(Name, ScalarType)>, NotFenced> {
    let declared = code
        .function()
        .params
        .iter()
        .chain(&code.function().returns)
        .filter(|v| v.space == StateSpace::Reg)
        .map(|v| (0, &v.name));
    let in_body = code.statements().flat_map(|(_, statement)| match &statement.kind {
        StatementKind::Registers(declaration) => {
            declaration.names.iter().map(|(name, _)| (statement.origin.line, name)).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    });
    if let Some((line, name)) = declared.chain(in_body).find(|(_, name)| name.starts_with(RESERVED)) {
        return Err(NotFenced::Register { register: name.to_string(), line });
    }
    let cfg = Cfg::of(code).map_err(|_| NotFenced::TooComplex)?;
    let live = Liveness::of(code, &cfg).map_err(|_| NotFenced::TooComplex)?;
    let mut found = Vec::new();
    for register in live.live_in(cfg.entry()).map(|id| code.register(id)) {
        let is_parameter = code.function().params.iter().any(|p| p.space == StateSpace::Reg && p.name == register.name);
        let is_plain = register.scope.index() == 0 && register.vector.is_none() && register.ty.bits() <= 64;
        match (is_parameter, is_plain) {
            (true, _) => {}
            (false, true) => found.push((register.name.clone(), register.ty)),
            (false, false) => return Err(NotFenced::Register { register: register.name.to_string(), line: 0 }),
        }
    }
    Ok(found)
}

/// An instruction of a function that is planned.
#[derive(Clone, Copy)]
struct Site<'m> {
    /// The index of the function; the kernel is 0.
    function: usize,
    statement: StatementId,
    instruction: &'m Instruction,
    line: u32,
}

impl Site<'_> {
    /// The instruction has no fence; `what` tells why and follows its name.
    fn refused(&self, what: impl Into<String>) -> NotFenced {
        NotFenced::Instruction { instruction: self.instruction.dotted(), what: what.into(), line: self.line }
    }
}

struct Planner<'m> {
    module: &'m Module,
    trace: Trace<'m>,
    undefined: Vec<Vec<bool>>,
    form: FenceForm,
}

impl<'m> Planner<'m> {
    fn function(&mut self, function: usize) -> Result<FunctionPlan, NotFenced> {
        let mut plan = FunctionPlan { initial: initial(self.trace.code(function))?, ..FunctionPlan::default() };
        let sites: Vec<Site<'m>> = {
            let statements = self.trace.code(function).statements();
            let site = |(statement, s): (StatementId, &'m Statement)| {
                Some(Site { function, statement, instruction: s.instruction()?, line: s.origin.line })
            };
            statements.filter_map(site).collect()
        };
        for site in sites {
            let fixes = self.instruction(site)?;
            if !fixes.is_empty() {
                plan.fixes.insert(site.statement, fixes);
            }
        }
        Ok(plan)
    }

    fn instruction(&mut self, site: Site<'m>) -> Result<Vec<Fix>, NotFenced> {
        let instruction = site.instruction;
        if self.form == FenceForm::Exit
            && let Some(what) = gpu::hazard(instruction)
        {
            return Err(site.refused(format!(" ({what})")));
        }
        let dotted = instruction.dotted();
        let is_row = |name: &str| dotted == name || dotted.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let Some((_, rule)) = TABLE.iter().find(|(name, _)| is_row(name)) else {
            return match act(instruction) {
                _ if only_computes(instruction) => Ok(Vec::new()),
                Act::Unsupported(what) => Err(site.refused(format!(" ({what})"))),
                _ => Err(site.refused("")),
            };
        };
        let bounds_address = matches!(rule, Rule::BoundAddress | Rule::BoundCopy | Rule::BoundRow(..));
        if let Some(modifier) = instruction.modifiers.iter().find(|m| bounds_address && !is_known(m)) {
            return Err(site.refused(format!(": unknown modifier `.{modifier}`")));
        }
        match *rule {
            Rule::Jump | Rule::Wait => Ok(Vec::new()),
            Rule::Prefetch if self.form == FenceForm::Trap => Ok(Vec::new()),
            Rule::Prefetch => Err(site.refused(" (what it does with addresses outside the region is not specified)")),
            Rule::BoundIndex => self.index(site),
            Rule::KnownCallee => known_callee(self.module, site).map(|()| Vec::new()),
            Rule::BoundAddress => self.access(site),
            Rule::BoundCopy => self.copy(site),
            Rule::BoundRow(operand, bytes) => self.variable(site, operand, bytes, Some(StateSpace::Shared)),
        }
    }

    /// Plans a jump through a table of labels.
    fn index(&self, site: Site<'_>) -> Result<Vec<Fix>, NotFenced> {
        let code = self.trace.code(site.function);
        let table = match site.instruction.operands.get(1) {
            Some(Operand::Name(table)) => code.label_at(site.statement, table).map(|at| &code.statement(at).kind),
            _ => None,
        };
        match table {
            Some(StatementKind::BranchTargets { targets, .. }) if !targets.is_empty() => {
                Ok(vec![Fix { operand: 0, base: Base::Wide, bound: Bound::Index(targets.len() as u32 - 1) }])
            }
            _ => Err(NotFenced::EmptyTable { line: site.line }),
        }
    }

    fn access(&mut self, site: Site<'_>) -> Result<Vec<Fix>, NotFenced> {
        let is_here = |access: &&Access| (access.function, access.statement) == (site.function, site.statement);
        let found = self.trace.accesses.iter().find(is_here).cloned();
        let unknown = || site.refused("");
        let access = found.ok_or_else(unknown)?;
        let bytes = access.act.bytes.filter(|bytes| bytes.is_power_of_two()).ok_or_else(unknown)?;
        let operand = access.act.address;
        match access.act.space {
            Some(StateSpace::Param) => self.parameter(site, operand, bytes),
            Some(space @ (StateSpace::Shared | StateSpace::Local | StateSpace::Const)) => {
                self.variable(site, operand, bytes, Some(space))
            }
            Some(StateSpace::Global) => self.global(site, &access, bytes),
            None if access.is_private => self.variable(site, operand, bytes, None),
            None if self.trace.may_be_private(&access) => Err(NotFenced::GenericAddress { line: site.line }),
            None => self.global(site, &access, bytes),
            Some(_) => Err(unknown()),
        }
    }

    /// Plans an access to global memory: to the region, or a load from a variable of the module.
    fn global(&mut self, site: Site<'_>, access: &Access, bytes: u64) -> Result<Vec<Fix>, NotFenced> {
        let MemoryAct { writes, address, .. } = access.act;
        let variable = access.targets.iter().flatten().find_map(|&target| match self.trace.root(target) {
            Some(Root::Variable(name)) => Some(name.clone()),
            _ => None,
        });
        match variable {
            Some(variable) if writes => {
                return Err(NotFenced::ModuleVariable { variable: variable.to_string(), line: site.line });
            }
            Some(_) => return self.variable(site, address, bytes, Some(StateSpace::Global)),
            None => {}
        }
        if writes && self.trace.may_store_private_address(access) {
            return Err(NotFenced::PrivateAddress { line: site.line });
        }
        let bound = Bound::Region { bytes, is_load: !writes };
        Ok(vec![Fix { operand: address, base: self.base(site, address), bound }])
    }

    fn copy(&mut self, site: Site<'_>) -> Result<Vec<Fix>, NotFenced> {
        let bytes = match act(site.instruction) {
            Act::Access(MemoryAct { bytes: Some(bytes), .. }) if bytes.is_power_of_two() => bytes,
            _ => return Err(site.refused("")),
        };
        let mut fixes = self.variable(site, 0, bytes, Some(StateSpace::Shared))?;
        fixes.push(Fix { operand: 1, base: self.base(site, 1), bound: Bound::Region { bytes, is_load: true } });
        Ok(fixes)
    }

    /// Checks that parameters are accessed by name and within their size.
    fn parameter(&self, site: Site<'_>, operand: usize, bytes: u64) -> Result<Vec<Fix>, NotFenced> {
        let code = self.trace.code(site.function);
        let named = match site.instruction.operands.get(operand) {
            Some(Operand::Address(Address { base: AddressBase::Name(name), offset })) => {
                code.variable_at(site.statement, name).map(|variable| (variable, *offset))
            }
            _ => None,
        };
        match named {
            Some((variable, offset)) if fits_within(variable, (offset, offset), bytes) => {
                let is_aligned = self.align(bytes) == 1 || is_aligned(variable, offset, bytes);
                let alignment = || NotFenced::Alignment { variable: variable.name.to_string(), line: site.line };
                if is_aligned { Ok(Vec::new()) } else { Err(alignment()) }
            }
            _ => Err(NotFenced::ParameterAddress { line: site.line }),
        }
    }

    /// Plans an access to a variable of the kernel or its module; `space` is `None` for a generic
    /// address.
    fn variable(
        &mut self,
        site: Site<'_>,
        operand: usize,
        bytes: u64,
        space: Option<StateSpace>,
    ) -> Result<Vec<Fix>, NotFenced> {
        let name = space.map_or("private", StateSpace::as_str);
        let unknown = || NotFenced::UnknownVariable { space: name.to_owned(), line: site.line };
        let address = self.trace.address(site.function, site.statement, operand);
        let (variable, range) = address.and_then(|address| self.trace.variable(&address)).ok_or_else(unknown)?;
        // The name must refer to the same variable here.
        let visible = self.trace.code(site.function).variable_at(site.statement, &variable.name);
        if space.is_some_and(|space| space != variable.space) || !visible.is_none_or(|v| std::ptr::eq(v, variable)) {
            return Err(unknown());
        }
        if visible.is_none() && !self.trace.is_of_module(variable) {
            return Err(unknown());
        }
        let is_proven = !self.is_undefined(site) && range.is_some_and(|range| fits_within(variable, range, bytes));
        // In the form for GPUs, an address also has to be aligned.
        let align = self.align(bytes);
        let is_one = range.is_some_and(|(low, high)| low == high && is_aligned(variable, low, bytes));
        if is_proven && (align == 1 || is_one) {
            return Ok(Vec::new());
        }
        // An address that is rounded down must not leave a variable in memory of all tenants.
        if align > 1 && variable.space == StateSpace::Global && !is_aligned(variable, 0, bytes) {
            return Err(NotFenced::Alignment { variable: variable.name.to_string(), line: site.line });
        }
        let extent = match variable.bytes() {
            _ if is_proven => Extent::Inside,
            Some(0) if variable.space == StateSpace::Shared => Extent::Dynamic(bytes),
            Some(size) if size >= bytes => Extent::Known(size - bytes),
            _ => return Err(unknown()),
        };
        let (name, space, is_generic) = (variable.name.clone(), variable.space, space.is_none());
        let bound = Bound::Variable { name, space, extent, is_generic, align };
        Ok(vec![Fix { operand, base: self.base(site, operand), bound }])
    }

    /// The multiple to which the address of an access of `bytes` bytes is rounded down.
    fn align(&self, bytes: u64) -> u64 {
        if self.form == FenceForm::Exit { bytes } else { 1 }
    }

    /// The base of an operand's address.
    fn base(&self, site: Site<'_>, operand: usize) -> Base {
        let code = self.trace.code(site.function);
        let Some(Operand::Address(Address { base: AddressBase::Name(name), .. })) =
            site.instruction.operands.get(operand)
        else {
            return Base::Wide;
        };
        match code.register_at(site.statement, name).map(|r| code.register(r).ty.bits()) {
            Some(64) => Base::Wide,
            Some(_) => Base::Narrow,
            None => Base::Variable,
        }
    }

    /// Whether an instruction reads a register that may be undefined.
    fn is_undefined(&self, site: Site<'_>) -> bool {
        let accesses = self.trace.code(site.function).accesses(site.statement);
        accesses.iter().any(|a| a.role.reads() && self.undefined[site.function][a.register.index()])
    }
}

/// Whether an access at an offset of a variable is aligned.
fn is_aligned(variable: &Variable, offset: i64, bytes: u64) -> bool {
    u64::from(variable.alignment()).is_multiple_of(bytes) && offset.unsigned_abs().is_multiple_of(bytes)
}

/// Whether an access at any offset of a range lies within a variable.
fn fits_within(variable: &Variable, (low, high): (i64, i64), bytes: u64) -> bool {
    let end = u64::try_from(high).ok().and_then(|high| high.checked_add(bytes));
    low >= 0 && end.zip(variable.bytes()).is_some_and(|(end, size)| end <= size)
}

fn known_callee(module: &Module, call: Site<'_>) -> Result<(), NotFenced> {
    let callee = match call.instruction.operands.get(1) {
        Some(Operand::Name(name)) if module.function(name).is_some_and(|f| f.body.is_some()) => return Ok(()),
        Some(Operand::Name(name)) => name.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    };
    Err(NotFenced::UnknownCallee { callee, line: call.line })
}

/// Whether a modifier of an access changes neither its address nor its extent.
fn is_known(modifier: &Name) -> bool {
    let is_type = || ScalarType::ALL.iter().any(|ty| ty.as_str() == modifier.as_str());
    let is_hint = || modifier.starts_with("L1::") || modifier.starts_with("L2::");
    MODIFIERS.iter().any(|kind| kind.contains(&modifier.as_str())) || is_type() || is_hint()
}

/// Whether an instruction neither accesses memory nor jumps. Instructions that change the thread's
/// stack or its number of registers do not count.
fn only_computes(instruction: &Instruction) -> bool {
    const NOT: [&str; 8] =
        ["alloca", "stacksave", "stackrestore", "setmaxnreg", "mbarrier", "applypriority", "prefetch", "prefetchu"];
    act(instruction) == Act::Nothing && !NOT.contains(&instruction.opcode.as_str()) && instruction.opcode != "cp"
}
