//! Constructors, accessors and conversions of the tree.

use super::*;

impl Statement {
    /// A statement that was built, not parsed.
    pub fn built(kind: StatementKind) -> Statement {
        Statement { origin: Origin::default(), kind }
    }

    /// Returns the kind for modification. The printer then writes the statement in canonical form,
    /// after its original white space and comments.
    pub fn edit(&mut self) -> &mut StatementKind {
        self.origin.text = None;
        &mut self.kind
    }

    /// The variable, if the statement declares one.
    pub fn variable(&self) -> Option<&Variable> {
        match &self.kind {
            StatementKind::Variable(variable) => Some(variable),
            _ => None,
        }
    }

    /// The instruction, if the statement is one.
    pub fn instruction(&self) -> Option<&Instruction> {
        match &self.kind {
            StatementKind::Instruction(i) => Some(i),
            _ => None,
        }
    }
}

impl Item {
    /// An item that was built, not parsed.
    pub fn built(kind: ItemKind) -> Item {
        Item { origin: Origin::default(), kind }
    }

    /// The variable, if the item declares one.
    pub fn variable(&self) -> Option<&Variable> {
        match &self.kind {
            ItemKind::Variable(variable) => Some(variable),
            _ => None,
        }
    }

    /// Returns the kind for modification. The printer then writes the item in canonical form; for a
    /// function, this means the header.
    pub fn edit(&mut self) -> &mut ItemKind {
        self.origin.text = None;
        &mut self.kind
    }
}

impl Module {
    /// The functions in order.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Function(f) => Some(f),
            _ => None,
        })
    }

    /// The kernels with a body, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.functions().filter(|f| f.kind == FunctionKind::Entry && f.body.is_some())
    }

    /// The function with this name; a definition is preferred to a declaration.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions()
            .find(|f| f.name == name && f.body.is_some())
            .or_else(|| self.functions().find(|f| f.name == name))
    }
}

impl Instruction {
    /// An unguarded instruction from its dotted name, such as `add.s32`.
    pub fn new(dotted: &str, operands: Vec<Operand>) -> Instruction {
        let mut words = dotted.split('.').map(Name::new);
        let opcode = words.next().unwrap_or_default();
        Instruction { guard: None, opcode, modifiers: words.collect(), operands }
    }

    /// Opcode and modifiers joined by dots.
    pub fn dotted(&self) -> String {
        let mut text = self.opcode.to_string();
        for modifier in &self.modifiers {
            text.push('.');
            text.push_str(modifier);
        }
        text
    }

    /// Whether the instruction has a modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    /// The last modifier that is a type. In most instructions this is the type of the operation.
    pub fn ty(&self) -> Option<ScalarType> {
        self.modifiers.iter().rev().find_map(|m| ScalarType::from_name(m))
    }

    /// The state space of a memory instruction, `None` for generic. `shared::cta` is `Shared`.
    pub fn space(&self) -> Option<StateSpace> {
        self.modifiers.iter().find_map(|m| StateSpace::from_name(m.split("::").next().unwrap_or(m)))
    }
}

impl Variable {
    /// A scalar variable without attributes.
    pub fn new(space: StateSpace, ty: ScalarType, name: &str) -> Variable {
        Variable {
            linkage: Linkage::Internal,
            space,
            align: None,
            vector: None,
            ty,
            opaque: None,
            pointer: None,
            attributes: Vec::new(),
            name: Name::new(name),
            count: None,
            dimensions: Vec::new(),
            initializer: None,
        }
    }

    /// Size in bytes; 0 for an unsized array (`tile[]`). `None` if the product overflows.
    pub fn bytes(&self) -> Option<u64> {
        let element = u64::from(self.ty.bytes()) * u64::from(self.vector.unwrap_or(1));
        self.dimensions.iter().try_fold(element, |total, d| total.checked_mul(d.unwrap_or(0)))
    }

    /// Alignment in bytes: explicit, or natural.
    pub fn alignment(&self) -> u32 {
        self.align.unwrap_or(self.ty.bytes() * u32::from(self.vector.unwrap_or(1)))
    }
}

impl From<&str> for Operand {
    fn from(name: &str) -> Operand {
        Operand::Name(Name::new(name))
    }
}

impl From<Name> for Operand {
    fn from(name: Name) -> Operand {
        Operand::Name(name)
    }
}

impl From<&Name> for Operand {
    fn from(name: &Name) -> Operand {
        Operand::Name(name.clone())
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<u32> for Operand {
    fn from(value: u32) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<i64> for Operand {
    fn from(value: i64) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<f32> for Operand {
    fn from(value: f32) -> Operand {
        Operand::Immediate(Immediate::F32(value.to_bits()))
    }
}
