//! The layout of the variables of a module and its functions.

use crate::memory::{CODE_WINDOW, CONST_WINDOW, GlobalVariable, LOCAL_WINDOW, SHARED_WINDOW, variable_address};
use atoll_ptx::{
    Immediate, Initializer, Item, ItemKind, Linkage, Module, Operand, StateSpace, Statement, StatementKind, Variable,
};
use std::collections::HashMap;

/// Maximum size in bytes of one variable, and of all variables together: 1 GiB, so that they fit
/// into the memory of a laptop.
const VARIABLE_BYTES_MAX: u64 = 1 << 30;

/// The layout of a program.
#[derive(Default)]
pub(crate) struct Symbols<'a> {
    /// Addresses of module-scope variables, and of the functions' `.shared` variables, in their own
    /// state space. Keyed by identity, because names repeat in scopes.
    places: HashMap<*const Variable, u64>,
    /// Module-scope variables by name.
    module: HashMap<&'a str, &'a Variable>,
    /// The reachable functions; the kernel is the first.
    pub(crate) functions: Vec<&'a atoll_ptx::Function>,
    pub(crate) globals: Vec<GlobalVariable>,
    /// Index of a variable in `globals`.
    global_index: HashMap<*const Variable, usize>,
    /// Textures, samplers and surfaces of the module.
    textures: Vec<&'a str>,
    pub(crate) constants: Vec<u8>,
    pub(crate) shared_bytes: u64,
}

impl<'a> Symbols<'a> {
    /// Lays out everything that a kernel can reach.
    pub(crate) fn of(module: &'a Module, entry: &'a atoll_ptx::Function) -> Result<Symbols<'a>, String> {
        let mut symbols = Symbols { functions: vec![entry], ..Symbols::default() };
        let variables: Vec<&Variable> = module.items.iter().filter_map(module_variable).collect();
        symbols.textures = module.items.iter().flat_map(textures).collect();
        for &variable in &variables {
            // A definition has precedence over a declaration.
            if variable.linkage != Linkage::Extern || !symbols.module.contains_key(variable.name.as_str()) {
                symbols.module.insert(&variable.name, variable);
            }
        }
        symbols.reach(module, &variables);
        let placed: Vec<&Variable> = symbols.module.values().copied().collect();
        let mut ordered: Vec<&Variable> =
            variables.into_iter().filter(|v| placed.iter().any(|p| std::ptr::eq(*p, *v))).collect();
        for &function in &symbols.functions {
            function.body.iter().for_each(|body| shared_variables(&body.statements, &mut ordered));
        }
        for &variable in &ordered {
            symbols.place(variable)?;
        }
        symbols.initialize(&ordered)?;
        Ok(symbols)
    }

    /// Adds every function named by a reachable function or by an initial value.
    fn reach(&mut self, module: &'a Module, variables: &[&'a Variable]) {
        let mut names: Vec<&str> = Vec::new();
        for variable in variables {
            variable.initializer.iter().for_each(|i| initial_names(i, &mut names));
        }
        let mut next = 0;
        loop {
            for name in names.drain(..) {
                let known = self.functions.iter().any(|f| f.name == name);
                let function = module.function(name).filter(|f| f.body.is_some() && !known);
                self.functions.extend(function);
            }
            let Some(function) = self.functions.get(next) else { return };
            next += 1;
            function.body.iter().for_each(|body| named(&body.statements, &mut names));
        }
    }

    fn place(&mut self, variable: &'a Variable) -> Result<(), String> {
        let bytes = variable.bytes().filter(|b| *b <= VARIABLE_BYTES_MAX);
        let bytes =
            bytes.ok_or_else(|| format!("variable `{}` has more than {VARIABLE_BYTES_MAX} bytes", variable.name))?;
        let align = u64::from(variable.alignment().max(1));
        let at = match variable.space {
            StateSpace::Global => {
                self.global_index.insert(std::ptr::from_ref(variable), self.globals.len());
                self.globals.push(GlobalVariable { name: variable.name.to_string(), bytes: vec![0; bytes as usize] });
                variable_address(self.globals.len() - 1)
            }
            StateSpace::Const => {
                let at = (self.constants.len() as u64).next_multiple_of(align);
                self.constants.resize((at + bytes) as usize, 0);
                at
            }
            // Dynamic shared memory follows all other variables, see `address`.
            StateSpace::Shared if variable.linkage == Linkage::Extern => return Ok(()),
            StateSpace::Shared => {
                let at = self.shared_bytes.next_multiple_of(align);
                self.shared_bytes = at + bytes;
                at
            }
            _ => {
                return Err(format!(
                    "variable `{}` of .{} at module scope is not supported",
                    variable.name, variable.space
                ));
            }
        };
        if self.shared_bytes > VARIABLE_BYTES_MAX || self.constants.len() as u64 > VARIABLE_BYTES_MAX {
            return Err("the module's variables are too large".into());
        }
        self.places.insert(std::ptr::from_ref(variable), at);
        Ok(())
    }

    /// Whether a name is a texture, sampler or surface.
    pub(crate) fn is_texture(&self, name: &str) -> bool {
        self.textures.contains(&name.split('.').next().unwrap_or(name))
    }

    /// The offset of dynamic shared memory.
    pub(crate) fn dynamic_shared(&self) -> u64 {
        self.shared_bytes.next_multiple_of(16)
    }

    /// The address of a variable outside of frames, in its own state space.
    pub(crate) fn address(&self, variable: &Variable) -> Option<u64> {
        if variable.space == StateSpace::Shared && variable.linkage == Linkage::Extern {
            return Some(self.dynamic_shared());
        }
        self.places.get(&std::ptr::from_ref(variable)).copied()
    }

    /// The module-scope variable of a name.
    pub(crate) fn variable(&self, name: &str) -> Option<&'a Variable> {
        self.module.get(name).copied()
    }

    /// The index of a function.
    pub(crate) fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|f| f.name == name)
    }

    fn initialize(&mut self, variables: &[&'a Variable]) -> Result<(), String> {
        for &variable in variables {
            let Some(initializer) = &variable.initializer else { continue };
            let mut bytes = Vec::new();
            self.initial_bytes(variable, initializer, &mut bytes)?;
            let Some(at) = self.address(variable) else { continue };
            let target = match variable.space {
                StateSpace::Const => self.constants.get_mut(at as usize..),
                StateSpace::Global => self
                    .global_index
                    .get(&std::ptr::from_ref(variable))
                    .map(|index| self.globals[*index].bytes.as_mut_slice()),
                _ => None,
            };
            let place = target.and_then(|t| t.get_mut(..bytes.len()));
            place
                .ok_or_else(|| format!("the initial value of `{}` does not fit", variable.name))?
                .copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn initial_bytes(&self, variable: &Variable, initializer: &Initializer, out: &mut Vec<u8>) -> Result<(), String> {
        let value = match initializer {
            Initializer::List(list) => return list.iter().try_for_each(|each| self.initial_bytes(variable, each, out)),
            Initializer::Immediate(immediate) => immediate_bits(*immediate, variable.ty),
            Initializer::Symbol { name, offset, generic, mask } => {
                let address = self.symbol_value(name, *generic)?.wrapping_add_signed(*offset);
                mask.map_or(address, |mask| (address & mask).checked_shr(mask.trailing_zeros()).unwrap_or(0))
            }
        };
        out.extend_from_slice(&value.to_le_bytes()[..variable.ty.bytes().min(8) as usize]);
        Ok(())
    }

    fn symbol_value(&self, name: &str, generic: bool) -> Result<u64, String> {
        if let Some(index) = self.function(name) {
            return Ok(CODE_WINDOW + index as u64);
        }
        let variable = self.variable(name).ok_or_else(|| format!("unknown name `{name}` in an initial value"))?;
        let address = self.address(variable).ok_or_else(|| format!("`{name}` has no address"))?;
        Ok(if generic { address + window_of(variable.space) } else { address })
    }
}

/// The offset that makes an address of a state space generic.
pub(crate) fn window_of(space: StateSpace) -> u64 {
    match space {
        StateSpace::Shared => SHARED_WINDOW,
        StateSpace::Local => LOCAL_WINDOW,
        StateSpace::Const => CONST_WINDOW,
        StateSpace::Param => crate::memory::PARAM_WINDOW,
        _ => 0,
    }
}

/// The bits of a literal in type `ty`.
pub(crate) fn immediate_bits(immediate: Immediate, ty: atoll_ptx::ScalarType) -> u64 {
    use atoll_ptx::ScalarType::{F32, F64};
    match (immediate, ty) {
        (Immediate::Int(value), _) => value as u64,
        (Immediate::F32(bits), F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Immediate::F32(bits), _) => bits.into(),
        (Immediate::F64(bits), F32) => (f64::from_bits(bits) as f32).to_bits().into(),
        (Immediate::F64(bits), _) => bits,
    }
}

fn module_variable(item: &Item) -> Option<&Variable> {
    match &item.kind {
        ItemKind::Variable(variable) => Some(variable).filter(|variable| variable.space != StateSpace::Tex),
        _ => None,
    }
}

/// The words of a declaration with an opaque type, which include the declared name.
fn textures(item: &Item) -> Vec<&str> {
    match &item.kind {
        ItemKind::Variable(variable) if variable.space == StateSpace::Tex => vec![&variable.name],
        ItemKind::Directive(directive) => {
            let is_type = |word: &str| matches!(word, ".texref" | ".samplerref" | ".surfref");
            let words = || directive.arguments.iter().map(|word| word.as_str());
            if words().any(is_type) { words().collect() } else { Vec::new() }
        }
        _ => Vec::new(),
    }
}

fn initial_names<'a>(initializer: &'a Initializer, names: &mut Vec<&'a str>) {
    match initializer {
        Initializer::Immediate(_) => {}
        Initializer::Symbol { name, .. } => names.push(name),
        Initializer::List(list) => list.iter().for_each(|each| initial_names(each, names)),
    }
}

/// Collects every name that may refer to a function.
fn named<'a>(statements: &'a [Statement], names: &mut Vec<&'a str>) {
    for statement in statements {
        match &statement.kind {
            StatementKind::Block(body) => named(&body.statements, names),
            StatementKind::Instruction(i) => i.operands.iter().for_each(|operand| {
                if let Operand::Name(name) = operand {
                    names.push(name);
                }
            }),
            StatementKind::CallTargets { targets, .. } => names.extend(targets.iter().map(|t| t.as_str())),
            _ => {}
        }
    }
}

fn shared_variables<'a>(statements: &'a [Statement], out: &mut Vec<&'a Variable>) {
    for statement in statements {
        match &statement.kind {
            StatementKind::Block(body) => shared_variables(&body.statements, out),
            StatementKind::Variable(v)
                if matches!(v.space, StateSpace::Shared | StateSpace::Global | StateSpace::Const) =>
            {
                out.push(v)
            }
            _ => {}
        }
    }
}
