//! Module variables: `.global` and `.const` arrays, defined once in the object and shared by its kernels.

use crate::emit::quoted;
use crate::error::HostError;
use crate::read::function_address;
use atoll_ptx::{InitialValue, Item, ItemKind, Linkage, Module, Name, StateSpace, Variable};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Largest module variable; anything larger belongs in a buffer of the kernel graph.
const MAX_BYTES: u64 = 64 << 20;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// How a kernel's module declares one.
    pub(crate) fn declaration(&self, name: &Name) -> String {
        format!("@{} = external hidden global i8\n", symbol(name))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// All definitions.
    pub(crate) fn all_definitions(&self) -> String {
        self.definitions.values().map(String::as_str).collect()
    }
}

fn symbol(name: &str) -> String {
    quoted(&format!("atoll_var_{name}"))
}

/// Collects the variables of a module.
pub(crate) fn definitions(module: &Module) -> Result<Globals, HostError> {
    let mut globals = Globals::default();
    for item in &module.items {
        let ItemKind::Variable(variable) = &item.kind else { continue };
        if matches!(variable.space, StateSpace::Global | StateSpace::Const) {
            let text = definition(module, variable, item.origin.line)?;
            globals.definitions.insert(variable.name.clone(), text);
        }
    }
    Ok(globals)
}

fn definition(module: &Module, variable: &Variable, line: u32) -> Result<String, HostError> {
    let unsupported = |what: String| HostError::Unsupported { kernel: variable.name.clone(), line, what };
    if variable.linkage == Linkage::Extern {
        return Err(unsupported("variables defined in another module".into()));
    }
    let mut value = Value::of(module, variable).map_err(unsupported)?;
    let declared =
        variable.bytes().filter(|b| *b <= MAX_BYTES).ok_or_else(|| unsupported(format!("module variables above {MAX_BYTES} bytes")))?;
    // An array without a size has that of its initialiser.
    let size = if declared == 0 { value.bytes.len() } else { declared as usize };
    if value.bytes.len() > size {
        return Err(unsupported("an initialiser larger than its variable".into()));
    }
    value.bytes.resize(size, 0);
    // What holds addresses is written when the object is loaded.
    let kind = if variable.space == StateSpace::Const && value.addresses.is_empty() { "constant" } else { "global" };
    Ok(format!("@{} = hidden {kind} {}, align {}\n", symbol(&variable.name), value.literal(), variable.alignment().max(16)))
}

/// The value of a variable.
struct Value {
    bytes: Vec<u8>,
    /// Addresses of other variables: where each of them lies in `bytes`, the variable, and an offset from it.
    addresses: Vec<(usize, Name, i64)>,
}

impl Value {
    /// Its initial value, with the addresses of functions filled in; the error says what is not supported.
    fn of(module: &Module, variable: &Variable) -> Result<Value, String> {
        let InitialValue { mut bytes, mut addresses } = variable.initial_value()?;
        addresses.retain(|(at, name, offset)| {
            let address = function_address(module, name);
            address.inspect(|address| bytes[*at..at + 8].copy_from_slice(&address.wrapping_add_signed(*offset).to_le_bytes())).is_none()
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

    /// As LLVM writes it, with its type.
    fn literal(&self) -> String {
        let plain = |bytes: &[u8]| match bytes.iter().all(|b| *b == 0) {
            true => format!("[{} x i8] zeroinitializer", bytes.len()),
            false => format!("[{} x i8] {}", bytes.len(), literal(bytes)),
        };
        if self.addresses.is_empty() {
            return plain(&self.bytes);
        }
        let (mut types, mut parts, mut from) = (Vec::new(), Vec::new(), 0);
        let mut bytes_until = |from: usize, to: usize, parts: &mut Vec<String>| {
            if from < to {
                types.push(format!("[{} x i8]", to - from));
                parts.push(plain(&self.bytes[from..to]));
            }
            types.push("ptr".into());
        };
        for (at, name, offset) in &self.addresses {
            bytes_until(from, *at, &mut parts);
            parts.push(format!("ptr getelementptr (i8, ptr @{}, i64 {offset})", symbol(name)));
            from = at + 8;
        }
        bytes_until(from, self.bytes.len(), &mut parts);
        types.pop();
        format!("<{{ {} }}> <{{ {} }}>", types.join(", "), parts.join(", "))
    }
}

/// Bytes as an LLVM string.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("c\"");
    for byte in bytes {
        let _ = write!(text, "\\{byte:02X}");
    }
    text + "\""
}
