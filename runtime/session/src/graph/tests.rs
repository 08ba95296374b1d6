use super::*;

/// Graphs whose calls are letters.
type Letters = Graphs<char>;

fn launched(graphs: &mut Letters, graph: u32) -> String {
    let executable = graphs.instantiate(graph, 0).expect("no cycle");
    graphs.launch(executable).expect("an executable graph").into_iter().collect()
}

/// The kinds of letters: a vowel never replaces a consonant.
fn differs(one: &char, other: &char) -> Option<MismatchKind> {
    let is_vowel = |letter: &char| "aeiou".contains(*letter);
    (is_vowel(one) != is_vowel(other)).then_some(MismatchKind::Kind)
}

#[test]
fn a_graph_runs_in_the_order_of_its_dependencies() {
    let mut graphs = Letters::default();
    let graph = graphs.create().expect("a graph");
    let last = graphs.add(graph, &[], Some('d')).expect("a node");
    let first = graphs.add(graph, &[], Some('a')).expect("a node");
    let middle = [Some('b'), None, Some('c')].map(|work| graphs.add(graph, &[first], work).expect("a node"));
    graphs.connect(graph, &middle.map(|node| (node, last))).expect("edges");
    assert_eq!(launched(&mut graphs, graph), "abcd");
    assert_eq!((graphs.roots(graph), graphs.before(last)), (Ok(vec![first]), Ok(middle.to_vec())));
    assert_eq!(graphs.after(first), Ok(middle.to_vec()));
    assert_eq!(graphs.edges(graph).expect("edges").len(), 6);
    graphs.disconnect(graph, &middle.map(|node| (node, last))).expect("edges");
    assert_eq!(launched(&mut graphs, graph), "dabc");
    graphs.remove(first).expect("a node");
    assert_eq!(launched(&mut graphs, graph), "dbc");
}

#[test]
fn cycles_and_wrong_edges_are_refused() {
    let mut graphs = Letters::default();
    let (graph, other) = (graphs.create().expect("a graph"), graphs.create().expect("a graph"));
    let [one, two] = ['a', 'b'].map(|letter| graphs.add(graph, &[], Some(letter)).expect("a node"));
    let foreign = graphs.add(other, &[], None).expect("a node");
    graphs.connect(graph, &[(one, two)]).expect("an edge");
    let wrong = Err(Code::INVALID_VALUE);
    for pairs in [[(one, one)], [(one, two)], [(one, foreign)], [(99, one)]] {
        assert_eq!(graphs.connect(graph, &pairs), wrong);
    }
    assert_eq!(graphs.connect(graph, &[(two, one), (two, one)]), wrong);
    assert_eq!(graphs.disconnect(graph, &[(one, two), (two, one)]), wrong);
    assert_eq!(graphs.before(two), Ok(vec![one]), "nothing has changed");
    assert_eq!(graphs.add(graph, &[one, one], None), Err(Code::INVALID_VALUE));
    assert_eq!(graphs.add(graph, &[foreign], None), Err(Code::INVALID_VALUE));
    graphs.connect(graph, &[(two, one)]).expect("an edge");
    assert_eq!(graphs.instantiate(graph, 0), Err(Code::INVALID_VALUE), "a cycle");
    // The same cycle in a child graph.
    graphs.add_child(other, &[], graph).expect("a child");
    assert_eq!(graphs.instantiate(other, 0), Err(Code::INVALID_VALUE));
}

#[test]
fn child_graphs_are_copies() {
    let mut graphs = Letters::default();
    let (inner, outer) = (graphs.create().expect("a graph"), graphs.create().expect("a graph"));
    let letter = graphs.add(inner, &[], Some('x')).expect("a node");
    let before = graphs.add(outer, &[], Some('(')).expect("a node");
    let child = graphs.add_child(outer, &[before], inner).expect("a child");
    graphs.add(outer, &[child], Some(')')).expect("a node");
    graphs.set_work(letter, 'y').expect("a call");
    assert_eq!(launched(&mut graphs, outer), "(x)");
    let copy = graphs.child(child).expect("a graph");
    let inside = graphs.find_in_copy(letter, copy).expect("a copy");
    graphs.set_work(inside, 'z').expect("a call");
    assert_eq!((launched(&mut graphs, outer), launched(&mut graphs, inner)), ("(z)".into(), "y".into()));
    assert_eq!(graphs.destroy(copy), Err(Code::INVALID_VALUE), "it belongs to its node");
    let second = graphs.copy(outer).expect("a copy");
    graphs.destroy(outer).expect("a graph");
    assert_eq!(graphs.task(inside), Err(Code::INVALID_VALUE), "it is gone with its graph");
    assert_eq!(launched(&mut graphs, second), "(z)");
}

#[test]
fn graphs_are_nested_to_a_limit_and_end_with_their_holder() {
    let mut graphs = Letters::default();
    let mut graph = graphs.create().expect("a graph");
    for _ in 0..GRAPH_DEPTH_MAX {
        let outer = graphs.create().expect("a graph");
        graphs.add_child(outer, &[], graph).expect("a child");
        graphs.destroy(graph).expect("a graph");
        graph = outer;
    }
    let outer = graphs.create().expect("a graph");
    assert_eq!(graphs.add_child(outer, &[], graph), Err(Code::NOT_SUPPORTED));
    // A child of a child counts for all levels above it.
    let level = graphs.nodes(graph).and_then(|nodes| graphs.child(nodes[0])).expect("a child");
    assert_eq!(graphs.add_child(level, &[], graph), Err(Code::NOT_SUPPORTED));
    graphs.destroy(graph).expect("a graph");
    graphs.destroy(outer).expect("a graph");
    assert!(graphs.graphs.is_empty() && graphs.nodes.is_empty());
}

#[test]
fn graphs_cannot_grow_without_bound() {
    let mut graphs = Letters::default();
    let graph = graphs.create().expect("a graph");
    graphs.add(graph, &[], Some('a')).expect("a node");
    // Each round doubles the graph.
    let refused = (0..GRAPH_DEPTH_MAX * 2).find_map(|_| {
        let copy = graphs.copy(graph);
        copy.and_then(|copy| graphs.add_child(graph, &[], copy).and_then(|_| graphs.destroy(copy))).err()
    });
    assert!(matches!(refused, Some(Code::OUT_OF_MEMORY | Code::NOT_SUPPORTED)), "{refused:?}");
    assert!(graphs.nodes.len() <= GRAPH_NODES_MAX);
    graphs.destroy(graph).expect("a graph");
}

#[test]
fn executable_graphs_are_updated_or_stay_as_they_are() {
    let mut graphs = Letters::default();
    let make = |graphs: &mut Letters, letters: [char; 2]| {
        let graph = graphs.create().expect("a graph");
        let one = graphs.add(graph, &[], Some(letters[0])).expect("a node");
        let two = graphs.add(graph, &[one], Some(letters[1])).expect("a node");
        (graph, one, two)
    };
    let (graph, one, two) = make(&mut graphs, ['a', 'b']);
    let executable = graphs.instantiate(graph, 8).expect("no cycle");
    assert_eq!(graphs.flags(executable), Ok(8));
    let text = |graphs: &Letters| graphs.launch(executable).map(|letters| letters.into_iter().collect::<String>());
    let (other, ..) = make(&mut graphs, ['e', 'd']);
    assert_eq!(graphs.update(executable, other, differs), Ok(Ok(())));
    assert_eq!(text(&graphs), Ok("ed".into()));
    let (wrong, _, node) = make(&mut graphs, ['i', 'o']);
    let mismatch = Mismatch { kind: MismatchKind::Kind, node };
    assert_eq!(graphs.update(executable, wrong, differs), Ok(Err(mismatch)));
    let (apart, first, second) = make(&mut graphs, ['a', 'b']);
    graphs.disconnect(apart, &[(first, second)]).expect("an edge");
    let mismatch = Mismatch { kind: MismatchKind::Topology, node: second };
    assert_eq!(graphs.update(executable, apart, differs), Ok(Err(mismatch)));
    assert_eq!(text(&graphs), Ok("ed".into()), "nothing has changed");
    // Nodes of the first graph still name the nodes of the executable one.
    graphs.set_executable_work(executable, two, 'f').expect("a node");
    graphs.enable(executable, one, false).expect("a node");
    assert_eq!((text(&graphs), graphs.is_enabled(executable, one)), (Ok("f".into()), Ok(false)));
    assert_eq!(graphs.set_executable_work(executable, first, 'x'), Err(Code::INVALID_VALUE), "of another graph");
    graphs.destroy_executable(executable).expect("it exists");
    assert_eq!(graphs.launch(executable), Err(Code::INVALID_VALUE));
    assert_eq!(graphs.destroy_executable(executable), Err(Code::INVALID_VALUE));
    assert_eq!(graphs.executable_nodes, 0);
}

#[test]
fn streams_fork_and_join_in_a_capture() {
    let mut graphs = Letters::default();
    let (one, two, fork, join) = (1, 2, 10, 11);
    graphs.begin_capture(one, CaptureMode::Global, 0).expect("it begins");
    assert_eq!(graphs.begin_capture(one, CaptureMode::Global, 0), Err(Code::ILLEGAL_STATE));
    let first = graphs.capture(one, Some('a')).expect("captured");
    assert_eq!(graphs.capture_event(fork, one), Ok(true));
    assert_eq!(graphs.capture_wait(two, fork), Ok(true));
    assert!(matches!(graphs.capture_status(two), CaptureStatus::Active(_)));
    let right = graphs.capture(two, Some('b')).expect("captured");
    let left = graphs.capture(one, Some('c')).expect("captured");
    assert_eq!(graphs.capture_event(join, two), Ok(true));
    assert_eq!(graphs.capture_wait(one, join), Ok(true));
    let last = graphs.capture(one, Some('d')).expect("captured");
    assert_eq!(graphs.capture_place(one).map(|(_, nodes)| nodes), Some(vec![last]));
    let graph = graphs.end_capture(one, 0).expect("a graph");
    assert_eq!(graphs.edges(graph), Ok(vec![(first, right), (first, left), (right, last), (left, last)]));
    assert_eq!(launched(&mut graphs, graph), "abcd");
    assert_eq!((graphs.capture_status(two), graphs.is_capturing()), (CaptureStatus::None, false));
    // The event still stands for captured work.
    assert!(graphs.is_captured(join));
    assert_eq!(graphs.capture_wait(two, join), Err(Code::CAPTURED_EVENT));
    assert_eq!(graphs.capture_event(join, two), Ok(false));
    assert_eq!((graphs.capture_wait(two, join), graphs.is_captured(join)), (Ok(false), false));
}

#[test]
fn work_that_does_not_come_back_ends_a_capture_with_an_error() {
    let mut graphs = Letters::default();
    graphs.begin_capture(1, CaptureMode::Relaxed, 0).expect("it begins");
    graphs.capture(1, Some('a')).expect("captured");
    assert_eq!(graphs.capture_event(10, 1), Ok(true));
    assert_eq!(graphs.capture_wait(2, 10), Ok(true));
    graphs.capture(2, Some('b')).expect("captured");
    assert_eq!(graphs.end_capture(2, 0), Err(Code::STREAM_CAPTURE_UNMATCHED));
    assert_eq!(graphs.end_capture(1, 0), Err(Code::STREAM_CAPTURE_INVALIDATED), "by the call before");
    graphs.begin_capture(1, CaptureMode::Relaxed, 0).expect("it begins");
    assert_eq!(graphs.capture_event(10, 1), Ok(true));
    assert_eq!(graphs.capture_wait(2, 10), Ok(true));
    graphs.capture(2, Some('b')).expect("captured");
    assert_eq!(graphs.end_capture(1, 7), Err(Code::STREAM_CAPTURE_UNJOINED), "any thread may end it");
    assert_eq!(graphs.end_capture(1, 0), Err(Code::ILLEGAL_STATE));
    assert!(graphs.graphs.is_empty() && graphs.nodes.is_empty(), "nothing is left");
}

#[test]
fn captures_are_kept_apart() {
    let mut graphs = Letters::default();
    graphs.begin_capture(1, CaptureMode::ThreadLocal, 5).expect("it begins");
    graphs.begin_capture(2, CaptureMode::ThreadLocal, 6).expect("it begins");
    assert_eq!(graphs.end_capture(1, 6), Err(Code::STREAM_CAPTURE_WRONG_THREAD));
    assert_eq!(graphs.capture_wait(1, 10), Err(Code::STREAM_CAPTURE_ISOLATION), "the event is outside");
    assert_eq!(graphs.capture(1, Some('a')), Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(graphs.end_capture(1, 5), Err(Code::STREAM_CAPTURE_INVALIDATED));
    graphs.begin_capture(1, CaptureMode::ThreadLocal, 5).expect("it begins");
    assert_eq!(graphs.capture_event(10, 1), Ok(true));
    assert_eq!(graphs.capture_wait(2, 10), Err(Code::STREAM_CAPTURE_MERGE));
    for (stream, thread) in [(1, 5), (2, 6)] {
        assert_eq!(graphs.end_capture(stream, thread), Err(Code::STREAM_CAPTURE_INVALIDATED));
    }
}

#[test]
fn modes_decide_which_calls_are_forbidden() {
    use CaptureMode::{Global, Relaxed, ThreadLocal};
    for (capture, mode, is_same_thread, expected) in [
        (Global, Global, false, true),
        (Global, ThreadLocal, false, false),
        (Global, ThreadLocal, true, true),
        (Global, Relaxed, true, false),
        (ThreadLocal, Global, false, false),
        (ThreadLocal, Global, true, true),
        (Relaxed, Global, true, false),
    ] {
        let mut graphs = Letters::default();
        graphs.begin_capture(1, capture, 0).expect("it begins");
        let thread = u64::from(!is_same_thread);
        assert_eq!(graphs.forbid(mode, thread), expected, "{capture:?} {mode:?} {is_same_thread}");
        assert_eq!(graphs.end_capture(1, 0).is_err(), expected);
    }
}

#[test]
fn a_launch_is_captured_as_a_child() {
    let mut graphs = Letters::default();
    let graph = graphs.create().expect("a graph");
    let one = graphs.add(graph, &[], Some('a')).expect("a node");
    graphs.add(graph, &[one], Some('b')).expect("a node");
    let executable = graphs.instantiate(graph, 0).expect("no cycle");
    graphs.begin_capture(1, CaptureMode::Global, 0).expect("it begins");
    graphs.capture(1, Some('<')).expect("captured");
    graphs.capture_launch(1, executable).expect("captured");
    graphs.capture(1, Some('>')).expect("captured");
    let outer = graphs.end_capture(1, 0).expect("a graph");
    graphs.destroy_executable(executable).expect("it exists");
    assert_eq!(launched(&mut graphs, outer), "<ab>");
}

#[test]
fn streams_that_end_end_their_captures() {
    let mut graphs = Letters::default();
    graphs.begin_capture(1, CaptureMode::Global, 0).expect("it begins");
    assert_eq!(graphs.capture_event(10, 1), Ok(true));
    assert_eq!(graphs.capture_wait(2, 10), Ok(true));
    graphs.forget_stream(2);
    assert_eq!(graphs.end_capture(1, 0), Err(Code::STREAM_CAPTURE_INVALIDATED));
    graphs.begin_capture(1, CaptureMode::Global, 0).expect("it begins");
    graphs.forget_stream(1);
    assert!(!graphs.is_capturing() && graphs.graphs.is_empty());
    graphs.forget_event(10);
    assert!(!graphs.is_captured(10));
}
