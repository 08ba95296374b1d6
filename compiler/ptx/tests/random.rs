//! Property tests: no text makes the parser panic, an accepted text prints unchanged, and the graph
//! analyses match brute-force definitions.

use atoll_ptx::analysis::{BlockId, Cfg, Code, DominatorTree, Liveness, Loops, RegisterId};
use atoll_ptx::{parse, print, verify};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Fragments of PTX for random texts.
const PIECES: &[&str] = &[
    ".version 7.8\n",
    ".target sm_80\n",
    ".entry k",
    ".func",
    "f",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ":",
    "@",
    "!",
    "|",
    "+",
    "-",
    "-%r1",
    "=",
    "<",
    ">",
    ".reg",
    ".b32",
    ".f32",
    ".pred",
    ".param",
    ".shared",
    ".global",
    ".align",
    "16",
    "%r1",
    "%r",
    "%p1",
    "add.s32",
    "ld.global.v4.f32",
    "bra",
    "call",
    "brx.idx",
    "ret",
    "L1",
    "_",
    "0x1F",
    "0f3F800000",
    "1.5",
    ".5",
    "07",
    "99999999999999999999",
    "\"text\"",
    "\"",
    "// line\n",
    "/*",
    "*/",
    "\n",
    " ",
    ".branchtargets",
    ".callprototype",
    ".section .debug",
    ".loc 1 2 3\n",
    ".pragma",
    ".",
    "::",
    "ä",
    "\0",
    "WARP_SZ",
    "<<",
    "/",
    "%tid.x",
    ".visible",
    ".extern",
    ".attribute",
    ".ptr",
    ".v4",
    "generic",
];

/// Runs the parser, printer, verifier and analyses on a text.
fn exercise(text: &str) {
    let Ok(module) = parse(text) else { return };
    assert_eq!(print(&module), text);
    let _ = verify(&module);
    for function in module.functions() {
        let code = Code::of(function);
        if let Ok(cfg) = Cfg::of(&code) {
            let dominators = DominatorTree::dominators(&cfg);
            Loops::of(&cfg, &dominators);
            DominatorTree::postdominators(&cfg);
            Liveness::of(&code, &cfg).unwrap();
        }
    }
}

/// A kernel of several blocks; each ends in branches to the given blocks.
fn random_kernel(blocks: &[(usize, Option<usize>, u8)]) -> String {
    let mut text = String::from(".version 7.8\n.target sm_80\n.entry k()\n{\n.reg .pred %p<4>;\n.reg .b32 %r<4>;\n");
    for (index, &(target, second, work)) in blocks.iter().enumerate() {
        let (to, from) = (work & 3, work >> 2 & 3);
        text += &format!("B{index}:\nadd.s32 %r{to}, %r{from}, 1;\n");
        if work & 16 != 0 {
            text += &format!("@%p1 mov.b32 %r{from}, 0;\n");
        }
        let target = target % blocks.len();
        text += &match second {
            Some(second) if second % 5 == 0 => format!("@%p1 bra B{target};\nret;\n"),
            Some(second) => format!("@%p1 bra B{target};\nbra B{};\n", second % blocks.len()),
            None => format!("@!%p1 bra B{target};\n"),
        };
    }
    text + "ret;\n}\n"
}

fn kernels() -> impl Strategy<Value = String> {
    prop::collection::vec((0..12usize, prop::option::of(0..12usize), 0..32u8), 1..12)
        .prop_map(|blocks| random_kernel(&blocks))
}

/// Blocks that are reachable from a block along allowed edges.
fn reached(cfg: &Cfg, from: BlockId, allowed: impl Fn(BlockId, BlockId) -> bool) -> BTreeSet<BlockId> {
    let mut seen = BTreeSet::from([from]);
    let mut stack = vec![from];
    while let Some(block) = stack.pop() {
        for edge in cfg.block(block).successors.iter().filter(|e| allowed(block, e.to)) {
            if seen.insert(edge.to) {
                stack.push(edge.to);
            }
        }
    }
    seen
}

/// Whether some path from the start of a block reads a register before an unconditional write.
fn may_be_read(code: &Code<'_>, cfg: &Cfg, block: BlockId, register: RegisterId, seen: &mut BTreeSet<BlockId>) -> bool {
    if !seen.insert(block) {
        return false;
    }
    for id in cfg.block(block).statements() {
        let accesses = || code.accesses(id).iter().filter(|a| a.register == register);
        if accesses().any(|a| a.role.reads()) {
            return true;
        }
        if accesses().any(|a| a.role.writes()) && code.instruction(id).unwrap().guard.is_none() {
            return false;
        }
    }
    cfg.block(block).successors.iter().any(|edge| may_be_read(code, cfg, edge.to, register, seen))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_pieces_do_not_panic(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        exercise(&pieces.join(" "));
        exercise(&format!(".version 7.8\n.target sm_80\n.entry k()\n{{\n{}\n}}\n", pieces.concat()));
    }

    #[test]
    fn changed_files_do_not_panic(
        file in 0..3usize,
        cuts in prop::collection::vec((0..4000usize, 0..8usize, prop::sample::select(PIECES)), 1..6),
    ) {
        const FILES: [&str; 3] =
            [include_str!("corpus/forms.ptx"), include_str!("corpus/nested.ptx"), include_str!("corpus/debug.ptx")];
        let mut text = FILES[file].as_bytes().to_vec();
        for (at, length, piece) in cuts {
            let start = at % text.len();
            let end = (start + length).min(text.len());
            text.splice(start..end, piece.bytes());
        }
        exercise(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn graph_analyses_match_their_definitions(text in kernels()) {
        let module = parse(&text).unwrap();
        verify(&module).unwrap();
        let code = Code::of(module.function("k").unwrap());
        let cfg = Cfg::of(&code).unwrap();
        let (dominators, post) = (DominatorTree::dominators(&cfg), DominatorTree::postdominators(&cfg));
        let loops = Loops::of(&cfg, &dominators);
        let live = Liveness::of(&code, &cfg).unwrap();
        let all: Vec<BlockId> = cfg.blocks().map(|(id, _)| id).collect();
        let reachable = reached(&cfg, cfg.entry(), |_, _| true);

        for &above in &all {
            // `above` dominates the blocks that are unreachable without it.
            let without = reached(&cfg, cfg.entry(), |_, to| to != above);
            for &below in &all {
                let expected = reachable.contains(&below)
                    && reachable.contains(&above)
                    && (above == below || above == cfg.entry() || !without.contains(&below));
                prop_assert_eq!(dominators.dominates(above, below), expected);
                let leaves = reached(&cfg, below, |_, _| true).contains(&cfg.exit());
                let leaves_without = below != above && reached(&cfg, below, |_, to| to != above).contains(&cfg.exit());
                let above_leaves = reached(&cfg, above, |_, _| true).contains(&cfg.exit());
                prop_assert_eq!(post.dominates(above, below), leaves && above_leaves && !leaves_without);
            }
        }
        for (id, natural) in loops.iter() {
            // The blocks that reach a latch without passing the header.
            let body: BTreeSet<BlockId> = all.iter().copied().filter(|&block| {
                block == natural.header || reachable.contains(&block) && natural.latches.iter().any(|latch| {
                    reached(&cfg, block, |from, to| from != natural.header && to != natural.header).contains(latch)
                })
            }).collect();
            prop_assert_eq!(loops.blocks(id).iter().copied().collect::<BTreeSet<_>>(), body.clone());
            for &block in &all {
                prop_assert_eq!(loops.contains(id, block), body.contains(&block));
            }
            prop_assert!(natural.parent.is_none_or(|outer| loops.contains(outer, natural.header) && outer < id));
        }
        // A graph is reducible if it is acyclic without its back edges.
        let forward = |from: BlockId, to: BlockId| !dominators.dominates(to, from);
        let cyclic = reachable.iter().any(|&block| {
            cfg.block(block)
                .successors
                .iter()
                .any(|e| forward(block, e.to) && reached(&cfg, e.to, forward).contains(&block))
        });
        prop_assert_eq!(loops.is_reducible(), !cyclic);
        for &block in &all {
            let expected: BTreeSet<RegisterId> = (0..code.registers().len()).map(RegisterId::new)
                .filter(|&register| may_be_read(&code, &cfg, block, register, &mut BTreeSet::new())).collect();
            prop_assert_eq!(live.live_in(block).collect::<BTreeSet<_>>(), expected);
        }
    }
}
