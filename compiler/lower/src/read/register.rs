//! Registers by name: single registers, ranges, vectors and their elements.

use super::*;
use atoll_ptx::RegisterDeclaration;

/// Vector elements by the letter after the dot, as coordinates or as colours.
const ELEMENTS: [[&str; 2]; 4] = [["x", "r"], ["y", "g"], ["z", "b"], ["w", "a"]];

/// The declaration behind a name.
#[derive(Clone, Debug)]
pub(super) enum Declared {
    /// `.reg .b32 %r;`
    One(Reg),
    /// `.reg .v4 .b32 %v;`
    Elements(Vec<Reg>),
}

/// `%r<100>`
#[derive(Clone, Debug)]
pub(super) struct Range {
    prefix: Name,
    count: u32,
    elem: Elem,
    vector: Option<u8>,
}

impl Range {
    fn has(&self, name: &str) -> bool {
        let digits = name.strip_prefix(self.prefix.as_str()).unwrap_or("");
        let is_canonical = digits == "0" || !digits.starts_with('0');
        is_canonical && digits.parse::<u32>().is_ok_and(|n| n < self.count)
    }
}

impl Reader<'_> {
    /// `.reg .v2 .b32 %v<8>, %w;`
    pub(super) fn declare_registers(&mut self, declaration: &RegisterDeclaration, line: u32) -> Result<(), LowerError> {
        let (elem, vector) = (storage(declaration.ty), declaration.vector);
        if vector.is_some_and(|width| usize::from(width) > ELEMENTS.len()) {
            return Err(self.malformed(line, "a vector of registers has two or four elements"));
        }
        for (name, count) in &declaration.names {
            match count {
                Some(count) => {
                    self.innermost().ranges.push(Range { prefix: name.clone(), count: *count, elem, vector })
                }
                None => {
                    let declared = self.new_declared(name, elem, vector);
                    self.innermost().regs.insert(name.clone(), declared);
                }
            }
        }
        Ok(())
    }

    fn new_declared(&mut self, name: &Name, elem: Elem, vector: Option<u8>) -> Declared {
        let Some(width) = vector else { return Declared::One(self.new_register(name, elem)) };
        let element = |[letter, _]: &[&str; 2]| self.new_register(&format!("{name}.{letter}"), elem);
        Declared::Elements(ELEMENTS[..width.into()].iter().map(element).collect())
    }

    /// The register with a name: a single one, or one element of a vector.
    pub(super) fn register(&mut self, name: &Name) -> Option<Reg> {
        match self.register_operand(name)? {
            Opnd::Reg(reg) => Some(reg),
            _ => None,
        }
    }

    /// The register operand with a name: a register, a whole vector, an element of one, or a part
    /// that a video instruction selects.
    pub(super) fn register_operand(&mut self, name: &Name) -> Option<Opnd> {
        let Some((whole, letters)) = name.split_once('.') else {
            return Some(match self.declared(name)? {
                Declared::One(reg) => Opnd::Reg(reg),
                Declared::Elements(regs) => Opnd::Vec(regs.into_iter().map(Opnd::Reg).collect()),
            });
        };
        match self.declared(whole)? {
            Declared::One(reg) => Some(Opnd::Part(Box::new(Opnd::Reg(reg)), Name::new(letters))),
            Declared::Elements(regs) => {
                let at = ELEMENTS.iter().position(|spellings| spellings.contains(&letters))?;
                regs.get(at).map(|reg| Opnd::Reg(*reg))
            }
        }
    }

    /// The declaration of a name. A register of a range is created on its first use.
    fn declared(&mut self, name: &str) -> Option<Declared> {
        for at in (0..self.scopes.len()).rev() {
            if let Some(declared) = self.scopes[at].regs.get(name) {
                return Some(declared.clone());
            }
            if let Some(Range { elem, vector, .. }) =
                self.scopes[at].ranges.iter().find(|range| range.has(name)).cloned()
            {
                let declared = self.new_declared(&Name::new(name), elem, vector);
                self.scopes[at].regs.insert(Name::new(name), declared.clone());
                return Some(declared);
            }
        }
        None
    }
}
