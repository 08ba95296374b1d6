//! Whether a block may be run again from its start after it was stopped midway.

use atoll_kgraph::*;

fn place(offset: u64, bytes: u64) -> Place {
    Place { offset, bytes }
}

fn pair(read: u32, written: u32) -> DisjointPair {
    DisjointPair { read, written }
}

fn address(buffer: u32) -> Argument {
    Argument::Buffer { buffer: BufferId(buffer), offset: Expr::Const(0) }
}

fn spec(kernel: u32, args: Vec<Argument>) -> LaunchSpec {
    LaunchSpec::new(KernelId(kernel), [1, 1, 1].map(Expr::Const), args)
}

/// A graph with one kernel node and buffers of these kinds.
fn graph(kinds: &[BufferKind]) -> KernelGraph {
    let buffer = |kind: &BufferKind| BufferSpec {
        name: format!("{kind:?}"),
        kind: *kind,
        dtype: DType::U8,
        shape: vec![Expr::Const(8)],
        weights_offset: None,
    };
    let buffers = kinds.iter().map(buffer).collect();
    let node = Node { name: "n".into(), kind: NodeKind::Kernel, reads: vec![], writes: vec![], after: vec![] };
    KernelGraph { buffers, nodes: vec![node], ..KernelGraph::default() }
}

/// A target whose kernels have these facts, with one launch.
fn target(facts: Vec<Option<RerunFact>>, launch: LaunchSpec) -> TargetImage {
    let kernel = |rerun| KernelFacts { rerun, ..KernelFacts::default() };
    TargetImage {
        kernels: facts.into_iter().map(kernel).collect(),
        launches: vec![Some(launch)],
        ..TargetImage::default()
    }
}

fn layout(buffers: Vec<Place>, variant: Option<usize>) -> InvocationLayout {
    let launch = LaunchLayout { grid: [1, 1, 1], evicted_word: 0, progress: Place::default(), variant };
    InvocationLayout {
        bytes: 4096,
        buffers,
        state_bytes: 0,
        arena: Place::default(),
        control: Place::default(),
        epoch_word: 0,
        checks: Place::default(),
        launches: vec![Some(launch)],
    }
}

/// A kernel reads through its first parameter and writes through its second one.
fn of_places(kinds: [BufferKind; 2], places: [Place; 2]) -> Result<(), NotRerunnable> {
    let fact = RerunFact::IfDisjoint(vec![pair(0, 1)]);
    let target = target(vec![Some(fact)], spec(0, vec![address(0), address(1)]));
    node_may_run_again(&graph(&kinds), &target, &layout(places.to_vec(), None), 0)
}

/// A launch with these arguments of a kernel with this fact; its two buffers share memory.
fn of_arguments(fact: Option<RerunFact>, args: Vec<Argument>) -> Result<(), NotRerunnable> {
    let kinds = [BufferKind::Temp, BufferKind::Temp];
    node_may_run_again(&graph(&kinds), &target(vec![fact], spec(0, args)), &layout(vec![place(0, 8); 2], None), 0)
}

const OVERLAP: Result<(), NotRerunnable> = Err(NotRerunnable::Overlap { read: 0, written: 1 });

#[test]
fn one_shared_byte_is_an_overlap_and_none_is_not() {
    let temps = [BufferKind::Temp, BufferKind::Temp];
    for (first, second, expected) in [
        (place(0, 8), place(8, 8), Ok(())),
        (place(0, 9), place(8, 8), OVERLAP),
        (place(8, 8), place(0, 8), Ok(())),
        (place(8, 8), place(0, 9), OVERLAP),
        (place(0, 8), place(0, 8), OVERLAP),
        (place(0, 16), place(4, 4), OVERLAP),
        (place(4, 4), place(0, 16), OVERLAP),
        (place(4, 0), place(0, 16), Ok(())),
        (place(0, 16), place(4, 0), Ok(())),
        (place(0, 8), place(512, 8), Ok(())),
    ] {
        assert_eq!(of_places(temps, [first, second]), expected, "{first:?}, {second:?}");
    }
}

#[test]
fn weights_and_state_share_no_memory_with_other_buffers() {
    use BufferKind::{Const, Input, Output, State, Temp};
    for (kinds, expected) in [
        ([Input, Output], OVERLAP),
        ([Input, Temp], OVERLAP),
        ([Temp, Output], OVERLAP),
        ([Output, Output], OVERLAP),
        ([State, State], OVERLAP),
        ([Const, Const], OVERLAP),
        ([Const, Output], Ok(())),
        ([Const, Temp], Ok(())),
        ([Const, State], Ok(())),
        ([State, Output], Ok(())),
        ([Input, State], Ok(())),
    ] {
        assert_eq!(of_places(kinds, [place(0, 8); 2]), expected, "{kinds:?}");
    }
}

#[test]
fn a_fact_holds_for_the_arguments_that_it_names() {
    let both = || vec![address(0), address(1)];
    let if_disjoint = |pairs: &[DisjointPair]| Some(RerunFact::IfDisjoint(pairs.to_vec()));
    let never = RerunFact::Never("it counts".into());
    let check = |check| Argument::Check { check };
    let number = || Argument::Int { dtype: DType::U64, value: Expr::Const(0) };
    for (fact, args, expected) in [
        (None, both(), Err(NotRerunnable::Unknown)),
        (Some(RerunFact::Always), both(), Ok(())),
        (Some(never), both(), Err(NotRerunnable::Kernel("it counts".into()))),
        (if_disjoint(&[]), both(), Ok(())),
        (if_disjoint(&[pair(0, 1)]), both(), OVERLAP),
        // Numbers have no memory, so a parameter that is an address must not be one.
        (if_disjoint(&[pair(0, 1)]), vec![number(), address(1)], Err(NotRerunnable::NoBuffer(0))),
        (if_disjoint(&[pair(0, 1)]), vec![address(0), number()], Err(NotRerunnable::NoBuffer(1))),
        (if_disjoint(&[pair(0, 2)]), both(), Err(NotRerunnable::NoBuffer(2))),
        // Each pair counts.
        (if_disjoint(&[pair(2, 0), pair(0, 1)]), vec![address(0), address(1), check(0)], OVERLAP),
        // The word of a check is in no buffer, and shared only with itself.
        (if_disjoint(&[pair(0, 1)]), vec![check(0), address(1)], Ok(())),
        (if_disjoint(&[pair(0, 1)]), vec![address(0), check(0)], Ok(())),
        (if_disjoint(&[pair(0, 1)]), vec![check(0), check(1)], Ok(())),
        (if_disjoint(&[pair(0, 1)]), vec![check(1), check(1)], OVERLAP),
    ] {
        assert_eq!(of_arguments(fact.clone(), args.clone()), expected, "{fact:?} {args:?}");
    }
}

#[test]
fn the_chosen_variant_counts_and_a_node_that_launches_nothing_may_run_again() {
    let facts = || vec![Some(RerunFact::Never("it counts".into())), Some(RerunFact::Always)];
    let ranges = vec![SymbolRange { symbol: SymbolId(0), min: 1, max: 1 }];
    let variants = vec![LaunchVariant { ranges, launch: spec(1, vec![]) }];
    let target_of = |launch| target(facts(), launch);
    let both = target_of(LaunchSpec { variants, ..spec(0, vec![]) });
    let graph = graph(&[]);
    let counts = Err(NotRerunnable::Kernel("it counts".into()));
    assert_eq!(node_may_run_again(&graph, &both, &layout(vec![], None), 0), counts);
    assert_eq!(node_may_run_again(&graph, &both, &layout(vec![], Some(0)), 0), Ok(()));
    // Its grid is empty.
    let empty = InvocationLayout { launches: vec![None], ..layout(vec![], None) };
    assert_eq!(node_may_run_again(&graph, &both, &empty, 0), Ok(()));
    // It is a copy or a fill.
    let none = TargetImage { launches: vec![None], ..both.clone() };
    assert_eq!(node_may_run_again(&graph, &none, &layout(vec![], None), 0), Ok(()));
    // All launches of a kernel count, variants too, and those of other kernels do not.
    assert_eq!(kernel_may_run_again(&both, KernelId(0)), counts);
    assert_eq!(kernel_may_run_again(&both, KernelId(1)), Ok(()));
}

#[test]
fn a_kernel_may_run_again_if_none_of_its_launches_reads_what_it_writes() {
    let fact = || Some(RerunFact::IfDisjoint(vec![pair(0, 1)]));
    let of = |launches: Vec<Option<LaunchSpec>>| {
        let target = TargetImage { launches, ..target(vec![fact(), fact(), None], spec(0, vec![])) };
        [0, 1, 2].map(|kernel| kernel_may_run_again(&target, KernelId(kernel)))
    };
    let (apart, same) =
        (|kernel| spec(kernel, vec![address(0), address(1)]), |kernel| spec(kernel, vec![address(3); 2]));
    let unknown = Err(NotRerunnable::Unknown);
    assert_eq!(of(vec![]), [Ok(()), Ok(()), unknown.clone()]);
    assert_eq!(of(vec![Some(apart(0)), None, Some(same(1))]), [Ok(()), OVERLAP, unknown.clone()]);
    assert_eq!(of(vec![Some(apart(0)), Some(same(0))]), [OVERLAP, Ok(()), unknown.clone()]);
    let ranges = vec![SymbolRange { symbol: SymbolId(0), min: 1, max: 1 }];
    let variants = vec![LaunchVariant { ranges, launch: same(1) }];
    assert_eq!(of(vec![Some(LaunchSpec { variants, ..apart(0) })]), [Ok(()), OVERLAP, unknown]);
}
