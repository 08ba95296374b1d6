//! Variables that outlive a launch, with their initial values: those of the module, and the
//! `.global` and `.const` variables that functions declare.

use crate::LowerError;
use crate::read::function_address;
use atoll_ptx::{
    InitialValue, Item, ItemKind, Linkage, Module, Name, OpaqueType, StateSpace, Statement, StatementKind, Variable,
};
use std::collections::HashMap;

/// Every `.global` and `.const` variable of a module, with its unique name and the line of its
/// declaration.
pub fn all(module: &Module) -> impl Iterator<Item = (Name, &Variable, u32)> {
    let of_module = module.items.iter().filter_map(|item| Some((item.variable()?, item.origin.line)));
    let of_module = of_module
        .filter(|(variable, _)| is_global(variable))
        .map(|(variable, line)| (variable.name.clone(), variable, line));
    of_module.chain(of_functions(module))
}

/// The `.global` and `.const` variables that functions declare. Such a variable has one instance
/// for all launches but is visible only in its scope. It therefore gets a unique name that PTX text
/// cannot contain.
pub fn of_functions(module: &Module) -> impl Iterator<Item = (Name, &Variable, u32)> {
    let mut found = Vec::new();
    let mut count: HashMap<(&Name, &Name), u32> = HashMap::new();
    for function in module.functions() {
        let mut inside = Vec::new();
        function.body.iter().for_each(|body| globals_among(&body.statements, &mut inside));
        for (variable, line) in inside {
            let number = count.entry((&function.name, &variable.name)).or_default();
            found.push((Name::new(format!("{}.{}.{number}", function.name, variable.name)), variable, line));
            *number += 1;
        }
    }
    found.into_iter()
}

fn globals_among<'m>(statements: &'m [Statement], out: &mut Vec<(&'m Variable, u32)>) {
    for statement in statements {
        match &statement.kind {
            StatementKind::Block(body) => globals_among(&body.statements, out),
            StatementKind::Variable(variable) if is_global(variable) => out.push((variable, statement.origin.line)),
            _ => {}
        }
    }
}

fn is_global(variable: &Variable) -> bool {
    matches!(variable.space, StateSpace::Global | StateSpace::Const)
}

/// Whether the module declares a name as a texture, sampler or surface; the tree keeps these
/// declarations as words.
pub fn is_opaque(module: &Module, name: &str) -> bool {
    let name = name.split('.').next().unwrap_or(name);
    module.items.iter().any(|item| match &item.kind {
        ItemKind::Variable(variable) => variable.space == StateSpace::Tex && variable.name == name,
        ItemKind::Directive(directive) => {
            let is_type = |word: &Name| OpaqueType::from_name(word.trim_start_matches('.')).is_some();
            directive.arguments.iter().any(is_type) && directive.arguments.iter().any(|word| word == name)
        }
        ItemKind::Function(_) => false,
    })
}

/// Maximum size of one variable in bytes. Larger data belongs in a buffer of the kernel graph.
const BYTES_MAX: u64 = 64 << 20;

/// The initial value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its bytes; 0 in place of addresses of variables.
    pub bytes: Vec<u8>,
    /// Addresses of other variables: the offset in `bytes`, the variable, and an offset from it.
    pub addresses: Vec<(usize, Name, i64)>,
}

impl Value {
    /// The value that a target writes into its object, with the size of the variable. An array
    /// without a size has the size of its initialiser.
    ///
    /// # Errors
    /// The variable is defined in another module or is larger than 64 MiB, its initialiser is
    /// larger than the variable, or [`Value::of`] fails. The error has the target's name and the
    /// line.
    pub fn whole(module: &Module, variable: &Variable, target: &'static str, line: u32) -> Result<Value, LowerError> {
        let unsupported = |what| LowerError::Unsupported { target, kernel: variable.name.clone(), line, what };
        if variable.linkage == Linkage::Extern {
            return Err(unsupported("variables defined in another module".into()));
        }
        let mut value = Value::of(module, variable).map_err(unsupported)?;
        let declared = variable
            .bytes()
            .filter(|bytes| *bytes <= BYTES_MAX)
            .ok_or_else(|| unsupported(format!("module variables above {BYTES_MAX} bytes")))?;
        let size = if declared == 0 { value.bytes.len() } else { declared as usize };
        if value.bytes.len() > size {
            return Err(unsupported("an initialiser larger than its variable".into()));
        }
        value.bytes.resize(size, 0);
        Ok(value)
    }

    /// The initial value of a variable, with the addresses of functions filled in.
    ///
    /// # Errors
    /// The text names the address of a symbol that is neither a variable nor a function of the
    /// module, or the initialiser is not supported.
    pub fn of(module: &Module, variable: &Variable) -> Result<Value, String> {
        let InitialValue { mut bytes, mut addresses } = variable.initial_value()?;
        addresses.retain(|(at, name, offset)| {
            let address = function_address(module, name);
            address
                .inspect(|address| {
                    bytes[*at..at + 8].copy_from_slice(&address.wrapping_add_signed(*offset).to_le_bytes())
                })
                .is_none()
        });
        let is_variable = |name: &Name| {
            module
                .items
                .iter()
                .filter_map(Item::variable)
                .any(|v| v.name == *name && matches!(v.space, StateSpace::Global | StateSpace::Const))
        };
        match addresses.iter().find(|(_, name, _)| !is_variable(name)) {
            Some((_, name, _)) => Err(format!("the address of `{name}` in an initialiser")),
            None => Ok(Value { bytes, addresses }),
        }
    }
}
