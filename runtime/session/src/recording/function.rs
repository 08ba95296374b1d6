//! The buffers and operations of a kernel graph.
//!
//! An allocation becomes a buffer of the invocation. Inputs, constants and outputs are buffers of
//! their own, between which and the allocations the function copies. A copy is left out if the
//! allocation itself can be the input, the constant or the output.

use crate::recording::pattern::Pattern;
use crate::recording::steps::{Action, Kernel, Param, Place};
use crate::recording::unstorable::Unstorable;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of rows of a fill that are not adjacent: each becomes an operation.
const ROWS_MAX: u64 = 1024;

/// Maximum size in bytes of all constants that fills with an element of several bytes become.
const ELEMENTS_BYTES_MAX: u64 = 64 << 20;

/// What a buffer of a function is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The caller gives its contents.
    Input,
    /// The caller gets its contents.
    Output,
    /// It has the same contents in every invocation.
    Constant,
    /// It exists during an invocation.
    Memory,
}

/// A buffer of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer<'s> {
    /// `in0`, `out0`, `const0` or `memory0`, counted for each role.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its size in bytes.
    pub bytes: u64,
    /// The contents of a constant.
    pub contents: Option<Cow<'s, [u8]>>,
}

/// An operation of a function. Places are in its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A copy.
    Copy {
        /// Where to.
        to: Place,
        /// Where from.
        from: Place,
        /// Number of bytes.
        bytes: u64,
    },
    /// A fill with one byte.
    Fill {
        /// The first byte.
        to: Place,
        /// Number of bytes.
        bytes: u64,
        /// The byte.
        value: u8,
    },
    /// A launch.
    Launch {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Blocks.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Dynamic shared memory of a block in bytes.
        shared_bytes: u32,
        /// The parameters.
        params: Vec<Param>,
    },
}

/// What runs have in common, as the contents of a kernel graph.
#[derive(Clone, Debug)]
pub struct Function<'s> {
    /// Its buffers; inputs and outputs in the order of the copies.
    pub buffers: Vec<Buffer<'s>>,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
}

/// The pointers through which a kernel writes: the index of the parameter, and the offset in it in
/// bytes. `None` if that is not known.
pub type Writes<'a> = dyn Fn(&Kernel) -> Option<Vec<(usize, usize)>> + 'a;

impl<'s> Function<'s> {
    /// The function of a pattern. A kernel whose writes are not known counts as writing
    /// through all pointers of its own, and through those of earlier launches, which may have stored
    /// them in memory.
    ///
    /// # Errors
    /// A fill that would be too many operations, or too large constants.
    pub fn of(pattern: &'s Pattern<'s, '_>, writes: &Writes<'_>) -> Result<Function<'s>, Unstorable> {
        let mut builder = Builder {
            uses: uses(pattern, writes),
            memory: HashMap::new(),
            counts: [0; 4],
            elements: HashMap::new(),
            elements_bytes: 0,
            sizes: pattern.run.buffers,
            function: Function { buffers: Vec::new(), operations: Vec::new() },
        };
        let placed: Vec<Option<usize>> = (0..pattern.varies.len()).map(|step| builder.host(pattern, step)).collect();
        for (step, host) in pattern.run.steps.iter().zip(placed) {
            let failed = |(call, why)| Unstorable::Call { number: step.call, call, why };
            builder.step(&step.action, host).map_err(failed)?;
        }
        Ok(builder.function)
    }
}

/// How the steps of a run use an allocation.
#[derive(Clone, Debug, Default)]
struct Uses {
    /// The first step.
    first: Option<usize>,
    /// The steps that write.
    writes: Vec<usize>,
    /// The copies to the host.
    downloads: Vec<usize>,
}

/// The uses of each allocation.
fn uses(pattern: &Pattern<'_, '_>, writes: &Writes<'_>) -> HashMap<usize, Uses> {
    let mut all: HashMap<usize, Uses> = HashMap::new();
    let mut passed = BTreeSet::new();
    for (index, step) in pattern.run.steps.iter().enumerate() {
        let mut add = |place: &Place, is_written: bool, is_downloaded: bool| {
            let uses = all.entry(place.buffer).or_default();
            uses.first.get_or_insert(index);
            uses.writes.extend(is_written.then_some(index));
            uses.downloads.extend(is_downloaded.then_some(index));
        };
        match &step.action {
            Action::Upload { to, .. } | Action::Fill { to, .. } => add(to, true, false),
            Action::Download { from, .. } => add(from, false, true),
            Action::Copy { to, from, .. } => {
                add(from, false, false);
                add(to, true, false);
            }
            Action::Launch { kernel, params, .. } => {
                let written = writes(kernel);
                for (param, value) in params.iter().enumerate() {
                    for (at, place) in &value.addresses {
                        let is_written = written.as_ref().is_some_and(|written| written.contains(&(param, *at)));
                        add(place, is_written, false);
                        passed.insert(place.buffer);
                    }
                }
                if written.is_none() {
                    passed.iter().for_each(|&buffer| add(&Place { buffer, offset: 0 }, true, false));
                }
            }
        }
    }
    all
}

struct Builder<'s> {
    uses: HashMap<usize, Uses>,
    /// The buffer of each allocation.
    memory: HashMap<usize, usize>,
    /// The number of buffers of each role.
    counts: [usize; 4],
    /// The constants of fills, by their element and size in bytes.
    elements: HashMap<(Vec<u8>, u64), usize>,
    elements_bytes: u64,
    /// The sizes of the allocations in bytes.
    sizes: &'s [u64],
    function: Function<'s>,
}

/// An entry point of the driver, and why its call cannot be part of a function.
type Failed = (&'static str, String);

impl<'s> Builder<'s> {
    fn add(&mut self, role: Role, bytes: u64, contents: Option<Cow<'s, [u8]>>) -> usize {
        let (slot, stem) = match role {
            Role::Input => (0, "in"),
            Role::Output => (1, "out"),
            Role::Constant => (2, "const"),
            Role::Memory => (3, "memory"),
        };
        let name = format!("{stem}{}", self.counts[slot]);
        self.counts[slot] += 1;
        self.function.buffers.push(Buffer { name, role, bytes, contents });
        self.function.buffers.len() - 1
    }

    /// Adds the buffer of data that a step copies between host and device. It is the buffer of the
    /// allocation, too, if possible.
    fn host(&mut self, pattern: &'s Pattern<'s, '_>, index: usize) -> Option<usize> {
        let (place, bytes, role, contents) = match &pattern.run.steps[index].action {
            Action::Upload { to, bytes } if pattern.varies[index] => (to, bytes.len() as u64, Role::Input, None),
            Action::Upload { to, bytes } => (to, bytes.len() as u64, Role::Constant, Some(Cow::Borrowed(&**bytes))),
            Action::Download { from, bytes } => (from, bytes.len() as u64, Role::Output, None),
            _ => return None,
        };
        let is_whole = place.offset == 0 && bytes == self.sizes[place.buffer];
        let buffer = self.add(role, bytes, contents);
        let is_one = self.uses.get(&place.buffer).is_some_and(|uses| match role {
            // The copy is the first use, and the only one that writes.
            Role::Input | Role::Constant => uses.first == Some(index) && uses.writes == [index],
            // It comes after the last write. The allocation is not another copy's buffer already.
            _ => {
                uses.downloads == [index]
                    && uses.writes.last().is_some_and(|last| *last < index)
                    && !self.memory.contains_key(&place.buffer)
            }
        });
        if is_whole && is_one {
            self.memory.insert(place.buffer, buffer);
        }
        Some(buffer)
    }

    /// The place in the buffer of an allocation.
    fn place(&mut self, place: Place) -> Place {
        let buffer = match self.memory.get(&place.buffer) {
            Some(buffer) => *buffer,
            None => {
                let buffer = self.add(Role::Memory, self.sizes[place.buffer], None);
                self.memory.insert(place.buffer, buffer);
                buffer
            }
        };
        Place { buffer, offset: place.offset }
    }

    /// Adds the operations of a step. `host` is the buffer of the data that it copies.
    fn step(&mut self, action: &Action<'_>, host: Option<usize>) -> Result<(), Failed> {
        match action {
            Action::Upload { to, bytes } => {
                let to = self.place(*to);
                self.between(to, host, bytes.len() as u64, |to, from| (to, from));
            }
            Action::Download { from, bytes } => {
                let from = self.place(*from);
                self.between(from, host, bytes.len() as u64, |from, to| (to, from));
            }
            Action::Copy { to, from, bytes } => {
                let (to, from) = (self.place(*to), self.place(*from));
                self.function.operations.push(Operation::Copy { to, from, bytes: *bytes });
            }
            Action::Fill { to, rows, element } => {
                let to = self.place(*to);
                self.fill(to, *rows, element).map_err(|why| ("cuMemset", why))?;
            }
            Action::Launch { kernel, grid, block, shared_bytes, params } => {
                let mut params = params.clone();
                for (_, place) in params.iter_mut().flat_map(|param| &mut param.addresses) {
                    *place = self.place(*place);
                }
                let (kernel, grid, block, shared_bytes) = (kernel.clone(), *grid, *block, *shared_bytes);
                self.function.operations.push(Operation::Launch { kernel, grid, block, shared_bytes, params });
            }
        }
        Ok(())
    }

    /// Copies between a place and the whole buffer of a copy's data, unless they are the same.
    fn between(
        &mut self,
        place: Place,
        host: Option<usize>,
        bytes: u64,
        direction: impl Fn(Place, Place) -> (Place, Place),
    ) {
        if let Some(buffer) = host.filter(|buffer| *buffer != place.buffer) {
            let (to, from) = direction(place, Place { buffer, offset: 0 });
            self.function.operations.push(Operation::Copy { to, from, bytes });
        }
    }

    fn fill(&mut self, to: Place, (pitch, width, height): (u64, u64, u64), element: &[u8]) -> Result<(), String> {
        let row = width * element.len() as u64;
        let is_one = height == 1 || pitch == row;
        let (count, bytes) = if is_one { (1, row * height) } else { (height, row) };
        if count > ROWS_MAX {
            return Err(format!("fills {count} separate rows; a function may have {ROWS_MAX}"));
        }
        let is_byte = element.iter().all(|byte| *byte == element[0]);
        let from = if is_byte { None } else { Some(self.elements(element, bytes)?) };
        for index in 0..count {
            let to = Place { offset: to.offset + index * pitch, ..to };
            self.function.operations.push(match from {
                Some(buffer) => Operation::Copy { to, from: Place { buffer, offset: 0 }, bytes },
                None => Operation::Fill { to, bytes, value: element[0] },
            });
        }
        Ok(())
    }

    /// The constant of this size that repeats an element.
    fn elements(&mut self, element: &[u8], bytes: u64) -> Result<usize, String> {
        let key = (element.to_vec(), bytes);
        if let Some(buffer) = self.elements.get(&key) {
            return Ok(*buffer);
        }
        self.elements_bytes = self.elements_bytes.saturating_add(bytes);
        if self.elements_bytes > ELEMENTS_BYTES_MAX {
            let all = self.elements_bytes;
            return Err(format!("fills {all} bytes with elements; a function may have {ELEMENTS_BYTES_MAX}"));
        }
        let contents = element.repeat((bytes / element.len() as u64) as usize);
        let buffer = self.add(Role::Constant, bytes, Some(Cow::Owned(contents)));
        self.elements.insert(key, buffer);
        Ok(buffer)
    }
}
