//! Sequences of requests to a model with control inputs, which clients do not send.

use crate::support::{Answer, Daemon, Options, write_steps_bundle};
use atoll_engine::Class;
use serde_json::{Value, json};

/// A configuration as those of Triton's examples, without its name.
const CONFIG: &str = "max_batch_size: 8 \
    sequence_batching { oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 100 } \
      control_input { name: 'start' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 7 ] } } \
      control_input { name: 'id' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } } \
    input { name: 'in' data_type: TYPE_FP32 dims: 4 } output { name: 'out' data_type: TYPE_FP32 dims: 4 }";

fn daemon(config: &str) -> Daemon {
    Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        std::fs::create_dir_all(repository.join("m/1")).unwrap();
        write_steps_bundle(&repository.join("m/1/model.kg"));
        std::fs::write(repository.join("m/config.pbtxt"), config).unwrap();
    })
}

fn ask(daemon: &Daemon, rows: usize, parameters: Value) -> Answer {
    let input = json!({ "name": "in", "datatype": "FP32", "shape": [rows, 4], "data": vec![1; 4 * rows] });
    daemon.post("/v2/models/m/infer", &json!({ "inputs": [input], "parameters": parameters }).to_string())
}

/// The values of the inputs `start` and `id` in the last request that the engine got.
fn controls(daemon: &Daemon) -> (i32, u64) {
    let inputs = daemon.engine.last_request().inputs;
    assert_eq!(inputs.iter().map(|input| input.shape.clone()).collect::<Vec<_>>(), [[1, 1], [1, 1], [1, 4]]);
    let (start, id) = (inputs[0].bytes.as_slice().try_into().unwrap(), inputs[1].bytes.as_slice().try_into().unwrap());
    (i32::from_le_bytes(start), u64::from_le_bytes(id))
}

#[test]
fn the_daemon_fills_in_control_inputs() {
    let daemon = daemon(CONFIG);
    for (parameters, expected) in [
        (json!({ "sequence_id": 5, "sequence_start": true }), (7, 5)),
        (json!({ "sequence_id": 6, "sequence_start": true }), (7, 6)),
        (json!({ "sequence_id": 5 }), (0, 5)),
        (json!({ "sequence_id": 5, "sequence_start": true }), (7, 5)),
        (json!({ "sequence_id": 5, "sequence_end": true }), (0, 5)),
    ] {
        let answer = ask(&daemon, 1, parameters.clone());
        assert_eq!((answer.status, controls(&daemon)), (200, expected), "{parameters}: {}", answer.text());
    }
    // The first sequence has ended, and the second one has not.
    let ended = ask(&daemon, 1, json!({ "sequence_id": 5 }));
    assert!(ended.status == 400 && ended.error().contains("has no open sequence 5"), "{}", ended.text());
    assert_eq!(ask(&daemon, 1, json!({ "sequence_id": 6 })).status, 200);
}

#[test]
fn requests_that_are_no_steps_are_refused() {
    let daemon = daemon(CONFIG);
    for (rows, parameters, expected) in [
        (1, json!({}), "must specify a non-zero or non-empty correlation ID"),
        (1, json!({ "sequence_id": 3 }), "has no open sequence 3; begin one with sequence_start"),
        (2, json!({ "sequence_id": 3, "sequence_start": true }), "must specify batch-size 1 due to requirements"),
        (1, json!({ "sequence_id": "x", "sequence_start": true }), "`x` is no value of the control input `id`"),
    ] {
        let answer = ask(&daemon, rows, parameters.clone());
        assert!(answer.status == 400 && answer.error().contains(expected), "{parameters}: {}", answer.text());
    }
    let input =
        |name: &str, shape: [usize; 2]| json!({ "name": name, "datatype": "FP32", "shape": shape, "data": [0] });
    let body =
        json!({ "inputs": [input("start", [1, 1])], "parameters": { "sequence_id": 3, "sequence_start": true } });
    let refused = daemon.post("/v2/models/m/infer", &body.to_string());
    let expected = "unexpected inference input 'start' for model 'm'";
    assert!(
        refused.error().contains(expected) && refused.error().ends_with("it has in: FP32[-1, 4]"),
        "{}",
        refused.text()
    );
    assert_eq!(daemon.engine.asked(), 0);
}

#[test]
fn clients_see_no_control_inputs_and_steps_may_share_a_launch() {
    let daemon = daemon(CONFIG);
    let metadata = daemon.get("/v2/models/m").json();
    assert_eq!((metadata["inputs"].as_array().unwrap().len(), &metadata["inputs"][0]["name"]), (1, &json!("in")));
    let config = daemon.get("/v2/models/m/config").json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(8), &json!([4])));
    assert!(config["sequence_batching"].is_object() && config["dynamic_batching"].is_null(), "{config}");
    // The rows of this bundle are not proven independent, so steps run alone.
    let options = daemon.engine.options("m").unwrap();
    assert_eq!((options.class, options.batching), (Class::BestEffort, None));
    let explained = daemon.get("/v2/repository/models/m/explain").text();
    assert!(explained.contains("sequence_batching.control_input.control.kind"), "{explained}");
}

#[test]
fn a_configuration_whose_controls_do_not_fit_is_refused_at_the_load() {
    for (from, to, expected) in [
        (
            "'start' control",
            "'begin' control",
            "`begin` of sequence_batching is no input of the model, which has start, id",
        ),
        (
            "int32_false_true: [ 0, 7 ]",
            "fp32_false_true: [ 0, 7 ]",
            "declared as TYPE_FP32, and the model has TYPE_INT32",
        ),
        (
            "control_input { name: 'id'",
            "control_input { name: 'in'",
            "declared as TYPE_UINT64, and the model has TYPE_FP32",
        ),
        ("int32_false_true: [ 0, 7 ]", "", "needs one of int32_false_true"),
    ] {
        assert!(CONFIG.contains(from));
        let daemon = daemon(&CONFIG.replace(from, to));
        let index = daemon.post("/v2/repository/index", "").json();
        let reason = index[0]["reason"].as_str().unwrap();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn samples_of_a_warm_up_are_sequences_of_one_request() {
    let input = |name: &str, of: &str| format!("inputs {{ key: '{name}' value {{ {of} zero_data: true }} }}");
    let inputs = input("in", "data_type: TYPE_FP32 dims: 4") + &input("start", "data_type: TYPE_INT32 dims: 1");
    let daemon = daemon(&format!("{CONFIG} model_warmup {{ name: 's' batch_size: 1 {inputs} }}"));
    assert_eq!((daemon.engine.asked(), controls(&daemon)), (1, (7, 1)));
}
