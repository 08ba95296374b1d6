//! KServe's first example: scikit-learn's support vector machine for iris flowers, asked over version 1
//! of KServe's protocol.

use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_tests::http::ask;
use atoll_tests::root;
use serde_json::{Value, json};

#[test]
fn the_iris_example_answers_as_scikit_learn_does() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    for name in ["iris", "iris_labels", "iris_probabilities"] {
        let from = root().join("tests/fixtures/sklearn").join(format!("{name}.onnx"));
        std::fs::copy(from, repository.join(format!("{name}.onnx")))?;
    }
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    let predictions = |model: &str| -> Result<Value> {
        let body = json!({ "instances": [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]] }).to_string();
        let (status, text) = ask(&daemon.http, "POST", &format!("/v1/models/{model}:predict"), &body)?;
        ensure!(status == 200, "{model}: {text}");
        Ok(serde_json::from_str::<Value>(&text)?["predictions"].take())
    };
    let labels = predictions("iris_labels")?;
    ensure!(labels == json!([1, 1]), "{labels}");
    // With several outputs, a prediction has them by name.
    for (model, expected) in [
        ("iris", [[-0.231_624, 2.213_697, 1.109_782], [-0.223_713, 2.220_390, 1.027_372]]),
        ("iris_probabilities", [[0.007_440, 0.811_552, 0.181_007], [0.008_852, 0.914_202, 0.076_946]]),
    ] {
        let found = predictions(model)?;
        for (row, expected) in expected.iter().enumerate() {
            ensure!(found[row]["output_label"] == 1, "{model}: {found}");
            let of_classes =
                found[row]["output_probability"].as_array().with_context(|| format!("{model}: {found}"))?;
            let near = |(found, expected): (&Value, &f64)| found.as_f64().is_some_and(|x| (x - expected).abs() < 1e-4);
            ensure!(of_classes.len() == 3 && of_classes.iter().zip(expected).all(near), "{model}: {found}");
        }
    }
    Ok(())
}
