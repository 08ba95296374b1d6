//! Threads that exit from loops and branches while other threads synchronise later. Every barrier
//! and warp-wide operation must wait for all threads that have not exited. Random kernels are
//! compared with the interpreter.

use crate::common::{Args, Launch, Random, levels, try_compile};
use atoll_interp::{Access, Memory, Options, Program};
use std::fmt::Write as _;

/// Kernels per run.
const KERNELS: u64 = 30;
const BLOCKS: u32 = 2;
/// Limit on the nesting of divergent branches and loops.
const DEPTH_MAX: u32 = 2;

/// Writes one kernel. `%v0` and `%v1` are the values of a thread.
struct Writer<'r> {
    random: &'r mut Random,
    text: String,
    labels: u32,
    /// End labels of the enclosing loops that lanes may leave individually.
    ends: Vec<u32>,
}

impl Writer<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        self.random.next_u32() % bound
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "  {line}");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    /// Code that is reached by all threads that have not exited. `within`: the code is inside a
    /// loop that they all iterate equally often.
    fn convergent(&mut self, within: bool) {
        for _ in 0..2 + self.below(3) {
            match self.below(7) {
                0 if !within => self.loop_of("mov.u32 %c9, 3;", 9, |w, _| w.convergent(true)),
                0..3 => self.synchronise(),
                _ => self.divergent(0),
            }
        }
        self.synchronise();
    }

    /// One statement that a thread executes or skips individually.
    fn divergent(&mut self, depth: u32) {
        let bit = 1 << self.below(4);
        match self.below(11) {
            0..2 => self.line("mad.lo.u32 %v0, %v0, 1664525, %v1; shf.l.wrap.b32 %v1, %v1, %v0, 7;"),
            2 => self.leave(),
            3..5 if depth < DEPTH_MAX => {
                let (other, end) = (self.label(), self.label());
                self.line(&format!("and.b32 %r6, %v0, {bit}; setp.eq.u32 %p1, %r6, 0; @%p1 bra L{other};"));
                self.divergent(depth + 1);
                self.line(&format!("bra L{end};\nL{other}:"));
                self.divergent(depth + 1);
                self.line(&format!("\nL{end}:"));
            }
            8 if !self.ends.is_empty() => {
                let end = self.ends[self.ends.len() - 1];
                self.line(&format!("and.b32 %r6, %v1, {bit}; setp.eq.u32 %p1, %r6, 0; @%p1 bra L{end};"));
            }
            5..9 if depth < DEPTH_MAX => {
                let counter = depth + 1;
                self.loop_of(&format!("and.b32 %c{counter}, %v1, 7;"), counter, |w, end| {
                    w.ends.push(end);
                    w.divergent(depth + 1);
                    w.line("add.u32 %v1, %v1, %v0;");
                    w.divergent(depth + 1);
                    w.ends.pop();
                });
            }
            9..11 if depth < DEPTH_MAX => {
                let (arms, end) = ([(); 3].map(|()| self.label()), self.label());
                self.line(&format!(
                    "T{end}: .branchtargets L{}, L{}, L{}; rem.u32 %r6, %v0, 3; brx.idx %r6, T{end};",
                    arms[0], arms[1], arms[2]
                ));
                for arm in arms {
                    self.line(&format!("\nL{arm}:"));
                    self.divergent(depth + 1);
                    self.line(&format!("bra L{end};"));
                }
                self.line(&format!("\nL{end}:"));
            }
            _ => self.line("xor.b32 %v0, %v0, %v1; add.u32 %v1, %v1, 0x9e3779b9;"),
        }
    }

    /// A loop that counts down, tested at its head or at its end; not entered at 0. `body` receives
    /// the label of the loop's end.
    fn loop_of(&mut self, start: &str, counter: u32, body: impl FnOnce(&mut Self, u32)) {
        let (head, end) = (self.label(), self.label());
        let test = format!("setp.eq.u32 %p2, %c{counter}, 0; @%p2 bra L{end}; sub.u32 %c{counter}, %c{counter}, 1;");
        let at_end = self.below(2) == 0;
        self.line(&if at_end { format!("{start} {test}\nL{head}:") } else { format!("{start}\nL{head}:\n  {test}") });
        body(self, end);
        if at_end {
            self.line(&format!(
                "setp.ne.u32 %p2, %c{counter}, 0; sub.u32 %c{counter}, %c{counter}, 1; @%p2 bra L{head};\nL{end}:"
            ));
        } else {
            self.line(&format!("bra L{head};\nL{end}:"));
        }
    }

    /// Some threads exit, at once or after some more code.
    fn leave(&mut self) {
        let which = self.below(32);
        self.line(&format!("and.b32 %r6, %v0, 31; setp.eq.u32 %p1, %r6, {which};"));
        match self.below(3) {
            0 => return self.line("@%p1 exit;"),
            // Jumps past the others to the code that these threads execute last.
            1 => return self.line("@%p1 bra LAST;"),
            _ => {}
        }
        let stay = self.label();
        self.line(&format!("@!%p1 bra L{stay}; st.global.u32 [%rd5+4], %v1; ret;\nL{stay}:"));
    }

    /// Records which lanes are active, and a value of the first one; or the number of active
    /// threads of the block.
    fn synchronise(&mut self) {
        self.line("and.b32 %r6, %v0, 1; setp.eq.u32 %p1, %r6, 0;");
        match self.below(3) {
            0 => self.line("bar.red.popc.u32 %r7, 0, %p1; mad.lo.u32 %v0, %v0, 31, %r7;"),
            1 => self.line("vote.sync.ballot.b32 %r7, %p1, -1; xor.b32 %v1, %v1, %r7;"),
            _ => self.line(
                "setp.eq.u32 %p3, %r6, %r6; vote.sync.ballot.b32 %r7, %p3, -1; brev.b32 %r7, %r7; \
                 bfind.shiftamt.u32 %r7, %r7;\n  \
                 shfl.sync.idx.b32 %r8, %v1, %r7, 31, -1; add.u32 %v0, %v0, %r8;",
            ),
        }
    }
}

fn random_kernel(random: &mut Random) -> String {
    let mut writer = Writer { random, text: String::new(), labels: 0, ends: Vec::new() };
    writer.convergent(false);
    format!(
        ".visible .entry k(.param .u64 out)
{{
  .reg .pred %p<4>; .reg .b32 %v<2>; .reg .b32 %c<10>; .reg .b32 %r<10>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd4, %r4, 8; add.u64 %rd5, %rd1, %rd4;
  mad.lo.u32 %v0, %r4, 2654435761, 12345; shr.u32 %r5, %v0, 15; xor.b32 %v0, %v0, %r5; \
  mul.lo.u32 %v1, %v0, 2246822519; shr.u32 %v1, %v1, 9;
{}LAST:
  xor.b32 %r9, %v0, %v1; st.global.u32 [%rd5], %r9;
  ret;
}}",
        writer.text
    )
}

fn interpreted(text: &str, threads: u32) -> Vec<u32> {
    let module = atoll_ptx::parse(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{text}"))
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = Program::new(&module, "k").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let out = memory.add("out", vec![0; (threads * BLOCKS * 8) as usize], Access::ReadWrite);
    let launch = atoll_interp::Launch {
        grid: [BLOCKS, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
        params: out.to_le_bytes().to_vec(),
    };
    atoll_interp::run(&program, &launch, &mut memory, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    memory.bytes(out).as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect()
}

#[test]
fn barriers_wait_for_all_threads_that_have_not_exited() {
    let level = *levels().last().expect("this machine runs no level");
    for seed in 0..KERNELS {
        let mut random = Random::new(seed);
        let text = random_kernel(&mut random);
        for threads in [32, 96, 40] {
            let kernel =
                try_compile(&text, "k", [threads, 1, 1], level).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let mut out = vec![0u32; (2 * threads * BLOCKS) as usize];
            assert_eq!(
                kernel.run(Launch::grid(BLOCKS, 1, 1), Args::new().slice(&mut out)),
                None,
                "seed {seed}, blocks of {threads}\n{text}"
            );
            let expected = interpreted(&text, threads);
            assert_eq!(out, expected, "seed {seed}, blocks of {threads}\n{text}");
        }
    }
}
