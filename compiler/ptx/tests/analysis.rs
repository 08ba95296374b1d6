//! Control flow, dominators, loops, liveness and operand roles of small functions, checked by hand.

use atoll_ptx::analysis::{BlockId, Cfg, CfgError, Code, DefUse, DominatorTree, Liveness, Loops, StatementId, When};
use atoll_ptx::{Instruction, Module, Operand, Role, parse};

/// A module with one kernel `k`.
fn kernel(body: &str) -> Module {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n\
         .entry k(.param .u32 n)\n{{\n.reg .pred %p<9>;\n.reg .b32 %r<99>;\n{body}\n}}\n"
    );
    parse(&text).unwrap()
}

fn code(module: &Module) -> Code<'_> {
    Code::of(module.functions().last().unwrap())
}

fn label(code: &Code<'_>, cfg: &Cfg, name: &str) -> BlockId {
    let (id, _) = code.statements().find(|(_, s)| s.kind.to_string() == format!("{name}:")).unwrap();
    cfg.block_of(id)
}

fn names(code: &Code<'_>, registers: impl IntoIterator<Item = atoll_ptx::analysis::RegisterId>) -> Vec<String> {
    let mut names: Vec<String> = registers.into_iter().map(|r| code.register(r).name.to_string()).collect();
    names.sort();
    names
}

fn edges(cfg: &Cfg, block: BlockId) -> Vec<(usize, When)> {
    cfg.block(block).successors.iter().map(|e| (e.to.index(), e.when)).collect()
}

const NESTED_LOOPS: &str = "
    mov.b32 %r1, 0;
outer:
    mov.b32 %r2, 0;
inner:
    add.s32 %r3, %r1, %r2;
    add.s32 %r2, %r2, 1;
    setp.lt.s32 %p1, %r2, %r9;
    @%p1 bra inner;
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, %r9;
    @%p1 bra outer;
after:
    @%p2 exit;
    st.global.b32 [%r3], %r1;
    ret;";

#[test]
fn blocks_and_edges() {
    let module = kernel(NESTED_LOOPS);
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    // Entry, outer, inner, latch of outer, after, the store, the exit block.
    assert_eq!(cfg.len(), 7);
    assert_eq!(edges(&cfg, cfg.entry()), [(1, When::Always)]);
    assert_eq!(edges(&cfg, BlockId::new(2)), [(2, When::Guard), (3, When::NotGuard)]);
    assert_eq!(edges(&cfg, label(&code, &cfg, "after")), [(6, When::Guard), (5, When::NotGuard)]);
    assert_eq!(edges(&cfg, BlockId::new(5)), [(6, When::Always)]);
    assert_eq!(cfg.block(cfg.exit()).predecessors, [BlockId::new(4), BlockId::new(5)]);
    assert_eq!(cfg.reverse_postorder().first(), Some(&cfg.entry()));
    assert_eq!(cfg.reverse_postorder().len(), 7);
}

#[test]
fn dominators_both_ways() {
    let module =
        kernel("@%p1 bra right;\n mov.b32 %r1, 1; bra join;\nright: mov.b32 %r1, 2;\njoin: ret;\ndead: bra dead;");
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let (dominators, post) = (DominatorTree::dominators(&cfg), DominatorTree::postdominators(&cfg));
    let (left, right, join, dead) =
        (BlockId::new(1), label(&code, &cfg, "right"), label(&code, &cfg, "join"), label(&code, &cfg, "dead"));
    assert_eq!(dominators.immediate(join), Some(cfg.entry()));
    assert_eq!(dominators.common(left, right), Some(cfg.entry()));
    assert!(
        dominators.dominates(cfg.entry(), right)
            && !dominators.dominates(right, join)
            && dominators.dominates(join, join)
    );
    assert_eq!(post.immediate(cfg.entry()), Some(join));
    assert!(post.dominates(join, left) && !post.dominates(left, cfg.entry()));
    assert!(!dominators.contains(dead) && !post.contains(dead) && !dominators.dominates(dead, dead));
    assert_eq!(dominators.path(join).collect::<Vec<_>>(), [join, cfg.entry()]);
}

#[test]
fn loops_nest() {
    let module = kernel(NESTED_LOOPS);
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let loops = Loops::of(&cfg, &DominatorTree::dominators(&cfg));
    let found: Vec<_> =
        loops.iter().map(|(id, l)| (l.header.index(), l.depth, loops.blocks(id).len(), l.latches.len())).collect();
    assert_eq!(found, [(1, 1, 3, 1), (2, 2, 1, 1)]);
    let (outer, inner) = (loops.innermost(BlockId::new(1)).unwrap(), loops.innermost(BlockId::new(2)).unwrap());
    assert_eq!(loops.get(inner).parent, Some(outer));
    assert!(
        loops.contains(outer, BlockId::new(2))
            && !loops.contains(inner, BlockId::new(3))
            && !loops.contains(outer, BlockId::new(4))
    );
    assert_eq!(loops.exits(outer, &cfg).collect::<Vec<_>>(), [(BlockId::new(3), BlockId::new(4))]);
    assert!(loops.is_reducible());
    assert_eq!((loops.depth(BlockId::new(0)), loops.depth(BlockId::new(2))), (0, 2));
}

#[test]
fn two_loops_beside_each_other_in_one() {
    let module = kernel("top:\na: @%p1 bra a;\nb: @%p2 bra b;\n c: @%p3 bra c; @%p4 bra top; ret;");
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let loops = Loops::of(&cfg, &DominatorTree::dominators(&cfg));
    // `top` and `a` share a block, so they form one loop with two latches.
    let a = loops.innermost(label(&code, &cfg, "a")).unwrap();
    assert_eq!((loops.get(a).latches.len(), loops.get(a).depth, loops.blocks(a).len()), (2, 1, 4));
    for name in ["b", "c"] {
        let inner = loops.innermost(label(&code, &cfg, name)).unwrap();
        assert_eq!((loops.get(inner).parent, loops.blocks(inner)), (Some(a), [label(&code, &cfg, name)].as_slice()));
        assert!(loops.contains(a, label(&code, &cfg, name)));
    }
    assert_eq!(loops.iter().len(), 3);
}

#[test]
fn a_cycle_with_two_entries_is_irreducible() {
    let module = kernel("@%p1 bra second;\nfirst: add.s32 %r1, %r1, 1;\nsecond: @%p2 bra first;\nret;");
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let loops = Loops::of(&cfg, &DominatorTree::dominators(&cfg));
    assert!(!loops.is_reducible());
    assert_eq!(loops.iter().len(), 0);
}

#[test]
fn tables_and_their_cases() {
    let module = kernel("t: .branchtargets a, b, a;\n@%p1 brx.idx %r1, t;\na: ret;\nb: trap;");
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    assert_eq!(
        edges(&cfg, cfg.entry()),
        [(1, When::Case(0)), (2, When::Case(1)), (1, When::Case(2)), (1, When::NotGuard)]
    );
    assert_eq!(edges(&cfg, label(&code, &cfg, "b")), [(3, When::Always)]);
}

#[test]
fn branches_to_unknown_targets() {
    let missing = kernel("bra nowhere;");
    assert_eq!(Cfg::of(&code(&missing)), Err(CfgError::UnknownLabel { label: "nowhere".into(), line: 8 }));
    let hidden = kernel("{ inside: ret; }\nbra inside;");
    assert!(matches!(Cfg::of(&code(&hidden)), Err(CfgError::UnknownLabel { .. })));
    let table = kernel("brx.idx %r1, nowhere;");
    assert!(matches!(Cfg::of(&code(&table)), Err(CfgError::UnknownTable { .. })));
    let bare = kernel("bra 5;");
    assert!(matches!(Cfg::of(&code(&bare)), Err(CfgError::NoTarget { .. })));
}

#[test]
fn empty_functions_have_a_graph() {
    let module = parse(".version 7.8\n.target sm_80\n.func f() { }").unwrap();
    let cfg = Cfg::of(&code(&module)).unwrap();
    assert_eq!((cfg.len(), edges(&cfg, cfg.entry())), (2, vec![(1, When::Always)]));
}

#[test]
fn liveness_over_loops() {
    let module = kernel(NESTED_LOOPS);
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let live = Liveness::of(&code, &cfg).unwrap();
    assert_eq!(names(&code, live.live_in(cfg.entry())), ["%p2", "%r9"]);
    assert_eq!(names(&code, live.live_in(label(&code, &cfg, "outer"))), ["%p2", "%r1", "%r9"]);
    assert_eq!(names(&code, live.live_out(&cfg, label(&code, &cfg, "inner"))), ["%p2", "%r1", "%r2", "%r3", "%r9"]);
    assert_eq!(names(&code, live.live_in(label(&code, &cfg, "after"))), ["%p2", "%r1", "%r3"]);
    assert_eq!(live.live_in(cfg.exit()).count(), 0);
}

#[test]
fn a_guarded_write_keeps_the_old_value_alive() {
    let module = kernel("mov.b32 %r1, 1;\nx:\n@%p1 mov.b32 %r1, 2;\nst.global.b32 [%r2], %r1;\nret;");
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let live = Liveness::of(&code, &cfg).unwrap();
    let x = label(&code, &cfg, "x");
    assert_eq!(names(&code, live.live_in(x)), ["%p1", "%r1", "%r2"]);
    let guarded = cfg.block(x).statements().nth(1).unwrap();
    assert_eq!(names(&code, live.live_after(&code, &cfg, guarded)), ["%r1", "%r2"]);
}

#[test]
fn return_registers_are_live_at_the_end() {
    let module = parse(".func (.reg .b32 %out) f(.reg .b32 %in) { add.s32 %out, %in, 1; ret; }").unwrap();
    let code = code(&module);
    let cfg = Cfg::of(&code).unwrap();
    let live = Liveness::of(&code, &cfg).unwrap();
    assert_eq!(names(&code, live.live_in(cfg.exit())), ["%out"]);
    assert_eq!(names(&code, live.live_in(cfg.entry())), ["%in"]);
}

#[test]
fn names_belong_to_the_innermost_scope() {
    let module = kernel(
        "{ .reg .b32 t; .reg .f64 %r1; mov.b32 t, %r2; }\n\
         { .reg .b64 t; .reg .b32 %r1<3>; mov.b64 t, 0; mov.b32 %r12, %r13; }",
    );
    let code = code(&module);
    let found: Vec<_> = code.registers().iter().map(|r| (r.name.as_str(), r.ty.as_str(), r.scope.index())).collect();
    assert_eq!(found, [("t", "b32", 1), ("%r2", "b32", 0), ("t", "b64", 2), ("%r12", "b32", 2), ("%r13", "b32", 0)]);
    let defs = DefUse::of(&code);
    let (first, _) = code.statements().find(|(_, s)| s.instruction().is_some()).unwrap();
    let t = code.register_at(first, "t").unwrap();
    assert_eq!(defs.single_def(t), Some(first));
    assert_eq!(code.register_at(first, "%r1"), None, "declared but not used");
    assert!(
        code.declares_register(first, "%r1")
            && code.declares_register(first, "%r98")
            && !code.declares_register(first, "%r99")
    );
    assert_eq!(code.register_at(StatementId::new(0), "t"), None);
    assert_eq!(code.variable_at(first, "n").unwrap().name, "n");
}

/// `add d:%r1 u:%r2`
fn roles(text: &str) -> String {
    let module = kernel(&format!("{text};"));
    let function = module.function("k").unwrap();
    let instruction: &Instruction = function.body.as_ref().unwrap().statements.last().unwrap().instruction().unwrap();
    let mut line = instruction.opcode.to_string();
    instruction.visit_names(&mut |role, name| {
        let letter = match role {
            Role::Def => 'd',
            Role::Use => 'u',
            Role::Update => 'm',
            Role::Label => 'l',
            Role::Table => 't',
            Role::Callee => 'c',
        };
        line += &format!(" {letter}:{name}");
    });
    line
}

#[test]
fn roles_of_operands() {
    for (instruction, expected) in [
        ("@!%p1 add.s32 %r1, %r2, 3", "add u:%p1 d:%r1 u:%r2"),
        ("st.global.v2.b32 [%r1+4], {%r2, %r3}", "st u:%r1 u:%r2 u:%r3"),
        ("ld.global.v2.b32 {%r1, _}, [%r3]", "ld d:%r1 u:%r3"),
        ("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3", "setp d:%p1 d:%p2 u:%r1 u:%r2 u:%p3"),
        ("atom.global.add.u32 _, [%r1], %r2", "atom u:%r1 u:%r2"),
        ("red.global.add.u32 [%r1], %r2", "red u:%r1 u:%r2"),
        ("bar.sync %r1, %r2", "bar u:%r1 u:%r2"),
        ("bar.red.popc.u32 %r1, 0, %p1", "bar d:%r1 u:%p1"),
        ("bra.uni L", "bra l:L"),
        ("brx.idx %r1, L", "brx u:%r1 t:L"),
        ("call (%r1), f, (%r2, %r3)", "call d:%r1 c:f u:%r2 u:%r3"),
        ("call %r4, (%r2), proto", "call c:%r4 u:%r2 t:proto"),
        ("mov.b32 %r1, sym+4", "mov d:%r1 u:sym"),
        ("mov.f32 %r1.x, %r2.y", "mov m:%r1.x u:%r2.y"),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1}, %r2, %r3, 1, 1, 1", "wgmma m:%r1 u:%r2 u:%r3"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2]", "tcgen05 d:%r1 u:%r2"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32", "tcgen05 u:%r1"),
        ("cp.async.ca.shared.global [%r1], [%r2], 16, %r3", "cp u:%r1 u:%r2 u:%r3"),
        ("tex.2d.v4.f32.f32 {%r1, %r2}, [t, {%r3, %r4}]", "tex d:%r1 d:%r2 u:t u:%r3 u:%r4"),
        ("mbarrier.arrive.b64 %r1, [%r2]", "mbarrier d:%r1 u:%r2"),
        ("nanosleep.u32 %r1", "nanosleep u:%r1"),
        ("invented.instruction.b32 %r1, {%r2}, [%r3]", "invented d:%r1 u:%r2 u:%r3"),
    ] {
        assert_eq!(roles(instruction), expected, "{instruction}");
    }
}

#[test]
fn names_can_be_changed_in_place() {
    let mut instruction = Instruction::new(
        "ld.global.v2.f32",
        vec![Operand::Vector(vec!["a".into(), "b".into()]), atoll_ptx::build::address(&"c".into(), 4)],
    );
    instruction.visit_names_mut(&mut |role, name| {
        *name = format!("{}{name}", if role == Role::Def { "to_" } else { "from_" }).into()
    });
    assert_eq!(instruction.to_string(), "ld.global.v2.f32\t{to_a, to_b}, [from_c+4]");
}
