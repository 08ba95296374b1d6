//! Writes random kernels as PTX.

use super::templates::OUT_BYTES;
use super::{Choice, Statement, Trips};
use std::fmt::Write as _;

/// Writes statements as PTX. `%m<depth>` is the mask of the active lanes at a depth.
pub(super) struct Writer {
    pub(super) text: String,
    pub(super) labels: u32,
    /// Labels and depths of the enclosing loops.
    pub(super) loops: Vec<(u32, usize)>,
}

impl Writer {
    fn line(&mut self, text: &str) {
        self.text.push_str("    ");
        self.text.push_str(text);
        self.text.push('\n');
    }

    pub(super) fn list(&mut self, statements: &[Statement], depth: usize) {
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
                // Threads may have exited since, but the other branch did not change the mask.
                self.line(&format!("else{label}:"));
                self.list(otherwise, inner);
                self.line(&format!("end{label}:"));
            }
            Statement::Jump { predicate, breaks } => {
                // Shrinking may have removed the loop around a jump.
                let Some((label, around)) = self.loops.last().copied() else { return };
                self.line(&format!("vote.sync.ballot.b32 %m{around}, !%p{predicate}, %m{around};"));
                self.line(&format!("@%p{predicate} bra {}{label};", if *breaks { "end" } else { "next" }));
            }
            Statement::Switch { register, arms, loses } => {
                self.switch(*register, arms, label, inner);
                if *loses {
                    self.count_remaining_lanes(depth);
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

    /// Computes a uniform value into `%l<inner>`.
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

    /// Counts the remaining lanes of each warp, and stores the result in all masks up to a depth.
    fn count_remaining_lanes(&mut self, depth: usize) {
        self.line(
            "shr.u32 %a0, %t, 5; shl.b32 %a0, %a0, 2; mov.u32 %a1, alive; add.u32 %a0, %a0, %a1; mov.u32 %a1, 0;",
        );
        self.line(
            "bar.sync 0; st.shared.u32 [%a0], %a1; bar.sync 0; mov.u32 %a1, %lanemask_eq; red.shared.or.b32 \
            [%a0], %a1; bar.sync 0;",
        );
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

    /// Statements of threads without a mask: branches and loops without masks.
    fn list_alone(&mut self, statements: &[Statement], depth: usize) {
        let mut inside = Writer { text: String::new(), labels: self.labels, loops: self.loops.clone() };
        inside.list(statements, depth);
        self.labels = inside.labels;
        for line in inside.text.lines().filter(|line| !line.contains("vote.sync")) {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    /// Stores every register to the thread's part of the output; all NaNs are stored as the same
    /// bits.
    pub(super) fn stores(&mut self) {
        let mut at = 0;
        self.line("finish:");
        self.line(
            "mov.u32 %a0, %nctaid.x; mov.u32 %a1, %nctaid.y; mul.lo.u32 %a0, %a0, %a1; mul.lo.u32 %a2, %a0, %threads;",
        );
        self.line("mad.lo.u32 %a3, %block, %threads, %t;");
        // Ordered by register, then by thread, so that a warp stores vectors.
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
                    "setp.nan.{ty} %u0, %{class}{n}, %{class}{n}; mov.b16 %n0, %{class}{n}; selp.b16 %n0, -1, %n0, \
                    %u0; "
                );
                store(self, text, "u16", 2, "%n0");
            }
        }
        for (class, ty) in [("x", "f16"), ("y", "bf16")] {
            for n in 0..3 {
                for register in ["%n0", "%n1"] {
                    let before = format!(
                        "mov.b32 {{%n0, %n1}}, %{class}{n}; setp.nan.{ty} %u0, {register}, {register}; selp.b16 \
                        {register}, -1, {register}, %u0; "
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
