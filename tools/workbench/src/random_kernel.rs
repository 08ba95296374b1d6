//! Random well-formed kernels. A seed always gives the same kernel, and any two devices must
//! compute the same bits.
//!
//! A kernel is a tree of statements over a few registers of each type. It contains constructs in
//! which devices differ: divergent branches and loops, barriers in uniform ones, warp instructions
//! under the mask of active lanes or the masks of tiles among them, early exits (also in divergent
//! code), loops with breaks, calls, branch tables, barriers of some warps, and atomics in any
//! order. Every statement can be removed
//! without making the kernel invalid, so a failing kernel can be shrunk (see
//! [`RandomKernel::shrink`]).

mod templates;
mod writer;

use crate::compare::Agreement;
use crate::launch::{Arg, Buffer, Inputs, Launch};
use crate::random::Random;
use atoll_kgraph::DType;
use std::fmt::Write as _;
use templates::{ALONE, BEGIN, BLOCK, CELL_WORDS, DYNAMIC_BYTES, END, MODULE, OUT_BYTES, TILES, TOGETHER, WHOLE};
use writer::Writer;

/// Maximum nesting of branches and loops; masks and counters are declared for this many levels.
const DEPTH_MAX: usize = 4;

/// The name of every random kernel.
pub const ENTRY: &str = "k";

/// Maximum number of statements of a new kernel.
const STATEMENTS_MAX: u64 = 40;

/// Number of iterations of a loop.
#[derive(Clone, Debug)]
enum Trips {
    /// The same in every thread.
    Same(u64),
    /// The low bits of a register.
    Register(u64),
}

#[derive(Clone, Debug)]
enum Statement {
    /// Instructions; `%m` is the mask of the active lanes.
    Row(String),
    If {
        predicate: u64,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    /// A branch that is uniform over the block.
    Choose {
        by: Choice,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    Loop {
        trips: Trips,
        body: Vec<Statement>,
    },
    /// Threads for which a predicate holds leave the enclosing loop, or skip the rest of its body.
    Jump {
        predicate: u64,
        breaks: bool,
    },
    Switch {
        register: u64,
        arms: Vec<Vec<Statement>>,
        /// Whether threads may exit inside; then the remaining lanes are counted after it.
        loses: bool,
    },
    /// Threads for which a predicate holds exit, in divergent code.
    Quit {
        predicate: u64,
        stores: bool,
    },
    /// Threads for which a predicate holds exit, with or without storing their registers.
    Leave {
        predicate: u64,
        stores: bool,
    },
}

/// A value that is uniform over the block.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// The index of the block.
    Block(u64),
    /// Whether a predicate holds in any thread.
    Any(u64),
    /// A number in shared memory; its uniformity cannot be proven statically.
    Shared,
}

/// What may be generated at a position.
#[derive(Clone, Copy)]
struct Place {
    threads: Threads,
    depth: usize,
    /// Whether single threads may leave an enclosing loop.
    breaks: bool,
    /// Whether single threads may exit.
    quits: bool,
}

impl Place {
    /// The position inside a branch, which fewer threads reach.
    fn parted(self) -> Place {
        Place { threads: if self.threads == Threads::Some { Threads::Some } else { Threads::Lanes }, ..self }
    }
}

/// The threads that run a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// All remaining threads of the block.
    Block,
    /// The lanes of a mask.
    Lanes,
    /// Any subset of threads.
    Some,
}

/// A kernel with its launch shape.
#[derive(Clone, Debug)]
pub struct RandomKernel {
    /// The seed of the generator.
    pub seed: u64,
    /// Number of blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    statements: Vec<Statement>,
}

impl RandomKernel {
    /// The kernel of a seed.
    pub fn new(seed: u64) -> RandomKernel {
        let mut maker = Maker { random: Random::new(seed), left: 0, all_stay: false, whole: false };
        maker.left = 8 + maker.random.below(STATEMENTS_MAX - 8);
        let blocks = [
            [1, 1, 1],
            [7, 1, 1],
            [32, 1, 1],
            [33, 1, 1],
            [64, 1, 1],
            [16, 4, 1],
            [5, 3, 2],
            [96, 1, 1],
            [100, 1, 1],
            [8, 4, 4],
        ];
        let (grid, block) =
            ([1 + maker.random.below(3) as u32, 1 + maker.random.below(2) as u32, 1], maker.random.one_of(&blocks));
        maker.all_stay = maker.random.below(3) == 0;
        maker.whole = maker.all_stay && block.iter().product::<u32>().is_multiple_of(32);
        let mut statements = Vec::new();
        while maker.left > 0 {
            statements.push(maker.statement(Place { threads: Threads::Block, depth: 0, breaks: false, quits: false }));
        }
        RandomKernel { seed, grid, block, statements }
    }

    /// The inputs of its launch: data to read, cells for atomics, and the output.
    pub fn inputs(&self) -> Inputs {
        let threads: usize = self.grid.iter().chain(&self.block).map(|n| *n as usize).product();
        let buffer = |name: &str, bytes, writable| Buffer { name: name.into(), bytes, writable };
        Inputs {
            launch: Launch { grid: self.grid, shared_bytes: DYNAMIC_BYTES, args: (0..3).map(Arg::buffer).collect() },
            block: self.block,
            buffers: vec![
                buffer("input", self.input(), false),
                buffer("cells", self.cells(), true),
                buffer("output", vec![0; threads * OUT_BYTES], true),
            ],
            elements: vec![DType::U32; 3],
            agreement: Agreement::Exact,
        }
    }

    /// 1040 bytes: integers of all magnitudes, and floats of moderate magnitude.
    fn input(&self) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ 0xDA7A);
        let word = |at: usize, random: &mut Random| -> u32 {
            let any = random.next_u64();
            match (at / 4 % 16, any % 5) {
                // The words from which floats are read.
                (8.., 0..3) => ((any >> 40) as f32 / 65536.0 - 128.0).to_bits(),
                (_, 0) => any as u32 >> 28,
                (_, 1) => (any as i32 >> 24) as u32,
                _ => (any >> 32) as u32,
            }
        };
        (0..1040).step_by(4).flat_map(|at| word(at, &mut random).to_le_bytes()).collect()
    }

    /// Initial values of the cells for atomics. The last two accumulate floats.
    fn cells(&self) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ 0xCE11);
        let mut word = |at: usize| if at < CELL_WORDS - 2 { random.next_u64() } else { 0 };
        (0..CELL_WORDS).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    /// The kernel as PTX. The entry is [`ENTRY`]; its parameters are the input, the cells and the
    /// output.
    pub fn ptx(&self) -> String {
        let mut writer = Writer { text: format!("// seed {}\n{MODULE}{BEGIN}", self.seed), labels: 0, loops: vec![] };
        writer.list(&self.statements, 0);
        writer.text.push_str(END);
        writer.stores();
        writer.text
    }

    /// The part of the text that is specific to this kernel.
    pub fn body(&self) -> String {
        let mut writer = Writer { text: String::new(), labels: 0, loops: vec![] };
        writer.list(&self.statements, 0);
        writer.text
    }

    /// Number of statements.
    pub fn len(&self) -> usize {
        count(&self.statements)
    }

    /// Whether it has no statements.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// Removes statements as long as the kernel still fails.
    pub fn shrink(&self, fails: &mut dyn FnMut(&RandomKernel) -> bool) -> RandomKernel {
        let mut smallest = self.clone();
        let mut at = 0;
        while at < smallest.len() {
            let mut candidate = smallest.clone();
            let mut index = at;
            remove(&mut candidate.statements, &mut index);
            if fails(&candidate) {
                smallest = candidate;
            } else {
                at += 1;
            }
        }
        smallest
    }
}

fn children(statement: &mut Statement) -> Vec<&mut Vec<Statement>> {
    match statement {
        Statement::If { then, otherwise, .. } | Statement::Choose { then, otherwise, .. } => vec![then, otherwise],
        Statement::Loop { body, .. } => vec![body],
        Statement::Switch { arms, .. } => arms.iter_mut().collect(),
        Statement::Row(_) | Statement::Leave { .. } | Statement::Quit { .. } | Statement::Jump { .. } => vec![],
    }
}

fn count(list: &[Statement]) -> usize {
    let of = |statement: &Statement| match statement {
        Statement::If { then, otherwise, .. } | Statement::Choose { then, otherwise, .. } => {
            count(then) + count(otherwise)
        }
        Statement::Loop { body, .. } => count(body),
        Statement::Switch { arms, .. } => arms.iter().map(|arm| count(arm)).sum(),
        Statement::Row(_) | Statement::Leave { .. } | Statement::Quit { .. } | Statement::Jump { .. } => 0,
    };
    list.iter().map(|statement| 1 + of(statement)).sum()
}

/// Removes the statement at a position (counting nested ones). Returns whether it was in this list.
fn remove(list: &mut Vec<Statement>, index: &mut usize) -> bool {
    for at in 0..list.len() {
        if *index == 0 {
            list.remove(at);
            return true;
        }
        *index -= 1;
        if children(&mut list[at]).into_iter().any(|inner| remove(inner, index)) {
            return true;
        }
    }
    false
}

/// Generates statements until the budget is used up.
struct Maker {
    random: Random,
    left: u64,
    /// No thread exits before the end.
    all_stay: bool,
    /// Additionally, every warp is full.
    whole: bool,
}

impl Maker {
    fn statement(&mut self, at: Place) -> Statement {
        self.left = self.left.saturating_sub(1);
        if at.depth < DEPTH_MAX
            && self.left > 0
            && let Some(nest) = self.nest(at)
        {
            return nest;
        }
        let predicate = self.random.below(4);
        match self.random.below(15) {
            0 if at.threads == Threads::Block && !self.all_stay && self.random.below(3) == 0 => {
                Statement::Leave { predicate, stores: self.random.below(2) == 0 }
            }
            0 if at.quits && self.random.below(2) == 0 => {
                Statement::Quit { predicate, stores: self.random.below(2) == 0 }
            }
            // Skipping the rest of an iteration would require counting the lanes of the next one,
            // so only threads without a mask do that.
            1 if at.breaks => {
                Statement::Jump { predicate, breaks: at.threads != Threads::Some || self.random.below(2) == 0 }
            }
            2..4 if at.threads == Threads::Block && self.whole => self.row(WHOLE),
            4..6 if at.threads == Threads::Block => self.row(BLOCK),
            6..8 if at.threads != Threads::Some => self.row(TOGETHER),
            _ => self.row(ALONE),
        }
    }

    /// A statement with nested ones, if there is budget for it.
    fn nest(&mut self, at: Place) -> Option<Statement> {
        let predicate = self.random.below(4);
        // Lanes under a mask can leave a loop only at its top level.
        let parted = Place { breaks: at.breaks && at.threads == Threads::Some, ..at.parted() };
        Some(match self.random.below(20) {
            0..2 => Statement::If { predicate, then: self.body(parted), otherwise: self.body(parted) },
            2 => Statement::Loop {
                trips: Trips::Register(self.random.below(8)),
                body: self.body(Place { breaks: true, ..at.parted() }),
            },
            3 => {
                let breaks = at.threads == Threads::Some;
                Statement::Loop {
                    trips: Trips::Same(1 + self.random.below(4)),
                    body: self.body(Place { breaks, ..at }),
                }
            }
            4 => {
                let loses = at.threads == Threads::Block && !self.all_stay && self.random.below(3) == 0;
                let alone = Place { threads: Threads::Some, breaks: false, quits: loses || at.quits, ..at };
                Statement::Switch {
                    register: self.random.below(8),
                    arms: (0..4).map(|_| self.body(alone)).collect(),
                    loses,
                }
            }
            5 if at.threads == Threads::Block => {
                let by = match self.random.below(3) {
                    0 => Choice::Block(self.random.below(3)),
                    1 => Choice::Any(predicate),
                    _ => Choice::Shared,
                };
                Statement::Choose { by, then: self.body(at), otherwise: self.body(at) }
            }
            _ => return None,
        })
    }

    fn body(&mut self, around: Place) -> Vec<Statement> {
        let wanted = self.random.below(5).min(self.left);
        (0..wanted).map(|_| self.statement(Place { depth: around.depth + 1, ..around })).collect()
    }

    /// A template with its tokens filled in; single instructions are sometimes predicated.
    fn row(&mut self, rows: &[&str]) -> Statement {
        let row = self.random.one_of(rows);
        let is_single = std::ptr::eq(rows, ALONE) && row.matches(';').count() == 1;
        let row = if std::ptr::eq(rows, TOGETHER) { self.in_tiles(row) } else { row.to_owned() };
        let mut text = String::new();
        if is_single && self.random.below(6) == 0 {
            let negated = if self.random.below(2) == 0 { "!" } else { "" };
            let _ = write!(text, "@{negated}%p{} ", self.random.below(4));
        }
        let mut parts = row.split('$');
        text.push_str(parts.next().unwrap_or(""));
        for part in parts {
            let (token, rest) = part.split_at(1);
            text.push_str(&self.token(token));
            text.push_str(rest);
        }
        Statement::Row(text)
    }

    /// Half of the warp instructions, with a different member mask in each tile of the warp.
    fn in_tiles(&mut self, row: &str) -> String {
        if self.random.below(2) == 0 {
            return row.to_owned();
        }
        format!("{} {}", self.random.one_of(TILES), row.replace("%m", "%tile"))
    }

    fn token(&mut self, token: &str) -> String {
        let mut of = |class: &str, count: u64| format!("%{class}{}", self.random.below(count));
        match token {
            "r" => of("r", 8),
            "d" => of("d", 4),
            "h" => of("h", 4),
            "f" => of("f", 6),
            "g" => of("g", 4),
            "k" => of("k", 4),
            "z" => of("z", 3),
            "x" => of("x", 3),
            "y" => of("y", 3),
            "p" => of("p", 4),
            "i" if self.random.below(2) == 0 => format!("%r{}", self.random.below(8)),
            "i" => self.literal().to_string(),
            "s" => self.random.below(71).to_string(),
            "b" => self.random.below(256).to_string(),
            "o" => self.random.one_of(&[".rn", ".rn", ".rz", ".rm", ".rp"]).to_owned(),
            "q" | "v" => {
                let first = self.random.below(8);
                let count = if token == "q" { 2 } else { 4 };
                let names: Vec<String> = (0..count).map(|n| format!("%r{}", (first + 3 * n) % 8)).collect();
                names.join(", ")
            }
            other => panic!("no token ${other}"),
        }
    }

    fn literal(&mut self) -> i32 {
        let any = self.random.next_u64() as i32;
        match self.random.below(4) {
            0 => any & 31,
            1 => self.random.one_of(&[0, 1, -1, i32::MAX, i32::MIN, 0xffff, 0x10000]),
            2 => any >> 20,
            _ => any,
        }
    }
}
