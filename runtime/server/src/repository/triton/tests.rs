use super::*;
use std::time::Duration;

fn of(text: &str) -> Result<Settings, String> {
    settings(text, "m")
}

fn refused(text: &str, expected: &str) {
    let message = of(text).expect_err(text);
    assert!(message.contains(expected), "{text}: {message}");
}

#[test]
fn a_real_configuration_is_read() {
    let text = r#"
        name: "densenet_onnx"   # a comment { with a brace
        platform: "onnxruntime_onnx"
        max_batch_size : 0
        input [ {
          name: "data_0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] }
        } ]
        instance_group [ { count: 1 kind: KIND_GPU gpus: [ 2 ] }, { count: 2 gpus: 2 } ]
        dynamic_batching {
          default_priority_level: 1
          priority_levels: 2;
          default_queue_policy { timeout_action: DELAY, max_queue_size: 12 default_timeout_microseconds: 5 }
        }
        parameters: { key: "a \" quote" value: { string_value: "x }" } }
        parameters: { key: "device" value: { string_value: "host:1" } }
        parameters { value { string_value: "other" } key: "elsewhere" }
        parameters { key: "device" }
        parameters { key: "symbols" value { string_value: "seq=1..9" } }
    "#;
    let read = settings(text, "densenet_onnx").unwrap();
    let expected = Settings {
        class: Class::RealTime,
        queue_capacity: NonZeroUsize::new(12),
        device: Some("host:1".into()),
        gpu: Some(2),
        symbols: size_ranges("seq=1..9").unwrap(),
        inputs: vec![Declared {
            name: "data_0".into(),
            data_type: Some("TYPE_FP32".into()),
            dims: Some(vec![3, 224, 224]),
            reshape: Some(vec![1, 3, 224, 224]),
            optional: false,
        }],
        parameters: [("a \" quote", "x }"), ("device", "host:1"), ("elsewhere", "other"), ("symbols", "seq=1..9")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        notes: read.notes.clone(),
        ..Settings::default()
    };
    assert_eq!(read, expected);
    let not_honoured: Vec<&str> = read.not_honoured().map(|note| note.field.as_str()).collect();
    let [delay, timeout] = ["timeout_action", "default_timeout_microseconds"]
        .map(|field| format!("dynamic_batching.default_queue_policy.{field}"));
    let expected = ["instance_group.count", &delay, &timeout, "parameters.a \\\" quote", "parameters.elsewhere"];
    assert_eq!(not_honoured, expected);
    assert_eq!(of(""), Ok(Settings::default()));
}

#[test]
fn states_and_control_inputs_are_read() {
    let text = r#"
        sequence_batching {
          max_sequence_idle_microseconds: 5000000
          state [ { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 1, -1 ] },
                  { output_name: "cn" input_name: "c" } ]
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
        }
    "#;
    let read = of(text).unwrap();
    assert_eq!((read.state, read.session_idle_ms), ("h=hn,c=cn".parse().unwrap(), NonZeroU64::new(5000)));
    assert_eq!(read.controls.iter().map(|control| &*control.name).collect::<Vec<_>>(), ["START"]);
    let read = of(&format!("input {{ name: 'x' }} {text}")).unwrap();
    assert_eq!(read.inputs.iter().map(|input| &*input.name).collect::<Vec<_>>(), ["x"], "as it is declared");
}

#[test]
fn steps_are_gathered_as_the_strategy_says() {
    let control = "control_input { name: 'S' control { int32_false_true: [ 0, 1 ] } }";
    let options = |text: &str| of(&format!("max_batch_size: 8 sequence_batching {{ {text} }}")).unwrap().batching();
    let direct = options(control).unwrap();
    assert_eq!((direct.gathers, direct.max_queue_delay), (true, None));
    let strategy = "oldest { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 70 }";
    let oldest = options(&format!("{control} {strategy}")).unwrap();
    assert_eq!((oldest.preferred, oldest.max_queue_delay), (vec![2, 4], Some(Duration::from_micros(70))));
    assert!(!options("").unwrap().gathers, "without control inputs and state there are no sequences");
    let noted = |text: &str| {
        let notes = of(&format!("sequence_batching {{ {text} }}")).unwrap().notes;
        notes.into_iter().find(|note| note.field == "sequence_batching.oldest").map(|note| note.treatment)
    };
    assert_eq!(noted(&format!("{control} {strategy}")), Some(ConfigTreatment::Honoured));
    let state = "state { input_name: 'h' output_name: 'hn' }";
    assert_eq!(noted(&format!("{state} {strategy}")), Some(ConfigTreatment::NotHonoured), "each step runs alone");
}

#[test]
fn the_default_level_is_a_class_and_a_priority() {
    for (level, expected) in [
        (0, (Class::BestEffort, 0)),
        (1, (Class::RealTime, 0)),
        (2, (Class::BestEffort, 0)),
        (5, (Class::BestEffort, 3)),
    ] {
        let read = of(&format!("dynamic_batching {{ priority_levels: 5 default_priority_level: {level} }}")).unwrap();
        assert_eq!((read.class, read.default_priority), expected, "level {level}");
    }
}

#[test]
fn one_scheduler_is_possible() {
    let two = "dynamic_batching and sequence_batching contradict each other";
    refused("dynamic_batching { } sequence_batching { }", two);
    refused("ensemble_scheduling { } dynamic_batching { }", "dynamic_batching and ensemble_scheduling contradict");
    let strategies = "sequence_batching.direct and sequence_batching.oldest contradict";
    refused("sequence_batching { oldest { } direct { } }", strategies);
    assert!(of("sequence_batching { direct { } }").is_ok());
}

#[test]
fn numbers_of_the_text_format_are_read() {
    let read = of("max_batch_size: 0x8 input { name: 'a' data_type: 11 dims: [ 010, -1 ] }").unwrap();
    assert_eq!(read.max_batch_size, NonZeroU32::new(8));
    assert_eq!((read.inputs[0].data_type.as_deref(), &read.inputs[0].dims), (Some("TYPE_FP32"), &Some(vec![8, -1])));
    let json = settings_of_json(r#"{"input": [{"name": "a", "data_type": 13}]}"#, "m").unwrap();
    assert_eq!(json.inputs[0].data_type.as_deref(), Some("TYPE_STRING"));
    let timeout = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 9 timeout_action: 1 } }";
    assert_eq!(of(timeout).unwrap().timeout_us, None);
}

#[test]
fn a_name_is_that_of_the_folder() {
    assert!(of("name: 'm'").is_ok() && of("name: ''").is_ok());
    refused("name: 'other'", "unexpected directory name 'm' for model 'other'");
}

#[test]
fn batching_is_read() {
    let options = |text: &str| of(text).unwrap().batching();
    let gathered = options(
        "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }",
    );
    let gathered = gathered.unwrap();
    assert_eq!((gathered.max_batch_size.get(), gathered.gathers), (16, true));
    assert_eq!((gathered.preferred, gathered.max_queue_delay), (vec![4, 8], Some(Duration::from_micros(100))));
    assert!(options("dynamic_batching {} max_batch_size: 2").unwrap().gathers);
    assert!(!options("max_batch_size: 2").unwrap().gathers, "as with Triton");
    let real_time = "max_batch_size: 2 parameters { key: 'batch_real_time' value { string_value: 'true' } }";
    assert!(options(real_time).unwrap().real_time);
    assert_eq!(options("max_batch_size: 0 dynamic_batching { }"), None);
    refused("max_batch_size: -1", "max_batch_size is `-1`, which is out of range");
    refused(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: x }",
        "preferred_batch_size is `x`, which is not a whole number",
    );
    refused("dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "default_priority_level is 3");
}

#[test]
fn timeouts_of_queues_are_deadlines() {
    let timeout = |text: &str| {
        let text = format!("dynamic_batching {{ default_queue_policy {{ {text} }} }}");
        of(&text).unwrap().timeout_us.map(NonZeroU64::get)
    };
    assert_eq!(timeout("default_timeout_microseconds: 500"), Some(500));
    assert_eq!(timeout("default_timeout_microseconds: 500 timeout_action: REJECT"), Some(500));
    assert_eq!(timeout("default_timeout_microseconds: 500 timeout_action: DELAY"), None);
    assert_eq!(timeout("default_timeout_microseconds: 0"), None);
}

#[test]
fn labels_and_tensors_are_read() {
    let text = "output [ { name: 'fc6_1' data_type: TYPE_FP32 dims: [ 1000 ] label_filename: 'labels.txt' }, \
                { name: 'other' } ]";
    let read = of(text).unwrap();
    assert_eq!(read.labels, [("fc6_1".to_owned(), "labels.txt".to_owned())].into());
    assert_eq!(read.outputs.len(), 2);
    assert_eq!((&read.outputs[1].dims, &read.outputs[1].data_type), (&None, &None));
    refused("input { data_type: TYPE_FP32 }", "`input` has no name");
    refused("input { name: 'a' dims: [ x ] }", "input.dims is `x`");
    let many = format!("input {{ name: 'a' reshape {{ shape: [ {} ] }} }}", "1, ".repeat(RANK_MAX + 1));
    refused(&many, "input.reshape.shape has");
}

#[test]
fn the_version_policy_is_read() {
    let policy = |text: &str| of(text).map(|settings| settings.version_policy.to_string());
    for (text, expected) in [
        ("", "latest"),
        ("version_policy { latest { } }", "latest"),
        ("version_policy: { latest: { num_versions: 2 } }", "latest:2"),
        ("version_policy { all {} }", "all"),
        ("version_policy: { specific: { versions: [ 3, 1 ] } }", "specific:1,3"),
        ("version_policy { specific { versions: 3 versions: 1 } }", "specific:1,3"),
    ] {
        assert_eq!(policy(text).as_deref(), Ok(expected), "{text}");
    }
    refused("version_policy { all {} latest { num_versions: 1 } }", "contradict");
    refused("version_policy { all {} } version_policy { latest { } }", "version_policy is set 2 times");
    refused("version_policy { specific { } }", "names no version");
    refused("version_policy { latest { num_versions: 0 } }", "num_versions is `0`");
    refused("version_policy { specific { versions: [-1] } }", "versions is `-1`");
}

#[test]
fn samples_for_a_warm_up_are_read() {
    let text = r#"model_warmup [
        { name: "zeros" batch_size: 2 count: 3
          inputs { key: "a" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }
          inputs { key: "b" value { data_type: TYPE_INT64 dims: [ 1, 2 ] input_data_file: "b.raw" } } },
        { name: "skipped" batch_size: 0 },
        { name: "random" batch_size: 1
          inputs { key: "a" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } }
    ]"#;
    let input = |name: &str, data_type: &str, dims: &[i64], data| WarmupInput {
        name: name.into(),
        data_type: data_type.into(),
        dims: dims.to_vec(),
        data,
    };
    let zeros = vec![
        input("a", "TYPE_FP32", &[4], WarmupData::Zeros),
        input("b", "TYPE_INT64", &[1, 2], WarmupData::File("b.raw".into())),
    ];
    let random = vec![input("a", "TYPE_FP32", &[4], WarmupData::Random)];
    let expected = [
        Warmup { name: "zeros".into(), rows: 2, runs: 3, inputs: zeros },
        Warmup { name: "random".into(), rows: 1, runs: 1, inputs: random },
    ];
    assert_eq!(of(text).unwrap().warmup, expected);
    refused("model_warmup { inputs { key: 'a' } }", "`a` of model_warmup has no value");
    refused("model_warmup { inputs { key: 'a' value { dims: 1 } } }", "needs one of");
    refused("model_warmup { inputs { key: 'a' value { zero_data: true random_data: true } } }", "needs one of");
    refused("model_warmup { count: 100000 }", "at most");
    refused(&"model_warmup { }".repeat(WARMUP_SAMPLES_MAX + 1), "samples");
}

#[test]
fn one_gpu_is_a_device_and_several_are_not() {
    let gpu = |text: &str| of(text).unwrap().gpu;
    assert_eq!(gpu("instance_group { gpus: [ 1 ] }"), Some(1));
    assert_eq!(gpu("instance_group { gpus: [ 0, 1 ] }"), None);
    assert_eq!(gpu("instance_group [ { gpus: 0 }, { gpus: 1 } ]"), None);
    assert_eq!(gpu("instance_group { count: 2 }"), None);
}

#[test]
fn groups_are_instances_if_there_is_a_target() {
    let latency = |ms: &str| format!("parameters {{ key: 'latency_ms' value {{ string_value: '{ms}' }} }} ");
    let scaling = |text: &str| of(&(latency("50") + text)).unwrap().scaling.unwrap();
    for (text, count) in [("", 1), ("instance_group { count: 3 }", 3), ("instance_group [ { count: 2 }, { } ]", 3)] {
        let scaling = scaling(text);
        assert_eq!((scaling.latency_ms, scaling.min_instances, scaling.max_instances), (50, count, count), "{text}");
    }
    let text = "instance_group { count: 3 }";
    assert_eq!((of(text).unwrap().scaling, of(text).unwrap().not_honoured().count()), (None, 1));
    assert_eq!(of(&(latency("50") + text)).unwrap().not_honoured().count(), 0);
    refused(&latency("soon"), "parameters.latency_ms is `soon`");
    refused(&latency("0"), "a target latency of 0");
    refused(&(latency("50") + "instance_group { count: 1000000 }"), "instances");
}

#[test]
fn the_response_cache_is_read() {
    assert!(of("response_cache { enable: true }").unwrap().response_cache);
    assert!(!of("response_cache { enable: false }").unwrap().response_cache);
    refused("response_cache { enable: maybe }", "neither true nor false");
}

#[test]
fn json_is_read_too() {
    let json = r#"{"name": "m", "max_batch_size": 4, "dynamicBatching": {"preferredBatchSize": [2]},
                   "parameters": {"device": {"string_value": "host:1"}}, "versionPolicy": {"all": {}}}"#;
    let text = "max_batch_size: 4 dynamic_batching { preferred_batch_size: 2 } version_policy { all {} } \
                parameters { key: 'device' value { string_value: 'host:1' } } name: 'm'";
    let without_notes = |settings: Settings| Settings { notes: Vec::new(), ..settings };
    assert_eq!(settings_of_json(json, "m").map(without_notes), of(text).map(without_notes));
    assert!(settings_of_json("[]", "m").is_err());
}

#[test]
fn a_field_that_may_be_there_once_is_not_read_twice() {
    refused("max_batch_size: 4 max_batch_size: 8", "max_batch_size is set 2 times");
    refused("dynamic_batching { } name: 'm' dynamic_batching { default_priority_level: 1 }", "dynamic_batching is set");
    refused("max_batch_size: [ 4, 8 ]", "max_batch_size is set 2 times");
    let json = settings_of_json(r#"{"maxBatchSize": 4, "max_batch_size": 8}"#, "m").unwrap_err();
    assert!(json.contains("max_batch_size is set 2 times"), "{json}");
    assert!(of("input { name: 'a' } input { name: 'b' }").is_ok());
}
