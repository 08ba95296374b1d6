//! Fuzz targets of the bundle format: any graph and target are refused or laid out, and writing and
//! reading them again changes nothing.

#[path = "kgraph/archive.rs"]
mod archive;

use atoll_kgraph::*;
use bolero::check;

/// A graph that uses all features of the format, and a target for it; both are mutated.
const GRAPH: &str = r#"{"format":2,"name":"g","symbols":[{"name":"n","min":1,"max":8},{"name":"m","min":0,"max":8}],
"buffers":[
{"name":"x","kind":"input","dtype":"f32","shape":[{"symbol":0}]},{"name":"w","kind":"const","dtype":"f32",
"shape":[{"const":4}],"weights_offset":0},
{"name":"s","kind":"state","dtype":"f32","shape":[{"const":4}]},{"name":"c","kind":"temp","dtype":"i32",
"shape":[{"const":2}]},
{"name":"y","kind":"output","dtype":"f32","shape":[{"symbol":0}]}],"nodes":[
{"name":"a","kind":{"fill":{"to":3,"bytes":{"const":8},"pattern":[0]}},"reads":[],"writes":[3],"after":[]},
{"name":"b","kind":"kernel","reads":[0,1,2],"writes":[3,4],"after":[0]},
{"name":"d","kind":{"copy":{"from":1,"from_offset":{"const":4},"to":2,"bytes":{"const":12}}},"reads":[1],
"writes":[2],"after":[1]}],
"plan":{"arena_bytes":{"const":256},"temps":[{"buffer":3,"offset":{"const":0}}],"restore_points":[0,1,2],
"state_bytes":{"const":256},"states":[{"buffer":2,"offset":{"const":0}}]},
"batch":{"symbol":0,"axes":[0,null,null,null,0],"proof":"p"},"read_backs":[{"symbol":1,"after":1,"value":{"buffer":3,
"offset":4,"dtype":"i32"}}],
"segments":[{"nodes":{"first":0,"end":2}},{"if":{"condition":{"buffer":3,"offset":0,"dtype":"i32"},
"then":[],"otherwise":[]}},
{"loop":{"trips":{"symbol":0},"count":{"buffer":3,"offset":0,"dtype":"i32"},"trips_max":8,
"body":[{"nodes":{"first":2,"end":3}}]}}]}"#;
const TARGET: &str = r#"{"name":"t","kernels":[{"name":"k","block":[32,1,1],"params_bytes":60,"preempt_offset":32,
"shared_bytes":0,
"amd":{"vgprs":8,"sgprs":8,"agprs":0,"wave_lanes":64,"private_bytes":0}}],"launches":[null,{"kernel":0,
"grid":[{"ceil_div":[{"symbol":0},{"const":4}]},{"const":1},{"const":1}],
"args":[{"buffer":{"buffer":0}},{"bytes":{"align":8,"bytes":"00112233445566778899aabbccddeeff",
"relocations":[{"at":8,"buffer":1}]}},{"int":{"dtype":"u64","value":{"symbol":0}}}],
"variants":[{"ranges":[{"symbol":0,"min":1,"max":2}],"launch":{"kernel":0,"grid":[{"const":1},{"const":1},{"const":1}],
"args":[{"buffer":{"buffer":0}},{"buffer":{"buffer":1}},{"buffer":{"buffer":2}},{"int":{"dtype":"u64",
"value":{"symbol":0}}}]}}]},null],
"packed":[{"buffer":1,"layout":"l","weights_offset":0,"bytes":16}]}"#;
/// Size of the weights in bytes.
const WEIGHTS_BYTES: u64 = 256;

/// Whether both are accepted. Accepted ones have a layout, or a reason for having none, for the
/// smallest and the largest symbols.
fn exercise(graph: &[u8], target: &[u8]) -> bool {
    let (Ok(graph), Ok(target)) =
        (serde_json::from_slice::<KernelGraph>(graph), serde_json::from_slice::<TargetImage>(target))
    else {
        return false;
    };
    if validate::graph(&graph, WEIGHTS_BYTES).is_err() || validate::target(&graph, &target, WEIGHTS_BYTES).is_err() {
        return false;
    }
    let _ = (features::of_graph(&graph), features::of_target(&graph, &target));
    for symbols in
        [graph.symbols.iter().map(|s| s.min).collect::<Vec<_>>(), graph.symbols.iter().map(|s| s.max).collect()]
    {
        if let Ok(layout) = InvocationLayout::new(&graph, &target, &symbols) {
            (0..graph.nodes.len()).for_each(|node| drop(node_may_run_again(&graph, &target, &layout, node)));
        }
    }
    let again: KernelGraph =
        serde_json::from_slice(&serde_json::to_vec(&graph).expect("a graph has a text")).expect("and the text a graph");
    let target_again: TargetImage = serde_json::from_slice(&serde_json::to_vec(&target).expect("a target has a text"))
        .expect("and the text a target");
    assert!(again == graph && target_again == target, "the text is another graph or target");
    true
}

/// A text with some bytes replaced; digits mostly become digits, so that the result is often valid
/// JSON.
fn mutated(text: &str, changes: &[(u16, u8)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (at, to) in changes {
        let at = usize::from(*at) % bytes.len();
        bytes[at] = if bytes[at].is_ascii_digit() && *to < 0xF0 { b'0' + to % 10 } else { *to };
    }
    bytes
}

#[test]
fn the_seeds_are_accepted() {
    assert!(exercise(GRAPH.as_bytes(), TARGET.as_bytes()));
}

#[test]
fn any_bytes() {
    check!().for_each(|bytes: &[u8]| {
        exercise(bytes, TARGET.as_bytes());
        exercise(GRAPH.as_bytes(), bytes);
    });
}

#[test]
fn changed_graphs_and_targets() {
    check!().with_type::<(Vec<(u16, u8)>, Vec<(u16, u8)>)>().for_each(|(graph, target)| {
        exercise(&mutated(GRAPH, graph), &mutated(TARGET, target));
    });
}
