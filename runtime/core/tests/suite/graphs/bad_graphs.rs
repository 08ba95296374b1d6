//! Invalid descriptions of graphs, each with its error.

use super::support::{cost, cpu_and_gpu, form, graph, kind, link, plain_costs, source, spec, stage, tensor};
use atoll_core::Nanos;
use atoll_core::graphs::limits::{DEADLINE_NS_MAX, STAGES_MAX};
use atoll_core::graphs::{
    Compare, Condition, ConditionSpec, CostTable, Form, Graph, GraphError, GraphSpec, NotANumber, Size, Source,
    StageCost, StageSpec, TensorSpec,
};

fn refusal(spec: GraphSpec) -> String {
    Graph::new(spec).expect_err("a bad graph").to_string()
}

/// A cascade: `big` runs if the confidence of `small` is low.
pub(crate) fn cascade() -> GraphSpec {
    let mut graph = spec(&[("small", &["x"]), ("big", &["x"])]);
    graph.stages[0].outputs.push(tensor("confidence", &[1]));
    graph.stages[1].when =
        Some(ConditionSpec { value: source("small.confidence"), compare: Compare::Less, threshold: 0.8 });
    graph.stages[1].otherwise = vec![link("y", "small.y")];
    graph.outputs = vec![link("answer", "big.y")];
    graph
}

#[test]
fn a_cascade_is_checked_and_resolved() {
    let graph = Graph::new(cascade()).unwrap();
    let big = &graph.stages()[1];
    assert_eq!(big.needs, [0]);
    assert_eq!(big.otherwise, [Some(Source::Output { stage: 0, output: 0 })]);
    assert_eq!(graph.stages()[0].needed_by, [1]);
}

#[test]
fn cycles_and_wrong_orders_are_told_apart() {
    let with_output = |stages| GraphSpec { outputs: vec![link("y", "a.y")], ..spec(stages) };
    let text = refusal(with_output(&[("a", &["c.y"]), ("b", &["a.y"]), ("c", &["b.y"])]));
    assert_eq!(text, "stages form a cycle: a needs c needs b needs a");
    assert_eq!(refusal(with_output(&[("a", &["a.y"])])), "stages form a cycle: a needs a");
    let text = refusal(spec(&[("a", &["b.y"]), ("b", &["x"])]));
    assert_eq!(text, "stage `a` takes an output of `b`, which is listed after it; list `b` first");
}

#[test]
fn missing_names_are_refused_with_what_there_is() {
    for (from, expected) in [
        ("no.y", "input `i0` of stage `b` names stage `no`, which the graph does not have"),
        ("a.no", "input `i0` of stage `b` names output `no` of stage `a`, which has `y`"),
        ("no", "input `i0` of stage `b` names input `no` of the graph, which has `x`"),
    ] {
        let mut graph = spec(&[("a", &["x"]), ("b", &[from])]);
        graph.outputs = vec![link("y", "b.y")];
        assert_eq!(refusal(graph), expected);
    }
    let mut graph = spec(&[("a", &["x"])]);
    graph.stages[0].from.clear();
    assert_eq!(refusal(graph), "stage `a` states no source for its input `i0`");
    let mut graph = spec(&[("a", &["x"])]);
    graph.stages[0].from.push(link("i7", "x"));
    assert_eq!(refusal(graph), "stage `a` names `i7`; the function has `i0`");
    let mut graph = spec(&[("a", &["x"])]);
    graph.outputs[0] = link("out", "a.no");
    assert_eq!(refusal(graph), "output `out` of the graph names output `no` of stage `a`, which has `y`");
}

#[test]
fn a_tensor_that_fits_one_branch_only_is_refused_with_both() {
    let mut graph = spec(&[("pre", &["x"]), ("a", &["pre.y"]), ("b", &["pre.y"])]);
    graph.stages[2].inputs[0].form = form(&[1, 8]);
    assert_eq!(
        refusal(graph.clone()),
        "input `i0` of stage `b` wants FP32[1, 8], but output `y` of stage `pre` is FP32[1, 4], which fits input \
         `i0` of stage `a` only"
    );
    graph.stages[2].inputs[0].form = Form { element: "INT32".into(), ..form(&[1, 4]) };
    assert!(refusal(graph.clone()).contains("wants INT32[1, 4], but output `y` of stage `pre` is FP32[1, 4]"));
    graph.stages[2].inputs[0].form = Form { element: "FP32".into(), shape: vec![Size::Any, Size::Fixed(4)] };
    assert!(Graph::new(graph).is_ok(), "a size that is known later is checked later");
    let mut graph = cascade();
    graph.stages[1].outputs[0].form = form(&[1, 9]);
    let text = refusal(graph);
    assert!(text.starts_with("output `y` of stage `big` wants FP32[1, 9], but output `y` of stage `small`"), "{text}");
}

#[test]
fn conditions_are_on_numbers() {
    for threshold in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut graph = cascade();
        graph.stages[1].when.as_mut().unwrap().threshold = threshold;
        assert!(refusal(graph).contains("use a finite number"), "{threshold}");
    }
    for form in [form(&[2]), Form { element: "BYTES".into(), ..form(&[1]) }] {
        let mut graph = cascade();
        graph.stages[0].outputs[1].form = form;
        assert!(refusal(graph).contains("use a number, a tensor of one element"));
    }
    let mut graph = cascade();
    graph.stages[1].otherwise.clear();
    let text = refusal(graph);
    assert_eq!(
        text,
        "stage `big` may be skipped, but output `answer` uses its output `y`; state a substitute in `otherwise`"
    );
    let mut graph = cascade();
    graph.stages[1].when = None;
    assert!(refusal(graph).contains("always runs"));
    let condition = Condition { value: Source::Input(0), compare: Compare::AtMost, threshold: 0.5 };
    assert_eq!(condition.holds(f64::NAN), Err(NotANumber));
    let all = [Compare::Less, Compare::AtMost, Compare::More, Compare::AtLeast]
        .map(|compare| [0.4, 0.5, 0.6].map(|value| Condition { compare, ..condition }.holds(value) == Ok(true)));
    assert_eq!(all, [[true, false, false], [true, true, false], [false, false, true], [false, true, true]]);
}

#[test]
fn names_and_counts_have_limits() {
    let mut graph = spec(&[("a", &["x"]), ("b", &["x"])]);
    graph.stages[1].name = "a".into();
    assert_eq!(refusal(graph), "the graph has two stages named `a`");
    let mut graph = spec(&[("a", &["x"])]);
    graph.inputs.push(tensor("x", &[2]));
    assert_eq!(refusal(graph), "the graph has two inputs named `x`");
    for name in ["", "a.b", "a\nb", &"x".repeat(300)] {
        let mut graph = spec(&[("a", &["x"])]);
        graph.stages[0].name = name.into();
        assert!(refusal(graph).contains("is not a valid name of a stage"), "{name:?}");
    }
    assert_eq!(refusal(GraphSpec { name: "g".into(), ..GraphSpec::default() }), "the graph has no stages");
    let many: Vec<StageSpec> = (0..=STAGES_MAX).map(|index| stage(&format!("s{index}"), &["x"])).collect();
    let graph = GraphSpec { stages: many, ..spec(&[("a", &["x"])]) };
    assert_eq!(refusal(graph), "the graph has 33 stages; the limit is 32");
    let mut graph = spec(&[("a", &["x"])]);
    graph.outputs.clear();
    assert_eq!(refusal(graph), "the graph has no outputs");
    let mut graph = spec(&[("a", &["x"]), ("b", &["x"])]);
    graph.outputs.pop();
    assert_eq!(refusal(graph), "no output of stage `b` is used; remove the stage");
    let mut graph = spec(&[("a", &["x"])]);
    graph.stages[0].batch_max = 5_000;
    assert_eq!(refusal(graph), "stage `a` has batches of 5000; the limit is 1024");
    let mut graph = spec(&[("a", &["x"])]);
    graph.inputs = (0..300).map(|index| tensor(&format!("x{index}"), &[1])).collect::<Vec<TensorSpec>>();
    assert_eq!(refusal(graph), "the graph has 300 tensors; the limit is 256");
}

#[test]
fn deadlines_are_positive_and_not_endless() {
    for (ns, expected) in [(0, "is 0"), (DEADLINE_NS_MAX + 1, "above the limit"), (u64::MAX, "above the limit")] {
        let text = refusal(GraphSpec { deadline: Some(Nanos(ns)), ..spec(&[("a", &["x"])]) });
        assert!(text.contains(expected), "{text}");
    }
    assert!(Graph::new(GraphSpec { deadline: Some(Nanos(DEADLINE_NS_MAX)), ..spec(&[("a", &["x"])]) }).is_ok());
}

#[test]
fn tables_of_costs_fit_their_graph() {
    let two = graph(&[("a", &["x"]), ("b", &["a.y"])]);
    let row = || vec![Some(cost(4, 1, 1)), Some(cost(1, 1, 1))];
    let table = |rows| CostTable::new(&two, cpu_and_gpu(), rows).map(|_| ());
    assert_eq!(table(vec![row(), row()]), Ok(()));
    assert_eq!(table(vec![row()]), Err(GraphError::Rows { rows: 1, stages: 2 }));
    assert!(table(vec![row(), vec![None]]).is_err_and(|error| error.to_string().contains("for 1 kinds")));
    let nowhere = table(vec![row(), vec![None, None]]).unwrap_err();
    assert_eq!(nowhere.to_string(), "no kind of device can run stage `b`");
    let instant = StageCost { exec: Nanos(0), ..cost(1, 1, 1) };
    assert!(table(vec![row(), vec![Some(instant), None]]).unwrap_err().to_string().contains("is 0"));
    let endless = StageCost { exec: Nanos(u64::MAX), ..cost(1, 1, 1) };
    let text = table(vec![row(), vec![Some(endless), None]]).unwrap_err().to_string();
    assert_eq!(text, "times or prices up to stage `b` overflow");
    assert_eq!(CostTable::new(&two, vec![], vec![vec![], vec![]]), Err(GraphError::NoKinds));
    let mut on_cpu = spec(&[("a", &["x"])]);
    on_cpu.stages[0].cpu_only = true;
    let on_cpu = Graph::new(on_cpu).unwrap();
    let text = CostTable::new(&on_cpu, cpu_and_gpu(), vec![row()]).unwrap_err().to_string();
    assert_eq!(text, "stage `a` runs on CPUs only, but has a cost on `gpu`");
    assert!(CostTable::new(&on_cpu, cpu_and_gpu(), vec![vec![Some(cost(1, 0, 0)), None]]).is_ok());
    assert_eq!(plain_costs(&two).assignments(), 4);
}

#[test]
fn too_many_assignments_are_refused() {
    let chain = |stages: usize| {
        let names: Vec<String> = (0..stages).map(|index| format!("s{index}")).collect();
        let from: Vec<String> =
            (0..stages).map(|index| if index == 0 { "x".into() } else { format!("s{}.y", index - 1) }).collect();
        let from: Vec<[&str; 1]> = from.iter().map(|from| [from.as_str()]).collect();
        let stages: Vec<(&str, &[&str])> =
            names.iter().zip(&from).map(|(name, from)| (name.as_str(), from.as_slice())).collect();
        graph(&stages)
    };
    let kinds = || (0..3).map(|index| kind(&format!("k{index}"), false, 1)).collect::<Vec<_>>();
    let table = |stages| CostTable::new(&chain(stages), kinds(), vec![vec![Some(cost(1, 0, 0)); 3]; stages]);
    assert_eq!(table(15).unwrap().assignments(), 14_348_907);
    let text = table(16).unwrap_err().to_string();
    assert!(text.starts_with("16 stages on 3 kinds of devices have more than 16777216 assignments"), "{text}");
}
