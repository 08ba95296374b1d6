//! Random well-formed kernels: the same seed is the same kernel, and any two devices must run it to
//! the same bits.
//!
//! A kernel is a tree of statements over a few registers of each type. It holds what makes devices
//! differ: divergent branches and loops, barriers in uniform ones, warp instructions under the mask
//! of those that are there, early exits (out of divergent code too), broken loops, calls, branch
//! tables, barriers of some warps, atomics in any order. Every statement can be left out and
//! the rest still makes sense, which is how a failure is made small, see [`RandomKernel::shrink`].

mod templates;

use crate::compare::Agreement;
use crate::launch::{Arg, Buffer, Inputs, Launch};
use crate::random::Random;
use atoll_kgraph::DType;
use std::fmt::Write as _;
use templates::{ALONE, BEGIN, BLOCK, CELL_WORDS, DYNAMIC_BYTES, END, MODULE, OUT_BYTES, TOGETHER, WHOLE};

/// Deepest nesting of branches and loops: masks and counters are declared for so many.
const DEPTH_MAX: usize = 4;

/// The name of every random kernel.
pub const ENTRY: &str = "k";

/// Most statements of a kernel, before it is shrunk.
const STATEMENTS_MAX: u64 = 40;

/// How often a loop runs.
#[derive(Clone, Debug)]
enum Trips {
    /// As often in every thread.
    Same(u64),
    /// By the low bits of a register.
    Register(u64),
}

#[derive(Clone, Debug)]
enum Statement {
    /// Instructions, where `%m` is the mask of the lanes that are there.
    Row(String),
    If {
        predicate: u64,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    /// A branch that all threads of the block take together.
    Choose {
        by: Choice,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    Loop {
        trips: Trips,
        body: Vec<Statement>,
    },
    /// Threads for which a predicate holds leave the loop around them, or skip the rest of its
    /// body.
    Jump {
        predicate: u64,
        breaks: bool,
    },
    Switch {
        register: u64,
        arms: Vec<Vec<Statement>>,
        /// Whether threads may leave the kernel inside; then who is left finds out behind it.
        loses: bool,
    },
    /// Threads for which a predicate holds leave, while others are elsewhere.
    Quit {
        predicate: u64,
        stores: bool,
    },
    /// Threads for which a predicate holds leave, with or without storing their registers.
    Leave {
        predicate: u64,
        stores: bool,
    },
}

/// What all threads of a block agree on.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// The block's number.
    Block(u64),
    /// Whether a predicate holds in any thread.
    Any(u64),
    /// A number in shared memory, of which nobody can see beforehand that it is the same for all.
    Shared,
}

/// What may be made at a place.
#[derive(Clone, Copy)]
struct Place {
    who: Who,
    depth: usize,
    /// Whether there is a loop around that threads may leave one by one.
    breaks: bool,
    /// Whether threads may leave the kernel one by one.
    quits: bool,
}

impl Place {
    /// Inside a branch: fewer threads, unless they were few before.
    fn parted(self) -> Place {
        Place { who: if self.who == Who::Some { Who::Some } else { Who::Lanes }, ..self }
    }
}

/// Who runs a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// All threads that are left.
    Block,
    /// The lanes of a mask.
    Lanes,
    /// Some threads.
    Some,
}

/// A kernel with the shape of its launch.
#[derive(Clone, Debug)]
pub struct RandomKernel {
    /// What made it.
    pub seed: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
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
            statements.push(maker.statement(Place { who: Who::Block, depth: 0, breaks: false, quits: false }));
        }
        RandomKernel { seed, grid, block, statements }
    }

    /// What it is launched with: what it reads, the cells of the atomics, and what it writes.
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

    /// 1040 bytes, integers of all sizes and likely floats.
    fn input(&self) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ 0xDA7A);
        let word = |at: usize, random: &mut Random| -> u32 {
            let any = random.next_u64();
            match (at / 4 % 16, any % 5) {
                // Where floats are read from first.
                (8.., 0..3) => ((any >> 40) as f32 / 65536.0 - 128.0).to_bits(),
                (_, 0) => any as u32 >> 28,
                (_, 1) => (any as i32 >> 24) as u32,
                _ => (any >> 32) as u32,
            }
        };
        (0..1040).step_by(4).flat_map(|at| word(at, &mut random).to_le_bytes()).collect()
    }

    /// What the cells of the atomics hold at first. The last two are sums of floats.
    fn cells(&self) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ 0xCE11);
        let mut word = |at: usize| if at < CELL_WORDS - 2 { random.next_u64() } else { 0 };
        (0..CELL_WORDS).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    /// Its text; the entry is [`ENTRY`], with the input, the cells and the output as parameters.
    pub fn ptx(&self) -> String {
        let mut writer = Writer { text: format!("// seed {}\n{MODULE}{BEGIN}", self.seed), labels: 0, loops: vec![] };
        writer.list(&self.statements, 0);
        writer.text.push_str(END);
        writer.stores();
        writer.text
    }

    /// The part of its text that no other has.
    pub fn body(&self) -> String {
        let mut writer = Writer { text: String::new(), labels: 0, loops: vec![] };
        writer.list(&self.statements, 0);
        writer.text
    }

    /// How many statements it has.
    pub fn len(&self) -> usize {
        count(&self.statements)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// Leaves out statements as long as the kernel still fails.
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

/// Removes the statement at a position, counted with those inside others; whether it was here.
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

/// Makes statements until there are enough.
struct Maker {
    random: Random,
    left: u64,
    /// No thread leaves before the end.
    all_stay: bool,
    /// … and every warp is full.
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
            0 if at.who == Who::Block && !self.all_stay && self.random.below(3) == 0 => {
                Statement::Leave { predicate, stores: self.random.below(2) == 0 }
            }
            0 if at.quits && self.random.below(2) == 0 => {
                Statement::Quit { predicate, stores: self.random.below(2) == 0 }
            }
            // The lanes that go on with the next round would have to be counted, so only threads that nobody counts
            // skip the rest of one.
            1 if at.breaks => Statement::Jump { predicate, breaks: at.who != Who::Some || self.random.below(2) == 0 },
            2..4 if at.who == Who::Block && self.whole => self.row(WHOLE),
            4..6 if at.who == Who::Block => self.row(BLOCK),
            6..8 if at.who != Who::Some => self.row(TOGETHER),
            _ => self.row(ALONE),
        }
    }

    /// A statement with others inside, or none.
    fn nest(&mut self, at: Place) -> Option<Statement> {
        let predicate = self.random.below(4);
        // Lanes under a mask can leave a loop only where all that are in it stand.
        let parted = Place { breaks: at.breaks && at.who == Who::Some, ..at.parted() };
        Some(match self.random.below(20) {
            0..2 => Statement::If { predicate, then: self.body(parted), otherwise: self.body(parted) },
            2 => Statement::Loop {
                trips: Trips::Register(self.random.below(8)),
                body: self.body(Place { breaks: true, ..at.parted() }),
            },
            3 => {
                let breaks = at.who == Who::Some;
                Statement::Loop {
                    trips: Trips::Same(1 + self.random.below(4)),
                    body: self.body(Place { breaks, ..at }),
                }
            }
            4 => {
                let loses = at.who == Who::Block && !self.all_stay && self.random.below(3) == 0;
                let alone = Place { who: Who::Some, breaks: false, quits: loses || at.quits, ..at };
                Statement::Switch {
                    register: self.random.below(8),
                    arms: (0..4).map(|_| self.body(alone)).collect(),
                    loses,
                }
            }
            5 if at.who == Who::Block => {
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

    /// A row with its tokens filled in; a single instruction is sometimes guarded.
    fn row(&mut self, rows: &[&str]) -> Statement {
        let row = self.random.one_of(rows);
        let is_single = std::ptr::eq(rows, ALONE) && row.matches(';').count() == 1;
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

/// Writes statements as PTX. `%m<depth>` holds the lanes that run at a depth.
struct Writer {
    text: String,
    labels: u32,
    /// Labels of the loops around, with their depths.
    loops: Vec<(u32, usize)>,
}

impl Writer {
    fn line(&mut self, text: &str) {
        self.text.push_str("    ");
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn list(&mut self, statements: &[Statement], depth: usize) {
        statements.iter().for_each(|statement| self.statement(statement, depth));
    }

    fn statement(&mut self, statement: &Statement, depth: usize) {
        self.labels += 1;
        let (label, inner) = (self.labels, depth + 1);
        match statement {
            Statement::Row(text) => {
                self.line(&text.replace("%m;", &format!("%m{depth};")).replace("%m,", &format!("%m{depth},")))
            }
            Statement::If { predicate, then, otherwise } => {
                self.line(&format!("vote.sync.ballot.b32 %m{inner}, %p{predicate}, %m{depth};"));
                self.line(&format!("@!%p{predicate} bra else{label};"));
                self.list(then, inner);
                self.line(&format!("bra end{label};"));
                self.line(&format!(
                    "else{label}: not.b32 %m{inner}, %m{inner}; and.b32 %m{inner}, %m{inner}, %m{depth};"
                ));
                self.list(otherwise, inner);
                self.line(&format!("end{label}:"));
            }
            Statement::Loop { trips, body } => {
                match trips {
                    Trips::Same(count) => self.line(&format!("mov.u32 %w{inner}, {count};")),
                    Trips::Register(register) => self.line(&format!("and.b32 %w{inner}, %r{register}, 5;")),
                }
                self.line(&format!("mov.u32 %c{inner}, 0; mov.b32 %m{inner}, %m{depth};"));
                self.line(&format!("loop{label}: setp.lt.u32 %l{inner}, %c{inner}, %w{inner};"));
                if let Trips::Register(_) = trips {
                    self.line(&format!("vote.sync.ballot.b32 %m{inner}, %l{inner}, %m{inner};"));
                }
                self.line(&format!("@!%l{inner} bra end{label};"));
                self.loops.push((label, inner));
                self.list(body, inner);
                self.loops.pop();
                self.line(&format!("next{label}: add.u32 %c{inner}, %c{inner}, 1; bra loop{label};"));
                self.line(&format!("end{label}:"));
            }
            Statement::Choose { by, then, otherwise } => {
                self.choice(*by, inner);
                self.line(&format!("mov.b32 %m{inner}, %m{depth};"));
                self.line(&format!("@!%l{inner} bra else{label};"));
                self.list(then, inner);
                self.line(&format!("bra.uni end{label};"));
                // Who is left may be fewer, but not by what the other branch did.
                self.line(&format!("else{label}:"));
                self.list(otherwise, inner);
                self.line(&format!("end{label}:"));
            }
            Statement::Jump { predicate, breaks } => {
                // A loop that was left out by shrinking has nothing to jump to.
                let Some((label, around)) = self.loops.last().copied() else { return };
                self.line(&format!("vote.sync.ballot.b32 %m{around}, !%p{predicate}, %m{around};"));
                self.line(&format!("@%p{predicate} bra {}{label};", if *breaks { "end" } else { "next" }));
            }
            Statement::Switch { register, arms, loses } => {
                self.switch(*register, arms, label, inner);
                if *loses {
                    self.count_those_left(depth);
                }
            }
            Statement::Quit { predicate, stores } => {
                self.line(&format!("@%p{predicate} {};", if *stores { "bra finish" } else { "exit" }));
            }
            Statement::Leave { predicate, stores } => {
                for outer in 0..=depth {
                    self.line(&format!("vote.sync.ballot.b32 %m{outer}, !%p{predicate}, %m{outer};"));
                }
                let leave = if *stores { "bra finish" } else { "exit" };
                self.line(&format!("@%p{predicate} {leave};"));
            }
        }
    }

    /// What a block agrees on, in `%l<inner>`.
    fn choice(&mut self, by: Choice, inner: usize) {
        match by {
            Choice::Block(number) => self.line(&format!("setp.gt.u32 %l{inner}, %block, {number};")),
            Choice::Any(predicate) => self.line(&format!("bar.red.or.pred %l{inner}, 0, %p{predicate};")),
            Choice::Shared => {
                self.line("bar.sync 0; ld.shared.u32 %a0, [cells+20]; bar.sync 0;");
                self.line(&format!("and.b32 %a0, %a0, 4; setp.ne.u32 %l{inner}, %a0, 0;"));
            }
        }
    }

    /// The lanes of each warp that have not left, into all masks up to a depth.
    fn count_those_left(&mut self, depth: usize) {
        self.line(
            "shr.u32 %a0, %t, 5; shl.b32 %a0, %a0, 2; mov.u32 %a1, alive; add.u32 %a0, %a0, %a1; mov.u32 %a1, 0;",
        );
        self.line("bar.sync 0; st.shared.u32 [%a0], %a1; bar.sync 0; mov.u32 %a1, %lanemask_eq; red.shared.or.b32 [%a0], %a1; bar.sync 0;");
        (0..=depth).for_each(|outer| self.line(&format!("ld.shared.u32 %m{outer}, [%a0];")));
    }

    fn switch(&mut self, register: u64, arms: &[Vec<Statement>], label: u32, inner: usize) {
        let targets: Vec<String> = (0..arms.len()).map(|arm| format!("arm{label}_{arm}")).collect();
        self.line(&format!("arms{label}: .branchtargets {};", targets.join(", ")));
        self.line(&format!("and.b32 %a0, %r{register}, 3; brx.idx %a0, arms{label};"));
        for (arm, target) in arms.iter().zip(&targets) {
            self.line(&format!("{target}:"));
            self.list_alone(arm, inner);
            self.line(&format!("bra end{label};"));
        }
        self.line(&format!("end{label}:"));
    }

    /// Statements of threads that nobody has counted: branches and loops without masks.
    fn list_alone(&mut self, statements: &[Statement], depth: usize) {
        let mut inside = Writer { text: String::new(), labels: self.labels, loops: self.loops.clone() };
        inside.list(statements, depth);
        self.labels = inside.labels;
        for line in inside.text.lines().filter(|line| !line.contains("vote.sync")) {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    /// Every register to the thread's place in the output, NaNs as one of them.
    fn stores(&mut self) {
        let mut at = 0;
        self.line("finish:");
        self.line(
            "mov.u32 %a0, %nctaid.x; mov.u32 %a1, %nctaid.y; mul.lo.u32 %a0, %a0, %a1; mul.lo.u32 %a2, %a0, %threads;",
        );
        self.line("mad.lo.u32 %a3, %block, %threads, %t;");
        // By register, then by thread, so that a warp stores vectors.
        let mut store = |writer: &mut Writer, before: String, ty: &str, bytes: usize, register: &str| {
            writer.line(&format!("mad.wide.u32 %e0, %a2, {at}, %out; mad.wide.u32 %e0, %a3, {bytes}, %e0;"));
            writer.line(&format!("{before}st.global.{ty} [%e0], {register};"));
            at += bytes;
        };
        for n in 0..8 {
            store(self, String::new(), "u32", 4, &format!("%r{n}"));
        }
        for n in 0..4 {
            store(self, String::new(), "u64", 8, &format!("%d{n}"));
        }
        for n in 0..4 {
            store(
                self,
                format!("setp.nan.f64 %u0, %g{n}, %g{n}; mov.b64 %e1, %g{n}; selp.b64 %e1, -1, %e1, %u0; "),
                "u64",
                8,
                "%e1",
            );
        }
        for n in 0..6 {
            store(
                self,
                format!("setp.nan.f32 %u0, %f{n}, %f{n}; mov.b32 %a1, %f{n}; selp.b32 %a1, -1, %a1, %u0; "),
                "u32",
                4,
                "%a1",
            );
        }
        for n in 0..4 {
            store(self, String::new(), "u16", 2, &format!("%h{n}"));
        }
        for (class, ty, count) in [("k", "f16", 4), ("z", "bf16", 3)] {
            for n in 0..count {
                let mut text = String::new();
                let _ = write!(
                    text,
                    "setp.nan.{ty} %u0, %{class}{n}, %{class}{n}; mov.b16 %n0, %{class}{n}; selp.b16 %n0, -1, %n0, %u0; "
                );
                store(self, text, "u16", 2, "%n0");
            }
        }
        for (class, ty) in [("x", "f16"), ("y", "bf16")] {
            for n in 0..3 {
                for register in ["%n0", "%n1"] {
                    let before = format!(
                        "mov.b32 {{%n0, %n1}}, %{class}{n}; setp.nan.{ty} %u0, {register}, {register}; selp.b16 {register}, -1, {register}, %u0; "
                    );
                    store(self, before, "u16", 2, register);
                }
            }
        }
        for n in 0..4 {
            store(self, format!("selp.b16 %n0, 1, 0, %p{n}; "), "u16", 2, "%n0");
        }
        assert!(at <= OUT_BYTES, "a thread stores {at} bytes");
        self.line("ret;");
        self.text.push_str("}\n");
    }
}
